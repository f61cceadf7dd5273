"""One node leads, for as long as its term lasts, and a node without workers never does."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import Scheduler
from mainspring.engine.leader import TERM
from mainspring.stores.memory import MemoryStore
from mainspring.testing import FaultyStore, VirtualClock
from tests.support.engine import EventRecorder, SwitchableFaults, on_virtual_time


@on_virtual_time()
async def test_a_leader_without_its_store_leads_until_its_term_ends() -> None:
    store, faults = MemoryStore(VirtualClock()), SwitchableFaults()
    first = Scheduler(FaultyStore(store, faults), clock=VirtualClock(), inline=True)
    second = Scheduler(store, clock=VirtualClock(), inline=True)
    events = EventRecorder(first, "leader.*")
    async with first:
        await asyncio.sleep(1)
        async with second:
            assert (first.is_leader, second.is_leader) == (True, False)
            faults.failing = {"*"}
            for _ in range(40):
                await asyncio.sleep(1)
                assert not (first.is_leader and second.is_leader)
            assert (first.is_leader, second.is_leader) == (False, True)
            assert events.names == ["leader.elected", "leader.lost"]
            faults.failing = set()
            await asyncio.sleep(TERM.total_seconds())
            assert (first.is_leader, second.is_leader) == (False, True)
    assert events.names == ["leader.elected", "leader.lost"]


@pytest.mark.parametrize("leader_election", [True, False])
async def test_a_process_without_workers_never_leads(leader_election: bool) -> None:
    scheduler = Scheduler("memory://", workers=0, leader_election=leader_election)
    async with scheduler:
        assert not scheduler.is_leader
        assert not (await scheduler.stats()).is_leader
        assert not (await scheduler.health()).is_leader
