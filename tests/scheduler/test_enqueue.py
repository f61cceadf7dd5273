"""Enqueuing: order, limits, queues, delays, keys, batches."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import Enqueue, RunContext, Scheduler, State
from mainspring.errors import (
    InvalidArguments,
    InvalidInput,
    InvalidPayload,
    MainspringError,
    RunNotFound,
)
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, Claimed
from mainspring.testing import VirtualClock, run_virtual
from tests.support.engine import ended
from tests.support.scheduler_fixtures import Make


async def test_a_worker_takes_only_its_queues(make: Make) -> None:
    scheduler = make(queues=["mail"])

    @scheduler.job()
    async def work() -> None: ...

    @scheduler.job(queue="mail")
    async def mail() -> None: ...

    async with scheduler:
        default = await work.enqueue()
        moved = await work.options(queue="mail").enqueue()
        own = await mail.enqueue()
        assert (default.queue, moved.queue, own.queue) == ("default", "mail", "mail")
        assert (await ended(scheduler, moved)).state is State.SUCCEEDED
        assert (await ended(scheduler, own)).state is State.SUCCEEDED
        assert (await scheduler.get_run(default.id)).state is State.PENDING


async def test_delay_and_at(make: Make) -> None:
    scheduler = make(timezone="Asia/Kolkata")

    @scheduler.job()
    async def work() -> None: ...

    async with scheduler:
        soon = await work.options(delay="80ms").enqueue()
        assert soon.run_at - soon.created_at == timedelta(milliseconds=80)
        done = await ended(scheduler, soon)
        assert done.started_at is not None
        assert done.started_at >= soon.run_at

        naive = await work.options(at=datetime(2050, 6, 1, 9, 30)).enqueue()
        assert naive.run_at == datetime(2050, 6, 1, 4, 0, tzinfo=UTC)
        assert naive.run_at.tzinfo is UTC
        aware = datetime(2050, 6, 1, 9, 30, tzinfo=ZoneInfo("Europe/Berlin"))
        assert (await work.options(at=aware).enqueue()).run_at == aware
        past = await work.options(at=datetime(2001, 1, 1)).enqueue()
        assert (await ended(scheduler, past)).state is State.SUCCEEDED


# Keys


async def test_a_dedupe_key_that_another_job_holds_is_warned_of(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make()

    @scheduler.job()
    async def index_user() -> None: ...

    @scheduler.job()
    async def bill_user() -> None: ...

    async with scheduler:
        first = await index_user.options(dedupe_key="user:42", delay="1h").enqueue()
        assert (await index_user.options(dedupe_key="user:42").enqueue()).duplicate
        assert "dedupe key" not in caplog.text
        other = await bill_user.options(dedupe_key="user:42").enqueue()
        assert (other.id, other.duplicate) == (first.id, True)
    warned = f"no run of bill_user was added: {first.id}, a run of index_user, holds the dedupe key"
    assert warned in caplog.text


async def test_one_call_enqueues_runs_of_several_jobs_with_options_of_their_own(
    make: Make,
) -> None:
    scheduler = make(workers=0)

    @scheduler.job
    def mail(to: str) -> None: ...

    @scheduler.job
    def report() -> None: ...

    async with scheduler:
        first = await scheduler.enqueue("report")
        runs = await scheduler.enqueue_many(
            [
                Enqueue("report", after=first),
                Enqueue(mail, {"to": "ada"}, priority=9, dedupe_key="k"),
                Enqueue("mail", {"to": "bob"}, delay="1h"),
                Enqueue("mail", {"to": "eve"}, dedupe_key="k"),
            ]
        )
        assert [run.job_id for run in runs] == ["report", "mail", "mail", "mail"]
        assert [run.priority for run in runs] == [5, 9, 5, 9]
        assert [run.duplicate for run in runs] == [False, False, False, True]
        assert (runs[0].after, runs[3].id) == ((first.id,), runs[1].id)
        assert runs[2].run_at - runs[0].created_at >= timedelta(minutes=59)
        assert runs[0].created_at < runs[1].created_at < runs[2].created_at
        assert await scheduler.enqueue_many([]) == []


async def test_a_bulk_call_over_several_jobs_adds_all_or_none(make: Make) -> None:
    scheduler = make(workers=0)
    scheduler.job(id="known")(lambda: None)
    async with scheduler:
        for wrong in (Enqueue("unknown"), Enqueue("known", {"to": 5}), Enqueue("known", after="x")):
            with pytest.raises(MainspringError):
                await scheduler.enqueue_many([Enqueue("known"), wrong])
        for items, options in ((["known"], {}), ("known", {}), ([Enqueue("known")], {"delay": 1})):
            with pytest.raises(InvalidInput, match=r"or a list of Enqueue\(job, payload, …\)"):
                await scheduler.enqueue_many(items, **options)  # type: ignore[arg-type]
        assert (await scheduler.list_runs()).items == []


async def test_a_run_is_named_by_its_id_or_as_it_was_read(make: Make) -> None:
    scheduler = make()

    @scheduler.job
    def work() -> int:
        return 7

    async with scheduler:
        run = await work.enqueue()
        done = await scheduler.wait(run, "30s")
        assert (await scheduler.get_run(run)).result == done.result == 7
        assert repr(done) == f"<Run {run.id} of work: succeeded (7)>"
        assert repr(await scheduler.get_job(work)) == "<Job work: when enqueued>"
        later = await work.options(delay="1h").enqueue()
        assert await scheduler.cancel(later)
        assert (await scheduler.retry(later)).state is State.PENDING
        with pytest.raises(RunNotFound, match="there is no run 5"):
            await scheduler.wait(5)  # type: ignore[call-overload]


def test_dedupe_for_holds_the_key_past_the_end() -> None:
    async def main() -> None:
        store = MemoryStore(VirtualClock())
        scheduler = Scheduler(store, clock=VirtualClock(), inline=True)

        @scheduler.job()
        async def work() -> None: ...

        async with scheduler:
            held = work.options(dedupe_key="k", dedupe_for="1h")
            first = await held.enqueue()
            await ended(scheduler, first)
            await asyncio.sleep(3590)
            assert (await held.enqueue()).id == first.id
            await asyncio.sleep(20)
            assert (await held.enqueue()).id != first.id

    run_virtual(main)


async def test_a_duplicate_starts_no_second_workflow_and_is_not_warned_of(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make()
    followed: list[str] = []
    go = asyncio.Event()

    @scheduler.job()
    async def root() -> None:
        await go.wait()

    @scheduler.job(after="root")
    async def follower(ctx: RunContext) -> None:
        followed.append(ctx.run_id)

    async with scheduler:
        queue = root.options(dedupe_key="k")
        first = await queue.enqueue()
        assert (await queue.enqueue()).duplicate
        many = await root.options(dedupe_key=["k", "k"], delay="1h").enqueue_many([{}, {}])
        assert [run.id for run in many] == [first.id, first.id]
        runs = (await scheduler.list_runs(job="follower")).items
        assert len(runs) == 1
        go.set()
        await ended(scheduler, first)
        await ended(scheduler, runs[0])
    assert followed == [runs[0].id]
    assert "dedupe key" not in caplog.text


# Batches


async def test_one_bad_payload_and_nothing_is_enqueued(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def work(n: Any) -> None: ...

    async with scheduler:
        with pytest.raises(InvalidArguments, match="missing n"):
            await scheduler.enqueue_many("work", [{"n": 1}, {}, {"n": 3}])
        with pytest.raises(InvalidPayload, match="holds a set"):
            await work.enqueue_many([{"n": 1}, {"n": {1}}])
        with pytest.raises(InvalidInput, match="2 dedupe keys were given for 1 payloads"):
            await scheduler.enqueue_many("work", [{"n": 1}], dedupe_key=["a", "b"])
        with pytest.raises(InvalidInput, match="a list of dedupe keys, one for each"):
            await scheduler.enqueue_many("work", [{"n": 1}] * 2, dedupe_key="a")
        assert (await scheduler.list_runs()).items == []


# After other runs


async def test_enqueue_after_runs_waits_and_hands_results_on(make: Make) -> None:
    scheduler = make()
    go = asyncio.Event()

    @scheduler.job()
    async def fetch() -> int:
        await go.wait()
        return 7

    @scheduler.job()
    async def clean() -> int:
        return 3

    @scheduler.job()
    async def load(ctx: RunContext) -> int:
        return int(sum(ctx.results.values()))

    async with scheduler:
        first, second = await fetch.enqueue(), await clean.enqueue()
        run = await load.options(after=[first.id, second.id]).enqueue()
        assert run.state is State.WAITING
        await ended(scheduler, second)
        assert (await scheduler.get_run(run.id)).state is State.WAITING
        go.set()
        assert (await ended(scheduler, run)).result == 10
        # What has ended already is not waited for; none is the same as not saying it.
        late = await load.options(after=second.id).enqueue()
        assert (await ended(scheduler, late)).result == 3
        none = await scheduler.enqueue("load", after=None)
        assert (await ended(scheduler, none)).result == 0


# Looking


async def test_wait_gives_up_in_time_and_not_too_early(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def work() -> int:
        return 1

    async with scheduler:
        later = await work.options(delay="1h").enqueue()
        with pytest.raises(TimeoutError, match=f"{later.id} did not finish within"):
            await scheduler.wait(later.id, "50ms")
        done = await ended(scheduler, await work.enqueue())
        assert await scheduler.wait(done.id, 0) == done


class Slow(MemoryStore):
    """A claim's answer is long on its way: what falls due meanwhile, the claim has not seen."""

    async def claim(self, claim: Claim) -> Claimed:
        claimed = await super().claim(claim)
        coming = claimed.next_due
        while coming is not None and self._clock.now() <= coming:
            await asyncio.sleep(0.01)
        return claimed


def test_what_falls_due_between_a_claim_and_the_next_question_is_not_overlooked() -> None:
    async def main() -> None:
        store = Slow(VirtualClock())
        scheduler = Scheduler(store, clock=VirtualClock(), inline=True, poll="30s")

        @scheduler.job()
        async def work() -> None: ...

        async with scheduler:
            await asyncio.sleep(1)  # it is idle: the hint of the run comes before its next claim
            run = await work.options(delay="300ms").enqueue()
            done = await ended(scheduler, run)
        assert done.state is State.SUCCEEDED
        assert done.started_at is not None
        assert done.started_at - run.run_at < timedelta(seconds=1)  # and not at the next look

    run_virtual(main)
