"""Seeds of the simulated cluster on a real MongoDB, and every bug planted there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.mongodb.watched_database import PLANTED, WatchedDatabase
from tests.support.servers.mongodb import ReplicaSet
from tests.support.simulation.real_time import Planted, hunt, simulate_for_real


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ReplicaSet(1) as servers:
        yield servers.url


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 24, 4))
def test_seeds(url: str, first: int) -> None:
    for report in simulate_for_real(range(first, first + 4), partial(WatchedDatabase, url)):
        assert not report.violations, "\n".join(map(str, report.violations))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_bug_is_caught(url: str, bug: Planted) -> None:
    report = hunt(bug, partial(WatchedDatabase, url), most=72)
    assert report is not None, f"nothing noticed it: {bug.description}"
    assert report.violations[0].invariant in bug.caught_by, "\n".join(map(str, report.violations))
