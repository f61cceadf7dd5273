"""Keeps the architecture: imports point down, no modules import each other in a cycle, no packages
import back and forth, one module reads the clock, and ARCHITECTURE.md names every package."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mainspring"

LAYERS: list[set[str]] = [
    {"__main__"},
    {"contrib"},  # a framework's commands run those of the command line
    {"cli"},
    {"dashboard"},
    {"service"},
    {"testing"},  # shipped; nothing in Mainspring imports it
    {"__init__"},  # what `from mainspring import …` gives
    {"scheduler"},
    {"engine"},
    {"webhooks"},
    {"stores"},
    {"schedules"},  # the public names of core.schedules
    {"core"},
    {"errors"},
]
"""From top to bottom, as `ls src/mainspring` shows them. A module imports from its own layer and
from lower ones."""

CLOCKS = {
    *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
    *("time.perf_counter_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today"),
}
UNSAFE = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def layer_name(path: Path) -> str:
    """The module or package of `mainspring` that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def layer(name: str) -> int:
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    raise AssertionError(f"mainspring.{name} is new: add it to LAYERS")


@cache
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


def imported_layer(dotted: str) -> str | None:
    """The layer that an import leads to, or None for another package."""
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
    here = layer_name(path)
    for line, dotted in imports(path):
        there = imported_layer(dotted)
        if there is not None and there != here:
            assert layer(there) >= layer(here), f"{path}:{line}: {here} imports {there} above it"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(["mainspring", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def import_graph() -> dict[str, set[str]]:
    """Which modules each module names in an import, also inside functions and `TYPE_CHECKING`."""
    modules = {module_name(path) for path in files()}
    graph: dict[str, set[str]] = {}
    for path in files():
        here = module_name(path)
        named = graph.setdefault(here, set())
        for _, dotted in imports(path):
            parent = dotted.rpartition(".")[0]
            there = dotted if dotted in modules else parent
            if there in modules and there != here:
                named.add(there)
    return graph


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph = import_graph()
    # The package itself imports its public names late; other modules take only the version.
    graph.pop("mainspring")
    TopologicalSorter(graph).prepare()  # names a cycle that it finds


def package_of(module: str) -> str:
    """The folder that a module is in; of a package, the package itself."""
    is_folder = (SOURCE.parent / module.replace(".", "/")).is_dir()
    return module if is_folder else module.rpartition(".")[0]


def mutual_packages(graph: dict[str, set[str]]) -> list[str]:
    """Pairs of packages, sub-packages included, that import from each other.

    A package and its own sub-package are no such pair: the sub-package is a part of it. Modules
    above the sub-package assemble its parts (`service/app.py` its routes, `engine/engine.py` its
    executors), and modules below it are what these parts share (`service/problems.py`,
    `engine/attempt.py`). That no cycle comes of it is checked module by module.
    """
    edges = {
        (package_of(here), package_of(there)) for here, named in graph.items() for there in named
    }
    return [
        f"{here} and {there}"
        for here, there in sorted(edges)
        if here < there and (there, here) in edges and not there.startswith(f"{here}.")
    ]


def test_no_packages_import_back_and_forth() -> None:
    assert mutual_packages(import_graph()) == []


def test_architecture_page_names_every_package() -> None:
    page = (SOURCE.parent.parent / "ARCHITECTURE.md").read_text()
    packages = {path.parent.relative_to(SOURCE) for path in files()} - {Path()}
    missing = [str(package) for package in sorted(packages) if f"`{package}/`" not in page]
    # The page names the folders of a package together with it.
    assert [name for name in missing if not name.startswith(("service/", "contrib/"))] == []


def test_every_module_says_what_it_does() -> None:
    """ARCHITECTURE.md sends readers to the first line of each module."""
    silent = [
        str(path.relative_to(SOURCE))
        for path in files()
        if path.read_text().strip() and not ast.get_docstring(tree(path))
    ]
    assert silent == []


def test_architecture_page_names_no_module_that_is_gone() -> None:
    page = (SOURCE.parent.parent / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z_/0-9]+(?:\.py|/))`", page))
    top = {path.name for path in SOURCE.iterdir()}
    gone = [n for n in sorted(named) if n.split("/")[0] in top and not (SOURCE / n).exists()]
    assert not gone, f"ARCHITECTURE.md names {', '.join(gone)}"


def test_nothing_outside_testing_imports_it() -> None:
    users = {
        layer_name(path)
        for path in files()
        for _, name in imports(path)
        if imported_layer(name) == "testing"
    }
    assert users <= {"testing"}


def test_only_the_clock_reads_a_clock() -> None:
    for path in files():
        if path == SOURCE / "core" / "clock.py" or layer_name(path) == "testing":
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


def test_only_the_conformance_suite_needs_pytest() -> None:
    users = {
        str(path.relative_to(SOURCE).parent)
        for path in files()
        for _, name in imports(path)
        if name.split(".")[0] in ("pytest", "hypothesis") and path.parent.name != "testing"
    }
    assert users == {"testing/conformance"}


def test_every_extra_installs_what_the_code_imports() -> None:
    """An extra without code behind it would promise a store or a service that is not there."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
    imported = {name.split(".")[0] for path in files() for _, name in imports(path)}
    for extra, needed in project["optional-dependencies"].items():
        if extra in ("all", "docs", "dev"):
            continue
        names = {re.split(r"[<>=\[]", one)[0].replace("-", "_") for one in needed}
        # OpenTelemetry's packages share one name for imports: opentelemetry.
        used = {name.removesuffix("_api").removesuffix("_sdk") for name in names}
        assert used <= imported, f"no module imports {used - imported} of the extra {extra!r}"
