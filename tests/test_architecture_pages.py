"""Each file and function that a page of docs/architecture names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mainspring"
PAGES = sorted((ROOT / "docs" / "architecture").glob("*.md"))
STEP = re.compile(r"^\d+\. `(?P<file>[\w/]+\.py)` `(?P<name>[\w.]+)`: \S", re.MULTILINE)
QUALIFIED = re.compile(r"`([A-Z]\w*\.\w+)`")
"""A method anywhere on a page: `Class.name`."""
NAMED_FILE = re.compile(r"`([a-z_]+/[\w/]+\.py)`")
IN_FILE = re.compile(r"`(?P<file>[a-z_]+/[\w/]+\.py)`\s\(`(?P<name>\w+)`")
NUMBERED = re.compile(r"^\d+\. ", re.MULTILINE)


def steps_of(page: Path) -> list[tuple[str, str]]:
    return [(step["file"], step["name"]) for step in STEP.finditer(page.read_text())]


@cache
def names_in(file: str) -> frozenset[str]:
    """The functions and classes of a file, those inside of a class as `Class.name`."""
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign):  # a function that another one made
                names.update(prefix + t.id for t in node.targets if isinstance(t, ast.Name))

    collect(ast.parse((SOURCE / file).read_text()).body, "")
    return frozenset(names)


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def is_missing(named: re.Match[str]) -> bool:
    return named["name"] not in names_in(named["file"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_and_function_of_a_walk_exists(page: Path) -> None:
    steps = steps_of(page)
    assert len(steps) == len(NUMBERED.findall(page.read_text())), "a step names no file or function"
    missing = [f"{file} {name}" for file, name in steps if name not in names_in(file)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_in_the_text_of_a_walk_exists(page: Path) -> None:
    text = page.read_text()
    everywhere = {name for path in SOURCE.rglob("*.py") for name in names_in(relative(path))}
    missing = [name for name in QUALIFIED.findall(text) if name not in everywhere]
    missing += [file for file in NAMED_FILE.findall(text) if not (SOURCE / file).exists()]
    missing += [f"{m['file']} {m['name']}" for m in IN_FILE.finditer(text) if is_missing(m)]
    assert missing == []
