"""Operations on many runs at once, concurrent edits, and a draining scheduler that still
answers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring import Scheduler, State
from mainspring.errors import InvalidInput, JobChanged
from mainspring.testing.store_calls import put_job


async def test_all_that_match_are_cancelled_retried_and_removed() -> None:
    scheduler = Scheduler("memory://", workers=0)

    @scheduler.job()
    def work(n: int) -> None: ...

    @scheduler.job()
    def other() -> None: ...

    async with scheduler:
        await work.enqueue_many([{"n": n} for n in range(1200)])
        kept = await other.enqueue()
        first = await scheduler.cancel_runs(job="work", limit=700)
        assert (first.matched, first.done, first.more) == (700, 700, True)
        rest = await scheduler.cancel_runs(job="work", state="pending")
        assert (rest.matched, rest.done, rest.more) == (500, 500, False)
        assert (await scheduler.get_run(kept.id)).state is State.PENDING
        again = await scheduler.retry_runs(job="work", state=["cancelled"])
        assert (again.matched, again.done) == (1200, 1200)
        await scheduler.cancel_runs(job="work")
        gone = await scheduler.remove_runs(job="work")
        assert gone.done == 1200
        assert [run.id for run in (await scheduler.list_runs()).items] == [kept.id]


async def test_runs_by_id_and_only_those_that_fit() -> None:
    scheduler = Scheduler("memory://", workers=0)

    @scheduler.job()
    def work() -> None: ...

    async with scheduler:
        one, two = await work.enqueue(), await work.enqueue()
        await scheduler.cancel(two.id)
        done = await scheduler.cancel_runs([one.id, two.id, "nowhere"])
        assert (done.matched, done.done) == (1, 1)
        with pytest.raises(InvalidInput, match="`ids` or filters"):
            await scheduler.cancel_runs([one.id], job="work")
        with pytest.raises(InvalidInput, match="unknown filter"):
            await scheduler.retry_runs(jobs="work")  # type: ignore[call-arg]


async def test_an_edit_meets_another_edit_but_not_a_firing() -> None:
    scheduler = Scheduler("memory://", workers=0)

    @scheduler.job()
    def work() -> None: ...

    async with scheduler:
        seen = await scheduler.add_job("mine", handler="work", schedule="1s")
        stored = await scheduler.get_job("mine")
        fired = stored.next_run_at
        assert fired is not None
        # What a firing changes is no edit.
        from msgspec.structs import replace

        await put_job(scheduler.store, replace(stored, next_run_at=fired + timedelta(seconds=1)))
        edited = await scheduler.update_job("mine", expected_version=seen, priority=7)
        assert edited.policy.priority == 7
        with pytest.raises(JobChanged, match="read it again"):
            await scheduler.update_job("mine", expected_version=seen, priority=8)
        with pytest.raises(JobChanged):
            await scheduler.remove_job("mine", expected_version=seen)
        await scheduler.remove_job("mine", expected_version=edited)


async def test_a_drained_scheduler_works_no_more_but_answers() -> None:
    scheduler = Scheduler("memory://", workers=2)

    @scheduler.job()
    async def work() -> str:
        return "done"

    async with scheduler:
        first = await work.enqueue()
        assert (await scheduler.wait(first.id, 60)).result == "done"
        await scheduler.drain()
        second = await work.enqueue()
        assert (await scheduler.get_run(second.id)).state is State.PENDING
        assert (await scheduler.health()).status == "healthy"
