"""Numbers with their nouns, and lists that are cut."""

from __future__ import annotations

import pytest

from mainspring.core.plurals import list_some, plural


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1234, "1,234 runs")]
)
def test_one_is_singular_and_everything_else_is_plural(count: int, text: str) -> None:
    assert plural(count, "run") == text


def test_an_irregular_plural_is_given() -> None:
    assert plural(1, "entry", "entries") == "1 entry"
    assert plural(2, "entry", "entries") == "2 entries"


def test_a_long_list_says_how_many_it_leaves_out() -> None:
    assert list_some(["a", "b"], 2) == "a, b"
    assert list_some(("a", "b", "c", "d"), 2) == "a, b and 2 more"
    assert list_some([str(number) for number in range(5000)], 1) == "0 and 4,999 more"
