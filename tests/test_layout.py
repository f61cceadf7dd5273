"""Where tests live: they mirror src, helpers are in tests/support, tests/core does no I/O."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "mainspring"
SUPPORT = TESTS / "support"
BESIDE_SOURCE = {"conformance", "deploy", "docs", "machine", "simulation", "support"}
"""Folders of tests that belong to no package of src."""

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
    allowed = packages | {Path("service/clients")}
    assert {one for one in folders - allowed if one.parts[0] not in BESIDE_SOURCE} == set()


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
