"""Jobs with `each_node`: a slot, a trigger or a backfill runs once on each live worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core import transitions
from mainspring.core.model import Note, Run, Source
from mainspring.engine.slots import make_node_run
from mainspring.errors import InvalidInput
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, NoteQuery, NoteWrite
from mainspring.testing import VirtualClock, run_virtual
from tests.support.engine import EventRecorder
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


Story = Callable[[Cluster], Awaitable[None]]


def virtual(story: Story) -> Callable[[], None]:
    def test() -> None:
        for seed in range(2):

            async def main() -> None:
                await story(Cluster())

            run_virtual(main, seed=seed)

    test.__name__ = story.__name__
    return test


def at(slot: int, minute: int = 0) -> datetime:
    """So many minutes after a slot, by its number."""
    return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(minutes=slot * SLOT_MINUTES + minute)


async def until(scheduler: Scheduler, moment: datetime) -> None:
    await asyncio.sleep((moment - await scheduler.now()).total_seconds())


async def slot_runs(scheduler: Scheduler, slot: datetime) -> tuple[Run, list[Run]]:
    """The run of a slot, and those that it was spread to."""
    runs = (await scheduler.list_runs(job="clean", limit=1000)).items
    here = [run for run in runs if run.scheduled_at == slot]
    [root] = [run for run in here if run.source is not Source.NODE]
    return root, [run for run in here if run.source is Source.NODE]


@virtual
async def test_a_slot_runs_once_on_each_live_worker(cluster: Cluster) -> None:
    async with cluster.worker("a") as a, cluster.worker("b"):
        await until(a, at(1, 1))
        assert cluster.names() == {"a": 1, "b": 1}
        root, nodes = await slot_runs(a, at(1))
        workers = {worker.id for worker in await a.list_workers()}
        assert {run.id for run in nodes} == {f"{root.id}@{worker}" for worker in workers}
        assert {run.worker for run in nodes} == workers
        assert (root.state, root.result) == (State.SUCCEEDED, {"succeeded": 2})
        async with cluster.worker("c"):  # it takes part from the next slot on
            await until(a, at(2, 1))
            assert cluster.names() == {"a": 2, "b": 2, "c": 1}
        await until(a, at(3, 1))
        assert cluster.names() == {"a": 3, "b": 3, "c": 1}
    assert {slot for _, slot in cluster.ran} == {at(1), at(2), at(3)}


@virtual
async def test_the_end_of_a_slot_is_counted_as_the_ends_of_its_node_runs_are(
    cluster: Cluster,
) -> None:
    async with cluster.worker("a") as a, cluster.worker("b"):
        await until(a, at(1, 1))
        counted = (await cluster.store.counts(jobs=frozenset({"clean"}))).totals["clean"]
        assert counted.ended == {State.SUCCEEDED: 3}  # the slot's run, and one on each worker


@virtual
async def test_a_trigger_and_a_delayed_run_run_on_each_worker_too(cluster: Cluster) -> None:
    async with cluster.worker("a") as a, cluster.worker("b"):
        await asyncio.sleep(1)  # each has announced itself
        run = await a.wait((await a.trigger("clean")).id, "1m")
        assert (run.state, cluster.names()) == (State.SUCCEEDED, {"a": 1, "b": 1})
        later = await a.enqueue("clean", delay="5m")
        async with cluster.worker("c"):  # alive when the run is due
            await a.wait(later.id, "9m")
            assert cluster.names() == {"a": 2, "b": 2, "c": 1}


@virtual
async def test_the_runs_of_a_killed_worker_are_skipped(cluster: Cluster) -> None:
    async with cluster.worker("a") as a:
        dead = cluster.worker("b")
        await dead.start()
        await until(a, at(0, SLOT_MINUTES - 1))
        await asyncio.sleep(50)
        kill(dead)
        await until(a, at(1, 0))
        await asyncio.sleep(10)
        root, nodes = await slot_runs(a, at(1))
        assert root.state is State.WAITING  # the worker still counts as alive
        why = await a.explain(root.id)
        assert why.code == "waiting"
        await asyncio.sleep(3 * MINUTE)
        root, nodes = await slot_runs(a, at(1))
        assert root.state is State.SUCCEEDED
        [gone] = [run for run in nodes if run.state is State.SKIPPED]
        assert gone.reason == "its node is gone"
        assert root.result == {"succeeded": 1, "skipped": [gone.id.removeprefix(f"{root.id}@")]}
        await until(a, at(2, 1))
        assert cluster.names() == {"a": 2}


@virtual
async def test_a_worker_that_dies_in_the_middle_of_its_run_fails_the_slot(
    cluster: Cluster,
) -> None:
    cluster.takes = 20
    async with cluster.worker("a", schedule=None) as a:
        dead = cluster.worker("b", schedule=None)
        await dead.start()
        await asyncio.sleep(1)
        run = await a.trigger("clean")
        await asyncio.sleep(10)
        kill(dead)
        failed = await a.wait(run.id, "10m")
        assert failed.state is State.FAILED
        assert "it did not succeed on 1 of 2 nodes" in (failed.error or "")
        [name] = failed.result["failed"]
        lost = await a.get_run(f"{run.id}@{name}")
        assert (lost.state, lost.reason, lost.attempt) == (State.FAILED, "lost", 1)
        assert "its worker ended before it had finished" in (lost.error or "")
        # Tried again, it is left to the workers that are alive.
        await a.retry(run.id)
        done = await a.wait(run.id, "10m")
        assert (done.state, done.result) == (State.SUCCEEDED, {"succeeded": 1, "skipped": [name]})
    assert cluster.names()["a"] == 1


@virtual
async def test_a_failure_on_one_worker_fails_the_slot_and_is_retried_there(
    cluster: Cluster,
) -> None:
    cluster.fails = {"b"}
    async with cluster.worker("a") as a, cluster.worker("b"):
        await asyncio.sleep(1)
        failed = await a.wait((await a.trigger("clean")).id, "1m")
        assert failed.state is State.FAILED
        assert "it did not succeed on 1 of 2 nodes" in (failed.error or "")
        cluster.fails = set()
        await a.retry(failed.id)
        done = await a.wait(failed.id, "1m")
        assert (done.state, done.result) == (State.SUCCEEDED, {"succeeded": 2})
    assert cluster.names() == {"a": 1, "b": 1}  # only the one that had failed ran again


@virtual
async def test_retries_stay_on_their_worker(cluster: Cluster) -> None:
    cluster.fails = {"b"}
    options = {"retries": 3, "retry_delay": "10s", "backoff": "fixed"}
    async with cluster.worker("a", **options) as a, cluster.worker("b", **options):
        await asyncio.sleep(1)
        run = await a.trigger("clean")
        await asyncio.sleep(5)
        cluster.fails = set()
        assert (await a.wait(run.id, "1m")).state is State.SUCCEEDED
    assert cluster.names() == {"a": 1, "b": 1}


@virtual
async def test_cancelling_it_cancels_it_on_every_worker(cluster: Cluster) -> None:
    cluster.takes = 30 * MINUTE
    async with cluster.worker("a") as a, cluster.worker("b"):
        await asyncio.sleep(1)
        run = await a.trigger("clean")
        await asyncio.sleep(10)
        assert await a.cancel(run.id)
        await asyncio.sleep(MINUTE)
        runs = (await a.list_runs(job="clean")).items
        assert {one.state for one in runs} == {State.CANCELLED}
    assert cluster.names() == {}


@virtual
async def test_a_cancelled_root_ends_the_waits_for_its_node_runs(cluster: Cluster) -> None:
    """Whether it is cancelled alone or with others; each end is an event."""
    for many in (False, True):
        async with cluster.worker("a", schedule=None, workers=0) as client:
            events = EventRecorder(client, "run.cancelled")
            root, node_run = await claimed_root(client, cluster.store, "dead")
            change = transitions.waiting_for_node_runs(root, (node_run.id,))
            await cluster.store.commit([change])
            waiting = asyncio.ensure_future(client.wait(node_run.id))
            await asyncio.sleep(0.1)
            before = asyncio.get_running_loop().time()
            await (client.cancel_runs([root.id]) if many else client.cancel(root.id))
            assert (await waiting).state is State.CANCELLED
            assert asyncio.get_running_loop().time() - before < 0.1
        assert {event.run.id for event in events.events if event.run} == {root.id, node_run.id}


@virtual
async def test_a_crash_during_a_cancel_of_many_runs_leaves_no_node_run_behind(
    cluster: Cluster,
) -> None:
    async with cluster.worker("a", schedule=None, workers=0) as client:
        root, node_run = await claimed_root(client, cluster.store, "dead")
        await cluster.store.commit([transitions.waiting_for_node_runs(root, (node_run.id,))])
        commits: list[set[str]] = []
        commit = cluster.store.commit

        async def record(changes: Sequence[transitions.Change]) -> list[bool]:
            commits.append({change.id for change in changes})
            return await commit(changes)

        cluster.store.commit = record  # type: ignore[method-assign]
        await client.cancel_runs([root.id])
        assert commits == [{root.id, node_run.id}]


@virtual
async def test_a_worker_that_was_missing_before_has_the_whole_grace_again(
    cluster: Cluster,
) -> None:
    async with cluster.worker("a", schedule=None, workers=0) as a:
        assert a._engine is not None
        sweeper = a._engine.sweeper
        for _ in range(2):
            _, node_run = await claimed_root(a, cluster.store, "away")
            for second in (0, 20):
                await sweeper._end_for_gone_nodes([node_run])
                assert (await a.get_run(node_run.id)).state is State.PENDING, second
                await asyncio.sleep(20)
            await a.cancel(node_run.id)
            await asyncio.sleep(24 * 60 * MINUTE)  # it is back, and nobody looks for it
            await sweeper._end_for_gone_nodes([])
            assert not sweeper._missing


@virtual
async def test_concurrency_runs_one_worker_after_the_other(cluster: Cluster) -> None:
    cluster.takes = 10.0
    async with (
        cluster.worker("a", concurrency=1) as a,
        cluster.worker("b", concurrency=1),
        cluster.worker("c", concurrency=1),
    ):
        await asyncio.sleep(1)
        run = await a.trigger("clean")
        await asyncio.sleep(15)
        assert sum(cluster.names().values()) == 1
        assert (await a.wait(run.id, "2m")).result == {"succeeded": 3}
    assert cluster.names() == {"a": 1, "b": 1, "c": 1}


@virtual
async def test_a_slot_overlaps_while_one_worker_still_runs_the_last(cluster: Cluster) -> None:
    cluster.takes = 1.5 * SLOT_MINUTES * MINUTE
    async with cluster.worker("a") as a, cluster.worker("b"):
        await until(a, at(2, 1))
        skipped, nodes = await slot_runs(a, at(2))
        assert (skipped.state, skipped.reason, nodes) == (State.SKIPPED, "overlap", [])
        await until(a, at(3, 1))
        _, nodes = await slot_runs(a, at(3))
        assert len(nodes) == 2


@virtual
async def test_missed_slots_run_once_on_the_workers_that_are_back(cluster: Cluster) -> None:
    async with cluster.worker("a"):
        await asyncio.sleep(1)
    await asyncio.sleep(4 * SLOT_MINUTES * MINUTE)
    async with cluster.worker("a") as a, cluster.worker("b"):
        await asyncio.sleep(MINUTE)
        root, nodes = await slot_runs(a, at(4))
        assert root.state is State.SUCCEEDED
        assert root.result == {"succeeded": len(nodes)}
        assert [slot for _, slot in cluster.ran] == [at(4)] * len(nodes)
        await until(a, at(5, 1))  # a worker that joined later takes part from this slot on
        assert [slot for _, slot in cluster.ran][len(nodes) :] == [at(5)] * 2


@virtual
async def test_only_workers_that_take_its_queue_take_part(cluster: Cluster) -> None:
    async with (
        cluster.worker("a", queue="disk") as a,
        cluster.worker("b", queue="disk", queues=["mail"]),
    ):
        run = await a.wait((await a.trigger("clean")).id, "1m")
        assert (run.result, cluster.names()) == ({"succeeded": 1}, {"a": 1})


@virtual
async def test_a_follower_runs_once_after_all_workers_ran(cluster: Cluster) -> None:
    a, b = cluster.worker("a"), cluster.worker("b")
    counted: list[int] = []
    for scheduler in (a, b):

        @scheduler.job(id="report", after="clean")
        async def report() -> None:
            counted.append(len(cluster.ran))

    async with a, b:
        await until(a, at(1, 2))
    assert counted == [2]


async def claimed_root(client: Scheduler, store: MemoryStore, worker: str) -> tuple[Run, Run]:
    """A run that a worker has claimed and made its own node run of, but not yet spread."""
    await client.enqueue("clean")
    job = await client.get_job("clean")
    claim = Claim(
        worker=worker, handlers=frozenset({job.handler}), limit=1, lease=timedelta(seconds=30)
    )
    [root] = (await store.claim(claim)).runs
    node_run = make_node_run(root, job, worker, await store.now())
    await store.add([node_run])
    return root, node_run


@virtual
async def test_a_node_run_that_is_tried_again_is_skipped_if_its_worker_is_gone(
    cluster: Cluster,
) -> None:
    cluster.fails = {"b"}
    async with cluster.worker("a", schedule=None) as a:
        async with cluster.worker("b", schedule=None):
            await asyncio.sleep(1)
            await a.wait((await a.trigger("clean")).id, "1m")
        [failed] = [
            run
            for run in (await a.list_runs(job="clean")).items
            if run.source is Source.NODE and run.state is State.FAILED
        ]
        await a.retry(failed.id)
        await asyncio.sleep(5 * MINUTE)
        run = await a.get_run(failed.id)
        assert (run.state, run.reason) == (State.SKIPPED, "its node is gone")


@virtual
async def test_node_runs_of_a_root_that_was_cancelled_during_its_spread_are_cancelled(
    cluster: Cluster,
) -> None:
    async with cluster.worker("a", schedule=None, workers=0) as client:
        root, node_run = await claimed_root(client, cluster.store, "dead")
        assert await client.cancel(root.id)  # then its worker dies
    async with cluster.worker("a", schedule=None) as a:
        await asyncio.sleep(5 * MINUTE)
        assert (await a.get_run(root.id)).state is State.CANCELLED
        assert (await a.get_run(node_run.id)).state is State.CANCELLED


@virtual
async def test_a_root_that_no_node_ran_runs_on_the_live_workers_when_it_is_tried_again(
    cluster: Cluster,
) -> None:
    async with cluster.worker("a", schedule=None, workers=0) as client:
        root, node_run = await claimed_root(client, cluster.store, "dead")
        await cluster.store.commit([transitions.waiting_for_node_runs(root, (node_run.id,))])
    async with cluster.worker("a", schedule=None) as a, cluster.worker("b", schedule=None):
        failed = await a.wait(root.id, "5m")
        assert failed.error == "no node ran it: every worker that it was meant for has ended"
        await a.retry(root.id)
        done = await a.wait(root.id, "5m")
        assert (done.state, done.result) == (
            State.SUCCEEDED,
            {"skipped": ["dead"], "succeeded": 2},
        )
    assert cluster.names() == {"a": 1, "b": 1}


@virtual
async def test_a_worker_of_an_earlier_version_takes_no_part(cluster: Cluster) -> None:
    async with cluster.worker("a", schedule=None) as a:
        await asyncio.sleep(1)
        [note] = (await cluster.store.notes(NoteQuery(kind="worker"))).items
        value = {name: kept for name, kept in note.value.items() if name != "takes_node_runs"}
        old = Note(kind="worker", name="old", value=value, expires_at=note.expires_at)
        await cluster.store.put_notes([NoteWrite.put(old)])
        assert {worker.id for worker in await a.list_workers()} == {"old", note.name}
        run = await a.wait((await a.trigger("clean")).id, "10s")
        assert (run.state, run.result) == (State.SUCCEEDED, {"succeeded": 1})


def test_a_slot_cannot_replace_what_runs_on_other_nodes() -> None:
    scheduler = Scheduler("memory://")

    def clean() -> None: ...

    with pytest.raises(InvalidInput, match='takes overlap="skip", "queue" or "allow"') as refused:
        scheduler.job("1h", each_node=True, overlap="replace")(clean)
    assert refused.value.field == "overlap"


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
            assert (await a.wait(run.id, "20s")).result == {"succeeded": 2}
    assert ran == {"a": 5, "b": 5}
