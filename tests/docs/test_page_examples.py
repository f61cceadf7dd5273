"""Every example of every page runs as a reader would run it."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_examples import (
    DOCS,
    ROOT,
    Block,
    ConsoleSession,
    blocks,
    commands,
    page_files,
)
from tests.support.preloaded_command import PreloadedCommand

PAGES = [
    page
    for page in page_files()
    if page.name != "README.md" and not {"decisions", "architecture"} & set(page.parts)
]
CHAPTERS = sorted((DOCS / "tutorial").glob("[0-9]-*.md"))
CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_doctest(block: Block) -> bool:
    return block.language == "python" and block.text.startswith(">>>")


def is_script(block: Block) -> bool:
    plain = block.language == "python" and not block.title
    return plain and block.kind is None and not is_doctest(block)


def pages_with(choose: object) -> list[Path]:
    assert callable(choose)
    return [page for page in PAGES if any(choose(block) for block in blocks(page))]


def is_pytest(page: Path) -> bool:
    return any(block.kind == "pytest" for block in blocks(page))


def tutorial_always(pages: list[Path]) -> list[Any]:
    """The pages as parameters of a test. `make test` takes those of the tutorial only."""
    return [
        page if "tutorial" in page.parts else pytest.param(page, marks=pytest.mark.thorough)
        for page in pages
    ]


SCRIPTS = [page for page in pages_with(is_script) if not is_pytest(page)]
CONSOLES = pages_with(lambda block: block.language == "console" and block.kind != "stream")


@pytest.mark.parametrize("page", tutorial_always(SCRIPTS), ids=name_of)
def test_python_blocks_run_as_one_script(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(one.text for one in blocks(page) if is_script(one)))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "never" not in done.stderr  # awaited, retrieved: what Python says of forgotten work


@pytest.mark.parametrize("page", pages_with(is_doctest), ids=name_of)
def test_doctests_print_what_the_page_shows(page: Path) -> None:
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in PAGES if is_pytest(page)], ids=name_of)
def test_pages_of_tests_pass_under_pytest(page: Path, tmp_path: Path) -> None:
    python = [one.text for one in blocks(page) if one.language == "python"]
    (tmp_path / "test_page.py").write_text("\n\n".join(python))
    # The suite on a clock that really passes takes minutes: a few of its tests are enough here.
    chosen = ["-k", "not OwnClock or due or priority"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreloadedCommand]:
    with PreloadedCommand(tmp_path_factory.mktemp("command")) as command:
        yield command


@CURL
@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page in CONSOLES if page not in CHAPTERS], ids=name_of)
def test_commands_print_what_the_page_shows(
    page: Path, tmp_path: Path, command: PreloadedCommand
) -> None:
    with ConsoleSession(tmp_path, command.binaries) as session:
        run_commands(page, session)


@CURL
def test_the_tutorial_works_from_its_first_chapter_to_its_last(tmp_path: Path) -> None:
    """Each command imports what it needs by itself, as a reader's does."""
    with ConsoleSession(tmp_path) as session:
        for page in CHAPTERS:
            run_commands(page, session)
    assert len(CHAPTERS) == 5


def run_commands(page: Path, session: ConsoleSession) -> None:
    for block in blocks(page):
        if block.title is not None:
            session.write_file(block)
        if block.language != "console" or block.kind == "stream":
            continue
        for shown in commands(block):
            if block.kind in ("background", "restart"):
                if block.kind == "restart":
                    session.press_control_c()
                session.start(shown)
                continue
            run = session.run_until if block.kind == "eventually" else session.run
            problem = run(shown)
            assert problem is None, f"{page.name}: $ {shown.line}\n\n{problem}"


def test_every_example_belongs_to_a_test() -> None:
    run = {"pytest", "mongodb", "postgresql", "mounted", "endpoint", "verify", "stream", "excerpt"}
    run.add("framework")
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                known = block.title or is_doctest(block) or is_script(block) or block.kind in run
                assert known, (page, block)
            if block.title is not None and block.kind != "framework":
                assert page in CONSOLES, (page, block.title)
            if block.language == "bash":
                assert page == DOCS / "how-to" / "use-the-http-api.md", page


def test_no_example_leaves_the_pages_unread() -> None:
    assert len(SCRIPTS) > 8
    assert len(CONSOLES) > 8
    assert os.path.commonpath([*SCRIPTS, *CONSOLES]) == str(DOCS)
