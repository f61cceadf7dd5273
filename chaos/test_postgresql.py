"""PostgreSQL servers that die, stay away for minutes, freeze, and give way to a standby; workers
that are killed over and over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.effect_counts import effect_test
from tests.support.fault_scenarios import failover, orphaned_slots
from tests.support.postgresql import shared_schema
from tests.support.postgresql.outages import crash, freeze, promoted_standby
from tests.support.process_crashes import crash_test
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.servers.postgresql import Postgres


@pytest.mark.timeout(900)
async def test_no_run_is_lost_or_done_twice_in_many_outages(tmp_path: Path) -> None:
    """`failover` checks the runs."""
    with Postgres() as server:
        faults = [crash(server), freeze(server, 8), crash(server, away=5), crash(server, away=120)]
        report = await failover(tmp_path, server.url, faults * 2, workers=3, timeout=300)
    print(report)
    assert report.runs >= report.acknowledged > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("attempt", range(3))
async def test_a_promoted_standby_has_what_was_acknowledged(tmp_path: Path, attempt: int) -> None:
    with promoted_standby() as (url, promote):
        report = await failover(tmp_path, url, [promote], workers=3, timeout=200)
    print(report)
    assert report.acknowledged > 0


@pytest.mark.timeout(600)
async def test_killed_and_stopped_workers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with Postgres() as server:
        account = await crash_test(
            tmp_path, runs=3000, kills=40, stops=4, seed=1, timeout=300, url=server.url
        )
    assert account.kills == 40
    print(account)


@pytest.mark.timeout(600)
async def test_effects(tmp_path: Path) -> None:
    with Postgres() as server:
        counts = await effect_test(
            tmp_path, url=server.url, runs=600, kills=30, stops=3, seed=1, timeout=300
        )
    assert counts.kills == 30
    print(counts)


@pytest.mark.timeout(600)
async def test_every_slot_runs_once_though_six_leaders_are_killed(
    tmp_path: Path, postgresql_url: str
) -> None:
    """`orphaned_slots` checks the runs of each slot."""
    with shared_schema(postgresql_url) as schema:
        assert await orphaned_slots(tmp_path, schema.url, kills=6) > 6
