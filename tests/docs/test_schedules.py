"""The page for users says what is so."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_page_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "schedules.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 10
    assert results.failed == 0
