"""Seeds of the simulated cluster on a real PostgreSQL, and planted bugs: some take minutes."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.postgresql.watched_schema import PLANTED, WatchedSchema
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.simulation.real_time import Planted, hunt, simulate_for_real


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 24, 4))
def test_seeds(postgresql_url: str, first: int) -> None:
    for report in simulate_for_real(
        range(first, first + 4), partial(WatchedSchema, postgresql_url)
    ):
        assert not report.violations, "\n".join(map(str, report.violations))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(postgresql_url: str, bug: Planted) -> None:
    report = hunt(bug, partial(WatchedSchema, postgresql_url))
    assert report is not None, f"nothing noticed it: {bug.description}"
    assert report.violations[0].invariant in bug.caught_by, "\n".join(map(str, report.violations))
