"""Jobs without a worker that has their handler: noticed, not fired, and fired again later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mainspring import Scheduler
from mainspring.errors import InvalidState
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock, run_virtual

MINUTE = 60


class SharedStore:
    """A store on virtual time, programs around it, and what they logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.store = MemoryStore(VirtualClock())
        self.caplog = caplog

    def program(self, *functions: str, **options: object) -> Scheduler:
        """A program with these functions, each a job every 10 seconds."""
        settings: dict[str, Any] = {"poll": "1m", **options}
        scheduler = Scheduler(self.store, clock=VirtualClock(), inline=True, **settings)
        for name in functions:

            async def work() -> None: ...

            scheduler.job("10s", id=name)(work)
        return scheduler

    @property
    def warnings(self) -> list[str]:
        return [r.getMessage() for r in self.caplog.records if r.levelno == logging.WARNING]


Story = Callable[[SharedStore], Awaitable[None]]


def virtual(story: Story) -> Callable[[pytest.LogCaptureFixture], None]:
    def test(caplog: pytest.LogCaptureFixture) -> None:
        for seed in range(3):
            caplog.clear()

            async def main() -> None:
                await story(SharedStore(caplog))

            run_virtual(main, seed=seed)

    test.__name__ = story.__name__
    return test


async def slots(scheduler: Scheduler, job: str) -> int:
    return len((await scheduler.list_runs(job=job, limit=1000)).items)


@virtual
async def test_a_renamed_function_is_warned_about_at_start_and_soon_not_fired(
    shared: SharedStore,
) -> None:
    async with shared.program("old_name"):
        await asyncio.sleep(15)
    after = shared.program("new_name")
    async with after:
        await asyncio.sleep(1)
        [warning] = shared.warnings
        assert "the handler 'old_name' of job old_name" in warning
        assert "@scheduler.job(id='old_name', …) on the new function keeps the job" in warning
        assert warning.endswith("If its code is gone, remove the job")
        assert (await after.job_health("old_name")).status == "orphaned"
        assert (await after.job_health("new_name")).status == "unknown"
        await asyncio.sleep(2 * MINUTE)
        fired = await slots(after, "old_name")
        assert (await after.health()).jobs_without_worker == ("old_name",)
        assert (await after.health()).orphaned_jobs == ("old_name",)
        assert (await after.health()).status == "degraded"
        await asyncio.sleep(10 * MINUTE)
        assert await slots(after, "old_name") == fired
        assert await slots(after, "new_name") > 60
        assert len([line for line in shared.warnings if "not fired any more" in line]) == 1
        await after.remove_job("old_name", force=True)
        await asyncio.sleep(MINUTE)
        assert (await after.health()).status == "healthy"


@virtual
async def test_it_fires_again_at_once_when_a_worker_has_the_handler(shared: SharedStore) -> None:
    async with shared.program("report"):
        await asyncio.sleep(15)
    other = shared.program("other")
    async with other:
        await asyncio.sleep(10 * MINUTE)
        before = await slots(other, "report")
        back = shared.program("report")
        async with back:
            await asyncio.sleep(4)  # the next slot comes a second later
            # The newest missed slot, and one record of all the others.
            assert await slots(other, "report") == before + 2
            found = (await other.list_runs(job="report", limit=1000)).items
            assert all(run.finished for run in found)
            assert [run.reason for run in found].count("misfire") == 1
            await asyncio.sleep(MINUTE)
            assert (await other.health()).status == "healthy"
            assert await slots(other, "report") >= before + 7


@virtual
async def test_a_job_of_another_fleet_is_fired_while_its_worker_lives(shared: SharedStore) -> None:
    mail, web = shared.program("mail"), shared.program("web")
    async with mail, web:
        await asyncio.sleep(5 * MINUTE)
        assert {worker.handlers for worker in await web.list_workers()} == {
            frozenset({"mail", "webhook"}),
            frozenset({"web", "webhook"}),
        }
        assert await slots(web, "mail") >= 29
        assert (await web.health()).jobs_without_worker == ()
    async with shared.program(workers=0) as looking:
        assert await looking.list_workers() == []


@virtual
async def test_a_worker_of_other_queues_does_not_count(shared: SharedStore) -> None:
    scheduler = shared.program("report", queues=["mail"])
    async with scheduler:
        await asyncio.sleep(1)
        assert (await scheduler.job_health("report")).status == "no_worker"
        await asyncio.sleep(2 * MINUTE)
    # Its code is there: nothing is to be removed.
    first, second = shared.warnings
    assert first == "no live worker takes queue 'default' of job report: start one that does"
    assert "not fired any more: no live worker takes queue 'default'" in second


