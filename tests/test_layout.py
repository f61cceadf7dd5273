"""Where tests live: they mirror src, helpers are in tests/support, tests/core does no I/O."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "mainspring"
SUPPORT = TESTS / "support"
BESIDE_SOURCE = {"conformance", "deploy", "docs", "machine", "simulation", "support"}
"""Folders of tests that belong to no package of src."""

ACROSS_MODULES = {
    "core/schedules/test_properties.py": "core/schedules/*.py",
    "core/schedules/test_search_cost.py": "core/schedules/*_calendar.py core/schedules/interval.py",
    "dashboard/test_accessibility.py": "dashboard/views/*.py dashboard/templates/*.html",
    "dashboard/test_frame.py": "dashboard/app.py dashboard/templates/*.html dashboard/assets/*.js",
    "dashboard/test_layout_shift.py": "dashboard/templates/*.html dashboard/assets/*",
    "engine/executors/test_unstoppable_handlers.py": "engine/executors/*.py engine/leases.py",
    "engine/test_catch_up.py": "engine/slot_firer.py engine/slots.py engine/leases.py",
    "engine/test_fork_guard.py": "scheduler/client.py engine/attempt.py",
    "engine/test_hooks.py": "engine/executors/loop.py engine/completer.py",
    "engine/test_default_handler.py": "engine/jobs_without_worker.py engine/worker.py",
    "engine/test_each_node.py": "core/node_runs.py engine/worker.py engine/rescuer.py",
    "engine/test_plan_ahead.py": "engine/slot_firer.py engine/job_cache.py",
    "engine/test_start_deadline.py": "core/transitions.py engine/worker.py engine/rescuer.py",
    "engine/test_fixed_delay.py": "engine/slot_firer.py engine/slots.py core/job_updates.py",
    "engine/test_memory_growth.py": "engine/*.py engine/executors/*.py",
    "scheduler/test_add_job_replace.py": "scheduler/client.py core/job_updates.py",
    "scheduler/test_defaults.py": "scheduler/definitions.py core/policy.py",
    "scheduler/test_enqueue.py": "scheduler/client.py engine/run_operations.py engine/worker.py",
    "scheduler/test_error_messages.py": "core/*.py core/schedules/*.py scheduler/definitions.py",
    "scheduler/test_object_storage_tour.py": "scheduler/*.py stores/objects/*.py",
    "scheduler/test_typed_arguments.py": "core/arguments.py core/handlers.py",
    "service/api/test_dry_runs.py": "service/api/jobs.py service/api/job_operations.py",
    "service/api/test_etags.py": "service/api/jobs.py service/api/job_operations.py",
    "service/api/test_lists.py": "service/dependencies.py service/api/*.py",
    "service/api/test_v1.py": "service/api/*.py",
    "service/schemas/test_wrong_fields.py": "service/schemas/*.py service/problems.py",
    "service/test_docs.py": "service/openapi.py service/pages/*",
    "service/test_executions.py": "service/compat.py",
    "service/test_generated_clients.py": "service/openapi.py service/api/*.py",
    "service/test_instances_on_mongodb.py": "service/*.py stores/mongodb/*.py",
    "service/test_malformed_requests.py": "service/middleware.py service/problems.py",
    "service/test_store_outage.py": "service/api_keys.py service/metrics.py service/admission.py",
    "service/test_unreadable_notes.py": "service/api_keys.py service/audit.py service/sessions.py",
    "stores/mongodb/test_dead_clients.py": "stores/mongodb/*.py",
    "stores/mongodb/test_fault_scenarios.py": "stores/mongodb/*.py",
    "stores/mongodb/test_network.py": "stores/mongodb/*.py engine/store_retry.py",
    "stores/mongodb/test_partitioned_primary.py": "stores/mongodb/*.py",
    "stores/mongodb/test_permissions.py": "stores/mongodb/*.py",
    "stores/mongodb/test_query_plans.py": "stores/mongodb/*.py",
    "stores/mongodb/test_sharding.py": "stores/mongodb/*.py",
    "stores/objects/test_every_request.py": "stores/objects/*.py",
    "stores/objects/test_large_payloads.py": "stores/objects/*.py",
    "stores/objects/test_request_counts.py": "stores/objects/*.py engine/*.py",
    "stores/objects/test_writers.py": "stores/objects/group_commit.py stores/objects/commit.py",
    "stores/postgresql/test_dead_clients.py": "stores/postgresql/*.py",
    "stores/postgresql/test_every_statement.py": "stores/postgresql/*.py",
    "stores/postgresql/test_failover.py": "stores/postgresql/*.py",
    "stores/postgresql/test_network.py": "stores/postgresql/*.py engine/store_retry.py",
    "stores/postgresql/test_outages.py": "stores/postgresql/*.py",
    "stores/postgresql/test_pooler.py": "stores/postgresql/*.py",
    "stores/test_unreadable_records.py": "stores/codec.py engine/rescuer.py",
    "stores/test_within_crashes.py": "stores/caller_connection.py engine/run_operations.py",
    "stores/sqlite/test_process_crashes.py": "stores/sqlite/*.py engine/*.py",
    "webhooks/test_bad_targets.py": "webhooks/transport.py webhooks/handler.py",
    "webhooks/test_worker_crash.py": "webhooks/handler.py engine/leases.py",
}
"""Test files about a behaviour of several modules, and these modules: every other file is named
after the one module that it tests. The first line of each file says what the behaviour is."""

TESTED_ELSEWHERE = {"testing/conformance": "conformance/test_planted.py"}
"""Packages without a folder of tests, and the file that tests them."""

IO = {
    *("asyncio", "http", "httpx", "os", "shutil", "socket", "sqlite3", "subprocess", "tempfile"),
    *("threading", "mainspring.cli", "mainspring.engine", "mainspring.service"),
    *("mainspring.stores", "mainspring.scheduler", "mainspring.webhooks", "mainspring.Scheduler"),
}
"""What a test of values and pure decisions needs not import."""


def imported(path: Path) -> set[str]:
    """Every name that a file imports, with each package that it is in."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    parts = [name.split(".") for name in names]
    return {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}


