"""The simulated cluster's work, faults and invariants on a real MongoDB, in real time: in short.
`python -m tests.support.mongodb --seeds 60` runs more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.mongodb.watched_database import PLANTED, WatchedDatabase
from tests.support.servers.mongodb import ReplicaSet
from tests.support.simulation.monitor import INVARIANTS
from tests.support.simulation.real_time import Planted, hunt, simulate_for_real

MET = ("claimed", "made pending", "raised", "returned")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One server: only clients fail here. Servers fail in
    tests/stores/mongodb/test_fault_scenarios.py."""
    with ReplicaSet(1) as servers:
        yield servers.url


@pytest.mark.timeout(300)
def test_seeds_on_mongodb(url: str) -> None:
    counted: Counter[str] = Counter()
    for report in simulate_for_real(range(2), partial(WatchedDatabase, url)):
        assert not report.violations, "\n".join(map(str, report.violations))
        counted += report.counted
    assert [what for what in MET if not counted[what]] == []


IN_SHORT = ("no fence", "claim by id")  # the others need minutes: chaos/test_mongodb_seeds.py


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", [b for b in PLANTED if b.name in IN_SHORT], ids=lambda b: b.name)
def test_planted_bug_is_caught_on_mongodb(url: str, bug: Planted) -> None:
    assert bug.caught_by <= INVARIANTS.keys()
    report = hunt(bug, partial(WatchedDatabase, url))
    assert report is not None, f"nothing noticed it: {bug.description}"
    assert report.violations[0].invariant in bug.caught_by, "\n".join(map(str, report.violations))
