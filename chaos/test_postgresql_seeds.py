"""Seeds of the simulated cluster on a real PostgreSQL."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.postgresql.watched_schema import WatchedSchema
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.simulation.real_time import simulate_for_real


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 24, 4))
def test_seeds(postgresql_url: str, first: int) -> None:
    for report in simulate_for_real(
        range(first, first + 4), partial(WatchedSchema, postgresql_url)
    ):
        assert not report.violations, "\n".join(map(str, report.violations))
