"""A MongoDB replica set as it is by default (an election after ten seconds) and leases as they are
by default (thirty seconds): primaries killed and stepped down under load, for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mongodb.fault_scenarios import failover, kill_primary, orphaned_slots, step_down
from tests.support.mongodb.majority_loss import KINDS, cut
from tests.support.servers.mongodb import ReplicaSet, with_database


@pytest.mark.timeout(900)
async def test_many_failovers(tmp_path: Path) -> None:
    with ReplicaSet() as servers:
        deeds = [kill_primary, step_down] * 5
        print(await failover(tmp_path, servers, deeds, workers=3, timeout=300))


@pytest.mark.timeout(900)
async def test_a_default_failover_costs_no_lease(tmp_path: Path) -> None:
    """Handlers that take longer than the lease, through elections of ten seconds: none is stopped,
    none is done again."""
    with ReplicaSet(election_timeout=10) as servers:
        account = await failover(
            tmp_path, servers, [kill_primary, kill_primary], lease=30, seconds=40, timeout=300
        )
    print(account)
    assert account.lost_leases == 0


@pytest.mark.timeout(600)
async def test_cut_after_cut() -> None:
    with ReplicaSet(election_timeout=10) as servers:
        for _ in range(5):
            told, lost = await cut(servers)
            assert told.keys() == KINDS
            assert lost == {}


@pytest.mark.timeout(600)
async def test_leader_after_leader(tmp_path: Path) -> None:
    with ReplicaSet(election_timeout=10) as servers:
        print(await orphaned_slots(tmp_path, with_database(servers.url, "jobs"), kills=6), "slots")
