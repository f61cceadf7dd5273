"""Real workers on servers that are killed, stay away, freeze, and give way to a standby; what
handlers wrote in transactions. chaos/test_postgresql.py runs them for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.effect_counts import effect_test
from tests.support.fault_scenarios import failover, orphaned_slots, skewed
from tests.support.postgresql import shared_schema
from tests.support.postgresql.outages import crash, freeze, promoted_standby
from tests.support.servers.postgresql import Postgres


@pytest.mark.thorough
async def test_a_server_that_is_killed_and_one_that_freezes(tmp_path: Path) -> None:
    with Postgres() as server:
        account = await failover(tmp_path, server.url, [crash(server), freeze(server, 5)])
    assert account.acknowledged > 50


@pytest.mark.thorough
async def test_a_standby_that_is_promoted_has_what_was_acknowledged(tmp_path: Path) -> None:
    """A URL with both hosts finds the new primary."""
    with promoted_standby() as (url, promote):
        account = await failover(tmp_path, url, [promote])
    assert account.acknowledged > 20


@pytest.mark.thorough
async def test_effects_of_workers_that_are_killed(tmp_path: Path) -> None:
    with Postgres() as server:
        counts = await effect_test(
            tmp_path, url=server.url, runs=100, kills=6, stops=1, seed=1, timeout=120
        )
    assert counts.kills == 6


async def test_killed_leaders_lose_and_repeat_no_slot(tmp_path: Path, postgresql_url: str) -> None:
    with shared_schema(postgresql_url) as schema:
        assert await orphaned_slots(tmp_path, schema.url, kills=2) > 5


@pytest.mark.thorough
async def test_workers_with_wrong_clocks(tmp_path: Path, postgresql_url: str) -> None:
    with shared_schema(postgresql_url) as schema:
        assert await skewed(tmp_path, schema.url) == []


@pytest.mark.thorough
async def test_a_store_that_trusts_the_workers_clocks_would_be_noticed(
    tmp_path: Path, postgresql_url: str
) -> None:
    with shared_schema(postgresql_url) as schema:
        assert await skewed(tmp_path, schema.url, planted="own-clock")
