"""All firing is paused: no node fires, slots that pass do not run later, and jobs are unchanged."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Client, Run, Scheduler, State
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time


def node(store: MemoryStore, **options: Any) -> Scheduler:
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True, **options)

    @scheduler.job("10s", misfire="all", overlap="allow")
    async def tick() -> None: ...

    @scheduler.job(run_on_start=True)
    async def begin() -> None: ...

    return scheduler


async def runs_of(client: Client, job: str) -> list[Run]:
    return (await client.list_runs(job=job)).items[::-1]


@on_virtual_time()
async def test_slots_that_pass_during_the_pause_leave_one_skipped_run() -> None:
    store = MemoryStore(VirtualClock())
    async with node(store) as one, node(store) as other:
        await asyncio.sleep(25)
        before = await one.get_job("tick")
        since = await other.pause_all()
        assert await one.pause_all() == since == await one.paused_since()
        await asyncio.sleep(60)
        assert len(await runs_of(one, "tick")) == 2
        told = await one.explain("tick")
        assert told.code == "all_paused"
        assert told.sentence.endswith(": mainspring resume --all resumes it")
        triggered = await one.trigger("tick")
        assert (await one.wait(triggered.id, 5)).state is State.SUCCEEDED
        paused = await one.get_job("tick")
        assert paused.version == before.version  # the pause has not touched it
        assert before.next_run_at is not None
        assert paused.next_run_at == before.next_run_at + timedelta(seconds=60)  # still to come
        assert await other.resume_all() is True
        assert await other.resume_all() is False
        await asyncio.sleep(20)
        made = [run for run in await runs_of(one, "tick") if run.id != triggered.id]
        states = [run.state for run in made]
        assert states == ["succeeded", "succeeded", "skipped", "succeeded", "succeeded"]
        gap = made[2]
        assert gap.reason == "paused"
        assert gap.result["count"] == 6
        assert gap.result["first"] == before.next_run_at
        told = await one.explain(gap.id)
        last = f"{gap.result['last']:%Y-%m-%dT%H:%M:%SZ}"
        assert told.sentence == (f"all firing was paused while 6 slots passed, the last at {last}")
        assert (await one.explain("tick", at=gap.result["last"])).code == "all_paused"


@on_virtual_time()
async def test_job_that_is_paused_by_itself_stays_paused() -> None:
    async with node(MemoryStore(VirtualClock())) as scheduler:
        await scheduler.pause_job("tick")
        await scheduler.pause_all()
        await asyncio.sleep(30)
        await scheduler.resume_all()
        await asyncio.sleep(30)
        assert await runs_of(scheduler, "tick") == []
        assert (await scheduler.get_job("tick")).enabled is False


@on_virtual_time()
async def test_pause_outlasts_a_restart_and_holds_back_what_runs_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore(VirtualClock())
    async with Client(store, clock=VirtualClock(), inline=True) as client:
        since = await client.pause_all()
    async with node(store) as scheduler:
        await asyncio.sleep(30)
        health = await scheduler.health()
        assert (health.paused_since, health.status) == (since, "healthy")
        assert (await scheduler.list_runs()).items == []
    assert "all firing is paused since" in caplog.text


@on_virtual_time()
async def test_node_that_is_not_enabled_fires_nothing_and_runs_what_is_enqueued() -> None:
    store = MemoryStore(VirtualClock())
    async with node(store, enabled=False) as scheduler:
        await asyncio.sleep(60)
        assert (await scheduler.list_runs()).items == []
        run = await scheduler.enqueue("tick")
        assert (await scheduler.wait(run.id, 5)).state is State.SUCCEEDED
        health = await scheduler.health()
        assert (health.enabled, health.is_leader) == (False, False)
        async with node(store) as firing:
            await asyncio.sleep(25)
            assert len(await runs_of(firing, "begin")) == 1
            assert len(await runs_of(firing, "tick")) > 2
            assert firing.is_leader


@on_virtual_time()
async def test_nodes_that_are_not_enabled_still_prune() -> None:
    store = MemoryStore(VirtualClock())
    async with node(store, enabled=False, retention="10s") as scheduler:
        run = await scheduler.enqueue("tick")
        await scheduler.wait(run.id, 5)
        await asyncio.sleep(100)
        assert (await scheduler.list_runs()).items == []


@pytest.mark.parametrize("back", [3600, 86400])
@on_virtual_time()
async def test_pause_that_ended_later_than_now_holds_nothing_back(back: int) -> None:
    """The clock was set back since, into the pause or before it."""

    clock = VirtualClock()
    store = MemoryStore(clock)
    async with Scheduler(store, clock=clock, inline=True) as scheduler:
        await scheduler.pause_all()
        await asyncio.sleep(2 * 3600)
        await scheduler.resume_all()
        clock.offset -= back

        @scheduler.job("10s")
        async def late() -> None: ...

        await asyncio.sleep(65)
        made = await runs_of(scheduler, "late")
        assert [run.state for run in made] == ["succeeded"] * 6
