"""Several writers of one bucket that fails in every way; and planted bugs, which this finds."""

from __future__ import annotations

import pytest

from tests.support.objects.writers import race


@pytest.mark.parametrize("seed", range(25))
def test_writers_lose_nothing_and_do_nothing_twice(seed: int) -> None:
    found = race(seed)
    assert found.problems == []
    assert found.added
    assert found.ended


@pytest.mark.parametrize("seed", range(2))
def test_32_writers_at_once(seed: int) -> None:
    found = race(seed, writers=32, turns=3, faults=0.02)
    assert found.problems == []
    assert len(found.added) > 32
