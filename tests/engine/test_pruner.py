"""How long, and how many, finished runs are kept: of all jobs, and of one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Literal

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core.model import replace
from mainspring.engine import pruner
from mainspring.errors import InvalidInput
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import RunQuery
from tests.support.engine import ended
from tests.support.scheduler_fixtures import *  # noqa: F403
from tests.support.scheduler_fixtures import Make


@pytest.mark.parametrize("given", [{"history": -1}, {"history": True}, {"prune_every": "1ms"}])
def test_a_history_that_cannot_be_kept_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as error:
        Scheduler("memory://", **given)
    assert error.value.field == next(iter(given))


async def test_a_history_of_zero_keeps_no_finished_run(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those that somebody needs: a run that holds its key, one that a follower comes after, and
    each for as long as it takes to read its result."""
    monkeypatch.setattr(pruner, "READ_WITHIN", timedelta(seconds=2))
    scheduler = make(history=0, prune_every="1s")
    gate = asyncio.Event()

    @scheduler.job()
    async def work(number: int) -> int:
        return number

    @scheduler.job()
    async def collect(ctx: RunContext) -> int:
        await gate.wait()
        return int(ctx.results["work"])

    async with scheduler:
        needed = await work.enqueue(number=3)
        follower = await collect.options(after=[needed.id]).enqueue()
        held = await work.options(dedupe_key="k", dedupe_for="1h").enqueue(number=4)
        for number in range(3):
            assert (await ended(scheduler, await work.enqueue(number=number))).result == number
        await until_kept(scheduler, "work", 2)
        assert await ids(scheduler, "work") == [held.id, needed.id]
        assert (await work.options(dedupe_key="k").enqueue(number=5)).duplicate
        gate.set()
        assert (await ended(scheduler, follower)).result == 3
        await until_kept(scheduler, "work", 1)
        await until_kept(scheduler, "collect", 0)
        assert (await scheduler.job_metrics("work")).succeeded == 5


async def ids(scheduler: Scheduler, job: str) -> list[str]:
    return [run.id for run in (await scheduler.list_runs(job=job)).items]


async def until_kept(scheduler: Scheduler, job: str, count: int) -> None:
    async with asyncio.timeout(20):
        while len(await ids(scheduler, job)) != count:
            await asyncio.sleep(0.05)


async def test_the_history_of_a_job_wins_over_the_schedulers(make: Make) -> None:
    scheduler = make(history=2, prune_every="1s")

    @scheduler.job()
    async def usual() -> None: ...

    @scheduler.job(history=1)
    async def fewer() -> None: ...

    async with scheduler:
        await scheduler.add_job("more", handler="usual", history=5)
        for _ in range(6):
            for job in ("more", "fewer", "usual"):
                await ended(scheduler, await scheduler.enqueue(job))
        await until_kept(scheduler, "usual", 2)
        await until_kept(scheduler, "more", 5)
        await until_kept(scheduler, "fewer", 1)
        await scheduler.update_job("more", history=3)
        await until_kept(scheduler, "more", 3)


async def test_a_job_keeps_its_runs_for_a_shorter_or_a_longer_time(make: Make) -> None:
    scheduler = make(retention="1s", prune_every="1s")

    @scheduler.job(retention="1ms")
    async def ping() -> None: ...

    @scheduler.job()
    async def usual() -> None: ...

    async with scheduler:
        await scheduler.add_job("audit", handler="usual", retention="1d")
        kept = await ended(scheduler, await scheduler.enqueue("audit"))
        for job in (ping, usual):
            await ended(scheduler, await job.enqueue())
        pending = await ping.options(delay="1h").enqueue()
        held = await ended(scheduler, await ping.options(dedupe_key="k", dedupe_for="1h").enqueue())
        await until_kept(scheduler, "usual", 0)
        await until_kept(scheduler, "ping", 2)
        assert await ids(scheduler, "ping") == [held.id, pending.id]
        assert await ids(scheduler, "audit") == [kept.id]
        await scheduler.update_job("audit", retention=None)
        await until_kept(scheduler, "audit", 0)


async def test_an_unreadable_job_keeps_its_runs() -> None:
    """Its own retention is not known, and may be the longest of all."""
    store = MemoryStore()
    scheduler = Scheduler(store, retention="1ms", prune_every="1s")

    @scheduler.job()
    async def damaged() -> None: ...

    @scheduler.job()
    async def sound() -> None: ...

    async with scheduler:
        kept = await ended(scheduler, await damaged.enqueue())
        store._jobs["damaged"] = replace(store._jobs["damaged"], unreadable="a newer policy")
        await ended(scheduler, await sound.enqueue())
        await until_kept(scheduler, "sound", 0)
        assert [run.id for run in (await store.find(RunQuery(job="damaged"))).items] == [kept.id]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"history": -1}, "history is 0 or more, not -1"),
        ({"history": "many"}, "history is a whole number, not 'many'"),
        ({"retention": "-1d"}, r"retention '-1d' cannot be used \(it is negative\)"),
        ({"retention": "often"}, "retention 'often'"),
    ],
)
def test_a_job_that_cannot_keep_its_runs_so_is_refused(given: dict[str, Any], words: str) -> None:
    scheduler = Scheduler("memory://")
    with pytest.raises(InvalidInput, match=words) as error:

        @scheduler.job(**given)
        def report() -> None: ...

    assert error.value.field == next(iter(given))
    with pytest.raises(InvalidInput) as error:
        Scheduler("memory://", defaults=given)  # type: ignore[arg-type]
    assert error.value.field == f"defaults.{next(iter(given))}"


@pytest.mark.parametrize("after_failure", ["skip", "run"])
async def test_a_run_whose_upstream_is_gone_is_skipped_instead_of_started(
    make: Make, after_failure: Literal["skip", "run"]
) -> None:
    """A retry comes after the results were pruned: the handler would see fewer."""
    scheduler = make(retention="1d", prune_every="1s")
    starts: list[int] = []

    @scheduler.job(history=1)
    async def part() -> int:
        return 1

    @scheduler.job(after_failure=after_failure)
    async def collect(ctx: RunContext) -> None:
        starts.append(len(ctx.results.runs))
        raise ValueError("bad data")

    async with scheduler:
        upstream = await part.enqueue()
        run = await collect.options(after=[upstream.id]).enqueue()
        assert (await ended(scheduler, run)).state is State.FAILED
        await ended(scheduler, await part.enqueue())
        await until_kept(scheduler, "part", 1)
        await scheduler.retry(run.id)
        again = await ended(scheduler, run)
        assert (again.state, again.reason) == (State.SKIPPED, "upstream deleted")
        assert starts == [1]
