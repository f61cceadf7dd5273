"""A number with its noun."""

from __future__ import annotations

import pytest

from mainspring.core.plurals import plural


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1234, "1,234 runs")]
)
def test_one_is_singular_and_everything_else_is_plural(count: int, text: str) -> None:
    assert plural(count, "run") == text


def test_an_irregular_plural_is_given() -> None:
    assert plural(1, "entry", "entries") == "1 entry"
    assert plural(2, "entry", "entries") == "2 entries"
