"""A MongoDB replica set as it is by default (an election after ten seconds) and leases as they are
by default (thirty seconds): primaries killed and stepped down under load, for minutes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.fault_scenarios import failover, orphaned_slots
from tests.support.mongodb.elections import kill_primary, step_down
from tests.support.mongodb.majority_loss import KINDS, lose_unreplicated_writes
from tests.support.servers.mongodb import ReplicaSet, with_database


@pytest.mark.timeout(900)
async def test_no_run_is_lost_or_done_twice_in_ten_failovers(tmp_path: Path) -> None:
    """`failover` checks the runs."""
    with ReplicaSet() as servers:
        faults = [partial(kill_primary, servers), partial(step_down, servers)] * 5
        url = with_database(servers.url, "jobs")
        report = await failover(tmp_path, url, faults, workers=3, timeout=300)
    print(report)
    assert len(report.stalls) == len(faults)  # after each of them the store took runs again
    assert report.runs >= report.acknowledged > 0


@pytest.mark.timeout(900)
async def test_a_default_failover_costs_no_lease(tmp_path: Path) -> None:
    """Handlers that take longer than the lease, through elections of ten seconds: none is stopped,
    none is done again."""
    with ReplicaSet(election_timeout=10) as servers:
        url, faults = with_database(servers.url, "jobs"), [partial(kill_primary, servers)] * 2
        account = await failover(tmp_path, url, faults, lease=30, seconds=40, timeout=300)
    print(account)
    assert account.lost_leases == 0


@pytest.mark.timeout(600)
async def test_nothing_acknowledged_is_lost_when_a_primary_is_cut_off() -> None:
    with ReplicaSet(election_timeout=10) as servers:
        for _ in range(5):
            acknowledged, lost = await lose_unreplicated_writes(servers)
            assert acknowledged.keys() == KINDS
            assert lost == {}


@pytest.mark.timeout(600)
async def test_every_slot_runs_once_though_six_leaders_are_killed(tmp_path: Path) -> None:
    """`orphaned_slots` checks the runs of each slot."""
    kills = 6
    with ReplicaSet(election_timeout=10) as servers:
        slots = await orphaned_slots(tmp_path, with_database(servers.url, "jobs"), kills=kills)
    print(slots, "slots")
    assert slots > kills  # one is due each second, and each kill takes longer
