"""The simulated cluster's work, faults and invariants on a real PostgreSQL, in real time: in short.
chaos/test_postgresql_seeds.py runs more."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.support.postgresql.watched_schema import PLANTED, WatchedSchema
from tests.support.simulation.monitor import INVARIANTS
from tests.support.simulation.real_time import Planted, hunt, simulate_for_real

MET = ("claimed", "made pending", "raised", "returned")


@pytest.mark.timeout(300)
def test_seeds_on_postgresql(postgresql_url: str) -> None:
    counted: Counter[str] = Counter()
    for report in simulate_for_real(range(2), partial(WatchedSchema, postgresql_url)):
        assert not report.violations, "\n".join(map(str, report.violations))
        counted += report.counted
    assert [what for what in MET if not counted[what]] == []


IN_SHORT = ("no fence", "no row locks")  # the other needs minutes: chaos/test_postgresql_seeds.py


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", [b for b in PLANTED if b.name in IN_SHORT], ids=lambda b: b.name)
def test_planted_bug_is_caught_on_postgresql(postgresql_url: str, bug: Planted) -> None:
    assert bug.caught_by <= INVARIANTS.keys()
    report = hunt(bug, partial(WatchedSchema, postgresql_url))
    assert report is not None, f"nothing noticed it: {bug.description}"
    assert report.violations[0].invariant in bug.caught_by, "\n".join(map(str, report.violations))