def test_every_folder_of_tests_belongs_to_a_package_or_a_kind_of_test() -> None:
    packages = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")}
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    assert {one for one in folders - packages if one.parts[0] not in BESIDE_SOURCE} == set()


def mirroring() -> list[str]:
    """The test files of all folders that belong to a package of src."""
    found = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    return sorted(str(one) for one in found if one.parts[0] not in BESIDE_SOURCE)


def module_of(test: str) -> Path:
    """The module that a test file is named after."""
    path = SOURCE / test
    return path.with_name(path.name.removeprefix("test_"))


def test_a_test_file_is_named_after_its_module_or_listed_with_the_modules_it_is_about() -> None:
    of_the_whole = {
        *("test_architecture.py", "test_architecture_pages.py"),
        *("test_bench.py", "test_bench_plots.py"),
    }
    others = set(mirroring()) - ACROSS_MODULES.keys() - of_the_whole - {"test_layout.py"}
    assert [one for one in sorted(others) if not module_of(one).exists()] == []


def test_the_list_of_behaviours_across_modules_is_not_stale() -> None:
    assert ACROSS_MODULES.keys() - set(mirroring()) == set()
    assert [one for one in ACROSS_MODULES if module_of(one).exists()] == []
    named = {pattern for modules in ACROSS_MODULES.values() for pattern in modules.split()}
    assert [pattern for pattern in sorted(named) if not [*SOURCE.glob(pattern)]] == []


def test_every_package_has_a_folder_of_tests_or_names_the_file_that_tests_it() -> None:
    packages = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py")}
    without = {str(one) for one in packages if not [*(TESTS / one).glob("test_*.py")]}
    assert without == TESTED_ELSEWHERE.keys()
    assert [one for one in TESTED_ELSEWHERE.values() if not (TESTS / one).exists()] == []


def test_every_test_file_that_a_page_or_a_comment_names_exists() -> None:
    root = TESTS.parent
    folders = ("docs", "src", "tests", "chaos", "bench", "examples", "tools")
    texts = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    texts = [path for path in texts if path.suffix in (".md", ".py", ".html")]
    texts += [*root.glob("*.md"), root / "Makefile", root / "pyproject.toml"]
    missing = {
        f"{path.relative_to(root)}: {name}"
        for path in texts
        for name in re.findall(r"\b(?:tests|chaos)/[\w/]+\.py\b", path.read_text("utf-8"))
        if not (root / name).exists()
    }
    assert missing == set()


def test_no_test_file_takes_helpers_from_another() -> None:
    """They would be helpers outside of tests/support. A suite of classes may be run again."""
    files = [path for path in TESTS.rglob("test_*.py") if path.parent.name != "conformance"]
    found = {
        str(path.relative_to(TESTS)): sorted(name for name in imported(path) if ".test_" in name)
        for path in files
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_helpers_are_in_support_alone() -> None:
    allowed = {"__init__.py", "__main__.py", "conftest.py"}
    others = [path for path in TESTS.rglob("*.py") if SUPPORT not in path.parents]
    helpers = [p for p in others if p.name not in allowed and not p.name.startswith("test_")]
    assert helpers == []


def test_tests_of_the_core_do_no_io() -> None:
    found = {
        str(path.relative_to(TESTS)): sorted(imported(path) & IO)
        for path in (TESTS / "core").rglob("test_*.py")
        if imported(path) & IO
    }
    assert found == {}
