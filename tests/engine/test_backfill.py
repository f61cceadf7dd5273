"""Backfill: past slots that have not run are run once each, whoever asks how often."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core.model import Job, Run, Source, slot_run_id
from mainspring.engine.backfill import Backfill
from mainspring.errors import InvalidInput, InvalidState, RunNotFound
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import EventRecorder, on_virtual_time
from tests.support.scheduler_fixtures import Make

HOUR = timedelta(hours=1)


def _hours(now: datetime, count: int) -> tuple[datetime, datetime]:
    """A range with so many full hours, which ends at a full hour."""
    end = now.replace(minute=0, second=0, microsecond=0)
    return end - count * HOUR, end


async def test_each_missed_slot_runs_once_with_its_own_time(make: Make) -> None:
    scheduler = make()
    ran: list[datetime] = []

    @scheduler.job("0 * * * *")
    async def report(ctx: RunContext) -> None:
        ran.append(ctx.scheduled_at)

    async with scheduler:
        start, end = _hours(await scheduler.now(), 5)
        slots = [start + n * HOUR for n in range(5)]
        found = await scheduler.backfill(report, start, end)
        assert found == Backfill(
            job_id="report", slots=5, added=tuple(slot_run_id("report", slot) for slot in slots)
        )
        for run_id in found.added:
            run = await scheduler.wait(run_id, "10s")
            assert (run.state, run.source, run.priority) == (State.SUCCEEDED, Source.BACKFILL, 0)
        assert sorted(ran) == slots
        again = await scheduler.backfill("report", start, end)
        assert again.added == ()
        assert again.existing == dict.fromkeys(found.added, State.SUCCEEDED)
    assert sorted(ran) == slots


async def test_a_dry_run_and_a_limit_say_where_to_go_on(make: Make) -> None:
    scheduler = make(workers=0)

    @scheduler.job("0 * * * *")
    async def report() -> None: ...

    async with scheduler:
        start, end = _hours(await scheduler.now(), 10)
        moved: list[tuple[int, int]] = []
        plan = await scheduler.backfill(
            "report", start, end, dry_run=True, progress=lambda *at: moved.append(at)
        )
        assert (plan.slots, len(plan.added), moved) == (10, 10, [(10, 10)])
        assert (await scheduler.list_runs()).items == []
        first = await scheduler.backfill("report", start, end, limit=4)
        assert (len(first.added), first.next_slot) == (4, start + 4 * HOUR)
        second = await scheduler.backfill("report", start, end, limit=4, priority=3)
        assert second.added == plan.added[4:8]
        assert (await scheduler.get_run(second.added[0])).priority == 3
        last = await scheduler.backfill("report", start, end, limit=4)
        assert (last.added, last.next_slot) == (plan.added[8:], None)


async def test_more_than_a_thousand_slots_need_a_limit(make: Make) -> None:
    scheduler = make(workers=0)

    @scheduler.job("* * * * *")
    async def tick() -> None: ...

    async with scheduler:
        now = await scheduler.now()
        with pytest.raises(InvalidInput, match=r"has 1,440 slots .* give a limit") as refused:
            await scheduler.backfill("tick", now - 24 * HOUR, now)
        assert refused.value.field == "limit"
        found = await scheduler.backfill("tick", now - 24 * HOUR, now, limit=1200)
        assert (found.slots, len(found.added)) == (1440, 1200)
        with pytest.raises(InvalidInput, match="more than 100,000 slots"):
            await scheduler.backfill("tick", now - 24 * 400 * HOUR, now, limit=10)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("end", {"end": timedelta(hours=1)}),
        ("end", {"start": timedelta(0), "end": timedelta(hours=-1)}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": True}),
        ("priority", {"priority": 10}),
    ],
)
async def test_what_makes_no_sense_is_refused(
    make: Make, field: str, given: dict[str, object]
) -> None:
    scheduler = make(workers=0)

    @scheduler.job("1h")
    async def report() -> None: ...

    async with scheduler:
        now = await scheduler.now()
        options: dict[str, Any] = {"start": -2 * HOUR, "end": 0 * HOUR, **given}
        start, end = now + options.pop("start"), now + options.pop("end")
        with pytest.raises(InvalidInput) as refused:
            await scheduler.backfill("report", start, end, **options)
        assert refused.value.field == field
        with pytest.raises(InvalidInput, match="has no time zone"):
            await scheduler.backfill("report", datetime(2026, 1, 1), end)


async def test_a_job_without_a_schedule_has_no_slots(make: Make) -> None:
    scheduler = make(workers=0)

    @scheduler.job
    async def plain() -> None: ...

    async with scheduler:
        now = await scheduler.now()
        with pytest.raises(InvalidState, match="has no schedule"):
            await scheduler.backfill("plain", now - HOUR, now)


async def test_a_skipped_slot_runs_beside_the_record_of_why(make: Make) -> None:
    scheduler = make(workers=0)

    @scheduler.job("0 * * * *")
    async def report() -> None: ...

    async with scheduler:
        now = await scheduler.now()
        start, end = _hours(now, 3)
        job = await scheduler.get_job("report")
        skipped = _skipped(job, start, now)
        await scheduler.store.add([skipped])
        found = await scheduler.backfill("report", start, end)
        again = f"{skipped.id}@backfill"
        assert found.added[0] == again
        assert (await scheduler.get_run(again)).scheduled_at == start
        assert (await scheduler.get_run(skipped.id)).reason == "overlap"
        repeated = await scheduler.backfill("report", start, end)
        assert (repeated.added, repeated.existing[again]) == ((), State.PENDING)
        # The record of why is older, so that it is pruned first.
        await scheduler.store.maintain(await scheduler.now() + timedelta(days=1), 1000)
        with pytest.raises(RunNotFound):
            await scheduler.get_run(skipped.id)
        repeated = await scheduler.backfill("report", start, end)
        assert (repeated.added, repeated.existing[again]) == ((), State.PENDING)


def _skipped(job: Job, slot: datetime, now: datetime) -> Run:
    return Run(
        id=slot_run_id(job.id, slot),
        job_id=job.id,
        handler=job.handler,
        created_at=now,
        scheduled_at=slot,
        run_at=slot,
        source=Source.SCHEDULE,
        state=State.SKIPPED,
        finished_at=now,
        reason="overlap",
    )


@on_virtual_time()
async def test_overlap_and_a_start_deadline_do_not_apply_and_concurrency_does() -> None:
    """Its slots wait for one another, and were late before they were added."""

    store = MemoryStore(VirtualClock())
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True)
    running = most = 0

    @scheduler.job("0 * * * *", overlap="skip", start_deadline="3s", concurrency=2)
    async def load() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(60)
        running -= 1

    async with scheduler:
        found = await scheduler.backfill(load, *_hours(await scheduler.now(), 8))
        assert len(found.added) == 8
        for run_id in found.added:
            assert (await scheduler.wait(run_id, "1h")).state is State.SUCCEEDED
    assert most == 2


async def test_two_at_once_report_each_run_once(make: Make) -> None:
    scheduler = make(workers=0)
    events = EventRecorder(scheduler)

    @scheduler.job("* * * * *")
    async def tick() -> None: ...

    async with scheduler:
        now = await scheduler.now()
        both = await asyncio.gather(
            *(scheduler.backfill("tick", now - 12 * HOUR, now) for _ in range(2))
        )
        added = [run_id for found in both for run_id in found.added]
        assert len(added) == len(set(added)) == both[0].slots
        assert all(len(found.added) + len(found.existing) == found.slots for found in both)
        assert sorted(e.run.id for e in events.of("run.enqueued") if e.run) == sorted(added)
