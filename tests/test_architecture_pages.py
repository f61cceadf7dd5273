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
NUMBERED = re.compile(r"^\d+\. ", re.MULTILINE)
MOST_FILES = {"a-run": 30, "a-slot": 22}


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

    collect(ast.parse((SOURCE / file).read_text()).body, "")
    return frozenset(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_and_function_of_a_walk_exists(page: Path) -> None:
    steps = steps_of(page)
    assert len(steps) == len(NUMBERED.findall(page.read_text())), "a step names no file or function"
    missing = [f"{file} {name}" for file, name in steps if name not in names_in(file)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_walk_passes_through_few_files_and_names_each_once(page: Path) -> None:
    files = [file for file, _ in steps_of(page)]
    assert len(files) == len(set(files))
    assert len(files) <= MOST_FILES.get(page.stem, 45)
