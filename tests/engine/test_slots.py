"""Schedules on virtual time: when slots fire, overlap and misfire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Event, Misfire, Run, RunContext, Scheduler, State, every
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store
from mainspring.testing import VirtualClock
from tests.support.engine import LONG, on_virtual_time
from tests.support.scheduler_kill import kill

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class SharedStore:
    """A store on virtual time, and schedulers that come and go around it."""

    def __init__(self) -> None:
        self.store = MemoryStore(VirtualClock())
        self.events: list[Event] = []

    def scheduler(self, store: Store | None = None, **options: Any) -> Scheduler:
        made = Scheduler(store or self.store, clock=VirtualClock(), inline=True, **options)
        made.on("*", self.events.append)
        return made

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


virtual = on_virtual_time(SharedStore, seeds=3)


@asynccontextmanager
async def killed(scheduler: Scheduler) -> AsyncIterator[Scheduler]:
    """Run it, and let it die without a word: nothing is given back or resigned."""
    await scheduler.start()
    try:
        yield scheduler
    finally:
        kill(scheduler)


async def runs(scheduler: Scheduler, job: str) -> list[Run]:
    """All of them, by their slots."""
    found = (await scheduler.list_runs(job=job, limit=1000)).items
    return sorted(found, key=lambda run: run.scheduled_at)


@virtual
async def test_cron_fires_at_its_slots_and_not_when_made(shared: SharedStore) -> None:
    scheduler = shared.scheduler()
    fired: list[datetime] = []

    @scheduler.job("*/5 * * * *")
    async def tick(ctx: RunContext) -> None:
        fired.append(ctx.scheduled_at)
        assert await shared.store.now() - ctx.scheduled_at < timedelta(seconds=1)

    await asyncio.sleep(90)
    async with scheduler:
        job = await scheduler.get_job("tick")
        assert job.next_run_at == at(300)
        assert job.last_run_at is None
        await asyncio.sleep(200)
        assert fired == []
        await asyncio.sleep(700)
        job = await scheduler.get_job("tick")
    assert fired == [at(300), at(600), at(900)]
    assert (job.last_run_at, job.next_run_at) == (at(900), at(1200))


@virtual
async def test_an_interval_keeps_its_anchor_over_restarts(shared: SharedStore) -> None:
    fired: list[datetime] = []
    for rest in (12, 9, 14):  # started again at odd moments
        scheduler = shared.scheduler()

        @scheduler.job("10s")
        async def tick(ctx: RunContext) -> None:
            fired.append(ctx.scheduled_at)
            await asyncio.sleep(0.3)

        async with scheduler:
            await asyncio.sleep(rest)
    assert fired == [at(10), at(20), at(30)]


@virtual
async def test_a_single_moment_fires_once(shared: SharedStore) -> None:
    for _ in range(2):
        scheduler = shared.scheduler()

        @scheduler.job(at(30))
        async def once() -> None: ...

        async with scheduler:
            await asyncio.sleep(60)
            assert [run.scheduled_at for run in await runs(scheduler, "once")] == [at(30)]
            assert (await scheduler.get_job("once")).next_run_at is None


# Overlap


async def overlapping(shared: SharedStore, overlap: Any) -> tuple[list[Run], int]:
    scheduler = shared.scheduler()
    now = most = 0

    @scheduler.job("10s", overlap=overlap)
    async def slow() -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        try:
            await asyncio.sleep(25)
        finally:
            now -= 1

    async with scheduler:
        await asyncio.sleep(42)
        await scheduler.pause_job("slow")
        await asyncio.sleep(120)
        return await runs(scheduler, "slow"), most


@pytest.mark.parametrize(
    ("overlap", "reasons", "at_once"),
    [
        ("skip", [None, "overlap", "overlap", None], 1),
        ("queue", [None] * 4, 1),
        ("allow", [None] * 4, 3),
    ],
)
@virtual
async def test_slots_that_come_during_a_run_overlap_as_the_policy_says(
    shared: SharedStore, overlap: str, reasons: list[str | None], at_once: int
) -> None:
    found, most = await overlapping(shared, overlap)
    assert [(r.scheduled_at, r.reason) for r in found] == [
        (at(10 * number), reason) for number, reason in enumerate(reasons, 1)
    ]
    for run in found:
        assert run.state is (State.SKIPPED if run.reason else State.SUCCEEDED)
    starts = [r.started_at for r in found if r.started_at]
    assert starts == sorted(starts)
    assert most == at_once
    assert len(shared.of("run.skipped")) == reasons.count("overlap")


@virtual
async def test_a_queued_slot_that_is_cancelled_and_retried_keeps_its_turn(
    shared: SharedStore,
) -> None:
    scheduler = shared.scheduler()
    running, most = 0, 0

    @scheduler.job("10s", overlap="queue")
    async def slow() -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(100)
        running -= 1

    async with scheduler:
        await asyncio.sleep(45)  # the first runs, three are queued
        await scheduler.pause_job("slow")
        _, second, _, _ = await runs(scheduler, "slow")
        await scheduler.cancel(second.id)
        await asyncio.sleep(1)  # the third waits for the first by now
        await scheduler.retry(second.id)
        await asyncio.sleep(600)
        ended = await runs(scheduler, "slow")
    assert [run.state for run in ended] == [State.SUCCEEDED] * 4
    assert most == 1
    assert [run.started_at for run in ended] == sorted(run.started_at or START for run in ended)


@virtual
async def test_overlap_replace_cancels_the_run_before(shared: SharedStore) -> None:
    found, _ = await overlapping(shared, "replace")
    assert [r.state for r in found] == [State.CANCELLED] * 3 + [State.SUCCEEDED]
    assert found[0].reason == f"replaced by {found[1].id}"
    assert [event.run and event.run.id for event in shared.of("run.cancelled")] == [
        run.id for run in found[:3]
    ]


# Missed slots


@pytest.mark.parametrize(
    ("misfire", "ran", "missed"),
    [
        ("once", [60, 360], [(120, 300, 4)]),
        (Misfire("skip", grace="5s"), [60], [(120, 360, 5)]),
        ("skip", [60, 360], [(120, 300, 4)]),
        ("all", [60, 120, 180, 240, 300, 360], []),
    ],
    ids=["once", "skip past its grace", "skip within its grace", "all"],
)
@virtual
async def test_slots_that_were_missed_run_as_the_misfire_policy_says(
    shared: SharedStore, misfire: Any, ran: list[int], missed: list[tuple[int, int, int]]
) -> None:
    """A job every minute, whose scheduler is away from second 70 to 375."""
    for rest, away in ((70, 305), (5, 0)):
        scheduler = shared.scheduler()
        scheduler.job("* * * * *", id="tick", misfire=misfire)(_nothing)
        async with scheduler:
            await asyncio.sleep(rest)
            found = await runs(scheduler, "tick")
        await asyncio.sleep(away)
    assert [r.scheduled_at for r in found if r.state is State.SUCCEEDED] == [at(s) for s in ran]
    gaps = [{"first": at(first), "last": at(last), "count": count} for first, last, count in missed]
    skipped = [r for r in found if r.state is State.SKIPPED]
    assert len(ran) + len(skipped) == len(found)
    assert [(r.scheduled_at, r.reason, r.result) for r in skipped] == [
        (gap["first"], "misfire", gap) for gap in gaps
    ]
    events = shared.of("schedule.missed")
    assert [(event.job_id, event.data) for event in events] == [("tick", gap) for gap in gaps]


# Pausing, triggering, registering again


@virtual
async def test_pause_resume_and_trigger(shared: SharedStore) -> None:
    scheduler = shared.scheduler()
    count = 0

    @scheduler.job("10s")
    async def tick() -> None:
        nonlocal count
        count += 1

    async with scheduler:
        paused = await scheduler.pause_job("tick")
        assert (paused.enabled, paused.next_run_at) == (False, None)
        assert (await scheduler.job_health("tick")).status == "paused"
        await asyncio.sleep(35)
        assert count == 0
        await scheduler.wait((await scheduler.trigger("tick")).id)
        assert count == 1
        resumed = await scheduler.resume_job("tick")
        assert (resumed.enabled, resumed.next_run_at) == (True, at(40))
        await asyncio.sleep(6)
        assert count == 2
        assert [r.reason for r in await runs(scheduler, "tick")] == [None, None]


@virtual
async def test_enabled_belongs_to_the_operator(shared: SharedStore) -> None:
    for retries in (1, 2):
        scheduler = shared.scheduler()

        @scheduler.job("10s", retries=retries, tags=["a", "b"], metadata={"n": retries})
        async def tick() -> None: ...

        async with scheduler:
            job = await scheduler.get_job("tick")
            assert job.enabled is (retries == 1)
            assert job.policy.retries == retries
            assert job.metadata == {"n": retries}
            await scheduler.pause_job("tick")
            await asyncio.sleep(30)
            assert await runs(scheduler, "tick") == []


@virtual
async def test_run_on_start_gives_one_run_for_two_nodes(shared: SharedStore) -> None:
    nodes = [shared.scheduler(), shared.scheduler()]
    for node in nodes:

        @node.job(run_on_start=True)
        async def warm() -> None: ...

    async with nodes[0]:
        await asyncio.sleep(20)
        async with nodes[1]:
            await asyncio.sleep(5)
            first, shared_start = await runs(nodes[0], "warm")
    assert first.state is State.SUCCEEDED
    assert (shared_start.state, shared_start.reason) == (
        State.SKIPPED,
        "another node started too",
    )
    assert first.worker == shared_start.result["node"]
    await asyncio.sleep(120)
    async with nodes[0]:
        await asyncio.sleep(1)
        assert [run.state for run in await runs(nodes[0], "warm")].count(State.SUCCEEDED) == 2


@virtual
async def test_run_on_start_runs_at_each_start_of_a_program_by_itself(shared: SharedStore) -> None:
    """Also at three starts within a minute: the node before each of them is gone."""
    for _ in range(3):
        scheduler = shared.scheduler()

        @scheduler.job(run_on_start=True)
        async def warm() -> None: ...

        async with scheduler:
            await asyncio.sleep(5)
            states = [run.state for run in await runs(scheduler, "warm")]
    assert states == [State.SUCCEEDED] * 3


@virtual
async def test_jitter_spreads_within_bounds_and_the_same_everywhere(shared: SharedStore) -> None:
    scheduler = shared.scheduler()

    @scheduler.job("1m", jitter="20s")
    async def tick() -> None: ...

    async with scheduler:
        await asyncio.sleep(60 * 10 + 30)
        found = await runs(scheduler, "tick")
        made = (await scheduler.get_job("tick")).created_at
    assert len(found) == 10
    waits = [r.run_at - r.scheduled_at for r in found]
    assert all(timedelta() <= wait <= timedelta(seconds=20) for wait in waits)
    assert len(set(waits)) == 10
    elsewhere = every("1m", jitter="20s").bind("tick", made)
    assert [elsewhere.delay(r.scheduled_at) for r in found] == waits


# Several nodes


@virtual
async def test_another_node_takes_over_when_the_leader_dies(shared: SharedStore) -> None:
    first, second = shared.scheduler(), shared.scheduler()
    fired: list[datetime] = []
    for node in (first, second):

        @node.job("10s")
        async def tick(ctx: RunContext) -> None:
            fired.append(ctx.scheduled_at)

    async with killed(first):
        await asyncio.sleep(15)
        assert first.is_leader
        await second.start()
        await asyncio.sleep(10)
        assert not second.is_leader
    await asyncio.sleep(60)
    assert second.is_leader
    await second.stop()
    assert fired == [at(s) for s in (10, 20, 30, 40, 50, 60, 70, 80)]
    assert len(shared.of("leader.elected")) == 2


@virtual
async def test_a_program_that_was_killed_and_started_again_soon_fires_on_time(
    shared: SharedStore,
) -> None:
    """Its former self still leads by the store, for up to a term."""
    first, second = shared.scheduler(), shared.scheduler()
    for node in (first, second):

        @node.job("1s")
        async def tick() -> None: ...

    async with killed(first):
        await asyncio.sleep(2.5)
        assert first.is_leader
    async with second:
        await asyncio.sleep(10)
        assert not second.is_leader
        found = await runs(second, "tick")
    ran = [run.scheduled_at for run in found if run.state == "succeeded"]
    assert {at(s) for s in range(6, 12)} <= set(ran)


@on_virtual_time()
async def test_without_leader_election_every_node_fires_at_once() -> None:
    shared = SharedStore()
    scheduler = shared.scheduler(leader_election=False)
    late: list[timedelta] = []

    @scheduler.job("10s")
    async def tick(ctx: RunContext) -> None:
        late.append(await shared.store.now() - ctx.scheduled_at)

    async with scheduler:
        assert scheduler.is_leader
        await asyncio.sleep(60)
    assert late == [timedelta()] * 5  # the sixth is due when it ends
    assert shared.of("leader.elected") == []


async def _nothing() -> None: ...


@pytest.mark.parametrize("url", ["memory", "sqlite"])
async def test_slots_fire_in_real_time(url: str, tmp_path: Any) -> None:
    """The same with threads and a real clock: a cron of each second, an interval."""
    store = "memory://" if url == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(store)
    seen: dict[str, list[datetime]] = {"each": [], "often": []}
    enough = asyncio.Event()

    async def note(ctx: RunContext) -> None:
        seen[ctx.job_id].append(ctx.scheduled_at)
        if len(seen["each"]) >= 2 and len(seen["often"]) >= 5:
            enough.set()

    scheduler.job("* * * * * *", id="each")(note)

    @scheduler.job("200ms", overlap="allow", misfire="all")  # a busy machine skips none either
    async def often(ctx: RunContext) -> None:
        await note(ctx)

    async with scheduler:
        made = (await scheduler.get_job("often")).created_at
        async with asyncio.timeout(LONG):
            await enough.wait()
    assert all(slot.microsecond == 0 for slot in seen["each"])
    step = timedelta(milliseconds=200)
    assert [slot - made for slot in sorted(seen["often"])[:5]] == [step * n for n in range(1, 6)]


@virtual
async def test_slots_that_are_due_when_a_job_is_paused_leave_a_record(shared: SharedStore) -> None:
    for job_id in ("one", "many"):
        node = shared.scheduler()

        @node.job("10s", id=job_id)
        async def tick() -> None: ...

        async with node:
            await asyncio.sleep(15)
        await asyncio.sleep(30)  # nothing fires
        async with shared.scheduler(workers=0) as client:
            if job_id == "one":
                await client.pause_job(job_id)
            else:
                await client.pause_jobs([job_id])
            ran, passed = await runs(client, job_id)
        assert (ran.state, passed.state, passed.reason) == (
            State.SUCCEEDED,
            State.SKIPPED,
            "job paused",
        )
        assert passed.result["count"] == 3
