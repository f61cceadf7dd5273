"""The shape of the house, kept by a test: imports point down, and one module reads the clock."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mainspring"

FLOORS: list[set[str]] = [
    {"__main__"},
    {"cli"},
    {"service"},
    {"dashboard"},
    {"__init__"},  # what `from mainspring import …` gives
    {
        "scheduler",
        "asking",
        "decorated",
        "blocking",
        "drafts",
        "reports",
        "signals",
        "announce",
        "explain",
    },
    {"testing", "copying"},
    {"engine"},
    {"webhooks"},
    {"stores"},
    {"store"},
    {"states"},
    {"handlers", "events"},
    {"context"},
    {"options", "settings", "job_options", "worker_ids"},
    {"model"},
    {"policy"},
    {"schedules"},
    {"codec", "durations", "arguments"},
    {"clock"},
    {"errors"},
]
"""From the roof to the ground. A module imports from lower floors and from its own."""

CLOCKS = {
    *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
    *("time.perf_counter_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today"),
}
UNSAFE = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    """The module or package of `mainspring` that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def floor(name: str) -> int:
    for number, names in enumerate(FLOORS):
        if name in names:
            return number
    raise AssertionError(f"mainspring.{name} is new: say in FLOORS which floor it is on")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import in a file, those inside functions too: (line, dotted name)."""
    package = ["mainspring", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def our_room(dotted: str) -> str | None:
    """The room that an import leads to, or None if it leads out of the house."""
    first, *rest = dotted.split(".")
    if first != "mainspring":
        return None
    known = rest and ((SOURCE / f"{rest[0]}.py").exists() or (SOURCE / rest[0]).is_dir())
    return rest[0] if known else "__init__"


def calls(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    here = room(path)
    for line, dotted in imports(path):
        there = our_room(dotted)
        if there is not None and there != here:
            assert floor(there) >= floor(here), f"{path}:{line}: {here} imports {there} above it"


def test_nobody_imports_the_testing_kit() -> None:
    users = {
        room(path) for path in files() for _, name in imports(path) if our_room(name) == "testing"
    }
    assert users <= {"testing"}


def test_only_the_clock_reads_a_clock() -> None:
    for path in files():
        if room(path) in ("clock", "testing"):
            continue
        for line, name in imports(path):
            assert name not in CLOCKS, f"{path}:{line}: {name} is read by clock.py alone"
        for line, called in calls(path):
            loop = called.endswith("loop.time") or called.endswith("loop().time")
            assert called not in CLOCKS, f"{path}:{line}: {called}() is read by clock.py alone"
            assert not loop, f"{path}:{line}: ask a Clock for the time, not the loop"


def test_nothing_is_pickled() -> None:
    for path in files():
        for line, name in imports(path):
            assert name.split(".")[0] not in UNSAFE, f"{path}:{line} imports {name}"


def test_pytest_is_needed_by_the_suite_alone() -> None:
    users = {
        str(path.relative_to(SOURCE).parent)
        for path in files()
        for _, name in imports(path)
        if name.split(".")[0] in ("pytest", "hypothesis") and path.parent.name != "testing"
    }
    assert users == {"testing/conformance"}


def test_the_checks_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A house with every fault, and each check sees its own."""
    (tmp_path / "testing").mkdir()
    (tmp_path / "testing" / "__init__.py").write_text("")
    (tmp_path / "scheduler.py").write_text("")
    (tmp_path / "states.py").write_text(
        "def late():\n    from mainspring.scheduler import Scheduler\n"
        "    from mainspring.testing import FakeClock\n"
        "    import pickle, datetime\n    datetime.datetime.now()\n"
    )
    monkeypatch.setattr("tests.test_architecture.SOURCE", tmp_path)
    with pytest.raises(AssertionError, match=r"states.py:2: states imports scheduler above it"):
        test_imports_point_down(tmp_path / "states.py")
    for check in (
        test_nobody_imports_the_testing_kit,
        test_only_the_clock_reads_a_clock,
        test_nothing_is_pickled,
    ):
        with pytest.raises(AssertionError):
            check()
