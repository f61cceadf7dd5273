"""Jobs with `each_node`: a slot or a trigger runs once on each live worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core.model import Run
from mainspring.errors import InvalidState
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time
from tests.support.scheduler_fixtures import Make
from tests.support.scheduler_kill import kill

MINUTE = 60
SLOT_MINUTES = 10


class Cluster:
    """Workers on one store and virtual time, and what each of them ran."""

    def __init__(self) -> None:
        self.store = MemoryStore(VirtualClock())
        self.ran: list[tuple[str, datetime]] = []
        self.fails: set[str] = set()
        self.takes = 0.0

    def worker(self, name: str, **options: Any) -> Scheduler:
        settings = {n: options.pop(n) for n in ("workers", "queues") if n in options}
        scheduler = Scheduler(self.store, clock=VirtualClock(), inline=True, poll="1m", **settings)

        @scheduler.job(**{"schedule": f"*/{SLOT_MINUTES} * * * *", "each_node": True, **options})
        async def clean(ctx: RunContext) -> str:
            await asyncio.sleep(self.takes)
            if name in self.fails:
                raise ValueError(f"{name} is full")
            self.ran.append((name, ctx.scheduled_at))
            return name

        return scheduler

    def names(self) -> Counter[str]:
        return Counter(name for name, _ in self.ran)


virtual = on_virtual_time(Cluster, seeds=2)


def at(slot: int, minute: int = 0) -> datetime:
    """So many minutes after a slot, by its number."""
    return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(minutes=slot * SLOT_MINUTES + minute)


async def until(scheduler: Scheduler, moment: datetime) -> None:
    await asyncio.sleep((moment - await scheduler.now()).total_seconds())


def own_id(scheduler: Scheduler) -> str:
    return scheduler._settings.worker_id


async def slot_runs(scheduler: Scheduler, slot: datetime) -> dict[str, Run]:
    """The runs of a slot, by the worker that each is for."""
    runs = (await scheduler.list_runs(job="clean", limit=1000)).items
    return {run.handler.removeprefix("@"): run for run in runs if run.scheduled_at == slot}


@virtual
async def test_a_slot_runs_once_on_each_live_worker(cluster: Cluster) -> None:
    async with cluster.worker("a") as a, cluster.worker("b") as b:
        await until(a, at(1, 1))
        assert cluster.names() == {"a": 1, "b": 1}
        runs = await slot_runs(a, at(1))
        slot = f"clean@{at(1):%Y%m%dT%H%M%SZ}"
        assert {run.id for run in runs.values()} == {f"{slot}@{own_id(a)}", f"{slot}@{own_id(b)}"}
        assert {run.worker for run in runs.values()} == {own_id(a), own_id(b)}
        assert {run.result for run in runs.values()} == {"a", "b"}
        async with cluster.worker("c"):  # it takes part from the next slot on
            await until(a, at(2, 1))
            assert cluster.names() == {"a": 2, "b": 2, "c": 1}
        await until(a, at(3, 1))
        assert cluster.names() == {"a": 3, "b": 3, "c": 1}
        counted = (await cluster.store.counts(jobs=frozenset({"clean"}))).totals["clean"]
        assert counted.ended == {State.SUCCEEDED: 7}
    assert {slot for _, slot in cluster.ran} == {at(1), at(2), at(3)}


@virtual
async def test_a_trigger_and_a_delayed_run_run_on_each_worker_too(cluster: Cluster) -> None:
    async with cluster.worker("a") as a, cluster.worker("b") as b:
        await asyncio.sleep(1)  # each has announced itself
        run = await b.trigger("clean")
        assert run.handler == f"@{own_id(b)}"  # of its own run the caller can see the result
        assert (await b.wait(run.id, "1m")).result == "b"
        await asyncio.sleep(1)
        assert cluster.names() == {"a": 1, "b": 1}
        later = await a.enqueue("clean", delay="5m", dedupe_key="once")
        assert (await a.enqueue("clean", dedupe_key="once")).id == later.id
        async with cluster.worker("c"):  # it was not alive when the run was made
            await a.wait(later.id, "9m")
            await asyncio.sleep(1)
            assert cluster.names() == {"a": 2, "b": 2}


@virtual
async def test_a_killed_worker_does_not_hold_up_the_others(cluster: Cluster) -> None:
    """Neither its run that was running, nor its runs of the slots while it still counts as alive,
    nor a slot that queues behind them."""
    cluster.takes = 2
    options: dict[str, Any] = {"schedule": "*/3 * * * * *"}
    a, b, dead = (cluster.worker(name, **options) for name in ("a", "b", "c"))
    async with a:
        await asyncio.sleep(1)  # it leads: the slots of a leader that dies come late for a moment
        await b.start()
        await dead.start()
        await until(a, datetime(2030, 1, 1, 0, 1, 1, tzinfo=UTC))
        kill(dead)
        cluster.ran.clear()
        await asyncio.sleep(90)
        slots = Counter(slot for name, slot in cluster.ran if name in ("a", "b"))
        assert set(slots.values()) == {2}
        assert len(slots) == 30
        await asyncio.sleep(60)
        gone = [
            run
            for run in (await a.list_runs(job="clean", limit=1000)).items
            if run.handler == f"@{own_id(dead)}" and run.state is not State.SUCCEEDED
        ]
        assert {run.finished for run in gone} == {True}
        assert {run.reason for run in gone} >= {"lost", "overlap"}
        await b.stop()


@virtual
async def test_the_run_of_a_worker_that_died_before_it_took_it_is_skipped(
    cluster: Cluster,
) -> None:
    async with cluster.worker("a", schedule=None) as a:
        dead = cluster.worker("b", schedule=None)
        await dead.start()
        await asyncio.sleep(1)
        kill(dead)
        await a.trigger("clean")
        await asyncio.sleep(3 * MINUTE)
        [lost] = (await a.list_runs(job="clean", state="skipped")).items
        assert (lost.handler, lost.reason) == (f"@{own_id(dead)}", "its node is gone")
        why = await a.explain(lost.id)
        assert (why.code, own_id(dead) in why.sentence) == ("node_gone", True)
        await a.trigger("clean")
        assert len((await a.list_runs(job="clean", state="skipped")).items) == 1


@virtual
async def test_a_worker_that_dies_in_the_middle_of_its_run_fails_it(cluster: Cluster) -> None:
    cluster.takes = 20
    async with cluster.worker("a", schedule=None) as a:
        dead = cluster.worker("b", schedule=None)
        await dead.start()
        await asyncio.sleep(1)
        run = await a.trigger("clean")
        await asyncio.sleep(10)
        kill(dead)
        assert (await a.wait(run.id, "1m")).result == "a"
        other = run.id.replace(own_id(a), own_id(dead))
        lost = await a.wait(other, "10m")
        assert (lost.state, lost.reason, lost.attempt) == (State.FAILED, "lost", 1)
        assert "no other worker may start it again" in (await a.explain(other)).sentence


@virtual
async def test_retries_stay_on_their_worker(cluster: Cluster) -> None:
    cluster.fails = {"b"}
    options: dict[str, Any] = {"retries": 1, "retry_delay": "10s", "backoff": "fixed"}
    async with cluster.worker("a", **options) as a, cluster.worker("b", **options) as b:
        await asyncio.sleep(1)
        run = await b.trigger("clean")
        failed = await a.wait(run.id, "1m")
        assert (failed.state, failed.attempt) == (State.FAILED, 2)
        cluster.fails = set()
        await a.retry(run.id)
        assert (await a.wait(run.id, "1m")).result == "b"
    assert cluster.names() == {"a": 1, "b": 1}


@virtual
async def test_each_node_counts_for_the_limits_as_a_run_of_its_own(cluster: Cluster) -> None:
    cluster.takes = 10.0
    options: dict[str, Any] = {"schedule": None, "concurrency": 1, "rate": "2/m"}
    async with cluster.worker("a", **options) as a, cluster.worker("b", **options):
        await asyncio.sleep(1)
        await a.trigger("clean")
        await asyncio.sleep(15)
        assert sum(cluster.names().values()) == 1  # one after the other
        await asyncio.sleep(10)
        assert cluster.names() == {"a": 1, "b": 1}  # both within the rate


@virtual
async def test_a_slot_overlaps_on_the_worker_that_still_runs_the_last(cluster: Cluster) -> None:
    async with cluster.worker("a", workers=1) as a, cluster.worker("b") as b:
        await until(a, at(0, 9))
        cluster.takes = 1.5 * SLOT_MINUTES * MINUTE
        await until(a, at(1, 2))
        cluster.takes = 0
        slow = (await slot_runs(a, at(1)))[own_id(a)]
        await a.cancel((await slot_runs(a, at(1)))[own_id(b)].id)
        await until(a, at(2, 1))
        runs = await slot_runs(a, at(2))
        skipped = runs[own_id(a)]
        assert (skipped.state, skipped.reason) == (State.SKIPPED, "overlap")
        assert skipped.result == {"unfinished": [slow.id]}
        assert runs[own_id(b)].state is State.SUCCEEDED
        why = await a.explain("clean", at=at(2))
        assert (why.code, why.facts["nodes"]) == (
            "overlap",
            {own_id(a): "skipped", own_id(b): "succeeded"},
        )
        assert why.sentence.startswith(f"it succeeded on 1 of 2 nodes; on {own_id(a)}: ")
        await until(a, at(3, 1))
        assert {run.state for run in (await slot_runs(a, at(3))).values()} == {State.SUCCEEDED}
        assert (await a.explain("clean", at=at(3))).sentence == "it succeeded on 2 of 2 nodes"


@virtual
async def test_missed_slots_run_once_on_the_workers_that_are_back(cluster: Cluster) -> None:
    async with cluster.worker("a"):
        await asyncio.sleep(1)
    await asyncio.sleep(4 * SLOT_MINUTES * MINUTE)
    async with cluster.worker("a") as a, cluster.worker("b"):
        await asyncio.sleep(MINUTE)
        runs = await slot_runs(a, at(4))
        assert [slot for _, slot in cluster.ran] == [at(4)] * len(runs)
        await until(a, at(5, 1))  # a worker that joined later takes part from this slot on
        assert [slot for _, slot in cluster.ran][len(runs) :] == [at(5)] * 2


@virtual
async def test_only_workers_that_take_its_queue_take_part(cluster: Cluster) -> None:
    async with (
        cluster.worker("a", queue="disk") as a,
        cluster.worker("b", queue="disk", queues=["mail"]),
    ):
        await asyncio.sleep(1)
        await a.wait((await a.trigger("clean")).id, "1m")
        await asyncio.sleep(1)
        assert cluster.names() == {"a": 1}


@virtual
async def test_without_a_live_worker_the_run_is_skipped_and_says_why(cluster: Cluster) -> None:
    async with cluster.worker("a", schedule=None, workers=0) as client:
        run = await client.trigger("clean")
        assert (run.state, run.reason) == (State.SKIPPED, "no live worker can run it")
        assert (await client.wait(run.id, "1s")).state is State.SKIPPED
        assert (await client.explain(run.id)).code == "no_worker"


@virtual
async def test_a_follower_runs_once_after_all_workers_ran(cluster: Cluster) -> None:
    a, b = cluster.worker("a"), cluster.worker("b")
    counted: list[int] = []
    for scheduler in (a, b):

        @scheduler.job(id="report", after="clean")
        async def report(ctx: RunContext) -> None:
            counted.append(len(cluster.ran))
            assert {run.state for run in ctx.results.runs} == {State.SUCCEEDED}
            assert len(ctx.results.runs) == 2

        @scheduler.job(id="reload", after="report", each_node=True)
        async def reload() -> None:
            counted.append(-1)

    async with a, b:
        await until(a, at(1, 2))
        assert counted == [2, -1, -1]
        counted.clear()
        await a.chain("clean", "report", "reload")
        await asyncio.sleep(MINUTE)
    assert counted == [4, -1, -1]


@virtual
async def test_past_slots_of_an_each_node_job_cannot_be_backfilled(cluster: Cluster) -> None:
    async with cluster.worker("a") as a:
        await until(a, at(2, 1))
        with pytest.raises(InvalidState, match="runs on each node"):
            await a.backfill("clean", start=at(1), end=at(2))


async def test_two_workers_on_a_real_store(make: Make, file: str) -> None:
    ran: Counter[str] = Counter()
    schedulers = []
    for name in ("a", "b"):
        scheduler = make(file)

        @scheduler.job(id="clean", each_node=True)
        async def clean(name: str = name) -> None:
            ran[name] += 1

        schedulers.append(scheduler)
    a, b = schedulers
    async with a, b:
        async with asyncio.timeout(10):
            while len(await a.list_workers()) < 2:
                await asyncio.sleep(0.05)
        runs = [await a.trigger("clean") for _ in range(5)]
        for run in runs:
            await a.wait(run.id, "20s")
        async with asyncio.timeout(20):
            while ran != {"a": 5, "b": 5}:
                await asyncio.sleep(0.01)