@virtual
async def test_a_rename_leaves_one_run_however_often_the_program_restarts(
    shared: SharedStore,
) -> None:
    async with shared.program("old_name"):
        await asyncio.sleep(15)
    counted = []
    for _ in range(5):
        after = shared.program("new_name")
        async with after:
            await asyncio.sleep(2 * MINUTE)
            counted.append(await slots(after, "old_name"))
            assert (await after.health()).orphaned_jobs == ("old_name",)
        await asyncio.sleep(5 * MINUTE)
    # The grace was given once: further starts leave no runs.
    assert counted == counted[:1] * 5
    async with shared.program(workers=0) as looking:
        left = (await looking.list_runs(job="old_name")).items
    assert [run.state for run in left if run.reason is None] == ["pending", "succeeded"]
    assert {run.reason for run in left} == {None, "overlap"}
    back = shared.program("old_name", "new_name")
    async with back:
        await asyncio.sleep(MINUTE)
        assert (await back.health()).jobs_without_worker == ()
        assert await slots(back, "old_name") > counted[0] + 5
    # Its absence is forgotten: the next one has a grace again.
    async with shared.program("new_name") as after:
        before = await slots(after, "old_name")
        await asyncio.sleep(30)
        assert await slots(after, "old_name") > before


async def _work() -> None: ...


def workflow(shared: SharedStore, middle: str, **options: object) -> Scheduler:
    """A program with the jobs extract (every 10 seconds) → middle → report."""
    scheduler = shared.program("extract", **options)
    scheduler.job(id=middle, after="extract")(_work)
    scheduler.job(id="report", after=["extract", middle])(_work)
    return scheduler


@virtual
async def test_a_renamed_follower_is_reported_and_gets_no_more_runs(shared: SharedStore) -> None:
    async with workflow(shared, "load"):
        await asyncio.sleep(15)
    async with workflow(shared, "load_all") as after:
        await asyncio.sleep(1)
        [warning] = shared.warnings
        assert "the handler 'load' of job load" in warning
        await asyncio.sleep(2 * MINUTE)
        found = await after.health()
        assert (found.status, found.orphaned_jobs) == ("degraded", ("load",))
        assert found.jobs_without_worker == ("load",)
        fired = await slots(after, "load")
        assert fired <= 8
        await asyncio.sleep(10 * MINUTE)
        await after.trigger("extract")
        async with shared.program(workers=0) as producer:
            await producer.trigger("extract")
            await producer.chain("extract", "extract")
        await asyncio.sleep(5)
        assert await slots(after, "load") == fired
        assert await slots(after, "load_all") > 60
        assert await slots(after, "report") > 60  # in the code of now it comes after load_all
        assert len([line for line in shared.warnings if "gets no more runs" in line]) == 1
        assert (await after.explain("load")).sentence == "no live worker has its handler 'load'"
        assert [job.id for job in await after.prune_orphans()] == ["load"]
        await asyncio.sleep(MINUTE)
        assert (await after.health()).status == "healthy"


@virtual
async def test_a_rare_follower_keeps_the_run_that_waits_for_its_program(
    shared: SharedStore,
) -> None:
    first = shared.program()
    first.job(id="extract")(_work)
    second = shared.program()
    second.job(id="load", after="extract")(_work)
    async with first:
        async with second:
            await asyncio.sleep(1)
        await asyncio.sleep(30 * MINUTE)
        for _ in range(3):
            await first.trigger("extract")
            await asyncio.sleep(MINUTE)
        [waits] = (await first.list_runs(job="load")).items
        assert waits.state == "pending"


@virtual
async def test_orphans_are_removed_and_jobs_of_others_stay(shared: SharedStore) -> None:
    async with shared.program("old_name") as before:
        await before.add_job("by_hand", handler="old_name", schedule="10s")
        await asyncio.sleep(15)
    async with shared.program("new_name") as after:
        await asyncio.sleep(1)
        assert [job.id for job in await after.prune_orphans(dry_run=True)] == ["old_name"]
        assert (await after.list_jobs()).items[-1].id == "old_name"
        await asyncio.sleep(30)  # a slot of the old job is pending
        assert [job.id for job in await after.prune_orphans()] == ["old_name"]
        assert [job.id for job in (await after.list_jobs()).items] == ["by_hand", "new_name"]
        assert (await after.job_health("by_hand")).status == "no_worker"
        left = (await after.list_runs(job="old_name", state="pending")).items
        assert left == []
        assert await after.prune_orphans() == []


@virtual
async def test_without_a_live_worker_orphans_are_removed_only_by_force(shared: SharedStore) -> None:
    async with shared.program("report"):
        await asyncio.sleep(1)
    async with shared.program(workers=0) as looking:
        with pytest.raises(InvalidState, match="no worker that runs your code is alive"):
            await looking.prune_orphans()
        assert [job.id for job in await looking.prune_orphans(force=True)] == ["report"]
    async with shared.program("mine", workers=0) as producer:  # its own handlers are there
        assert await producer.prune_orphans(force=True) == []


@virtual
async def test_a_worker_without_code_does_not_call_for_the_removal_of_jobs(
    shared: SharedStore,
) -> None:
    """As `mainspring serve` does, started while the program is stopped."""
    async with shared.program("report", "mail"):
        await asyncio.sleep(15)
    async with shared.program() as service:
        await asyncio.sleep(2 * MINUTE)
        first, *later = shared.warnings
        assert first == (
            "no live worker runs the program that defines mail, report: they wait until it is"
            " started"
        )
        assert not any("remove" in line or "prune" in line for line in later)
        assert (await service.job_health("report")).status == "no_worker"
        with pytest.raises(InvalidState):
            await service.prune_orphans()
        assert len(await service.prune_orphans(dry_run=True, force=True)) == 2
