"""A default handler runs what no worker has a handler of its own for, and nothing else."""

from __future__ import annotations

import pytest

from mainspring import Client, RunContext, Scheduler, State
from mainspring.errors import HandlerNotFound
from mainspring.testing import TestScheduler
from tests.support.engine import EventRecorder, ended


def with_default(store: str, **settings: object) -> Scheduler:
    async def serve(ctx: RunContext) -> str:
        return f"default: {ctx.job_id} {ctx.payload}"

    return Scheduler(store, default_handler=serve, poll="50ms", **settings)  # type: ignore[arg-type]


async def test_jobs_without_a_handler_of_their_own_go_to_the_default_handler(file: str) -> None:
    scheduler = with_default(file)

    @scheduler.job
    def own(n: int) -> int:
        return n

    async with scheduler, Client(file) as client:
        await scheduler.add_job("nameless")
        await scheduler.add_job("named", handler="elsewhere")
        await client.add_job("of-a-client", handler="anything", payload={"a": 1})
        results = [
            (await ended(scheduler, await client.enqueue(job))).result
            for job in ("nameless", "named", "of-a-client")
        ]
        assert results == [
            "default: nameless None",
            "default: named None",
            "default: of-a-client {'a': 1}",
        ]
        assert (await ended(scheduler, await own.enqueue(n=1))).result == 1


async def test_a_schedule_without_a_handler_of_its_own_is_fired(
    file: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = with_default(file)
    recorder = EventRecorder(scheduler)
    async with scheduler:
        await scheduler.add_job("tick", schedule="100ms")
        succeeded = await recorder.until("run.succeeded")
        assert succeeded.run is not None
        assert succeeded.run.result == "default: tick None"
    assert "no live worker" not in caplog.text


async def test_what_another_worker_has_or_code_defines_is_left_to_it(file: str) -> None:
    def other_program() -> Scheduler:
        scheduler = Scheduler(file, poll="50ms")
        scheduler.job(id="decorated")(lambda: "own")
        scheduler.add_handler("registered", lambda: "own")
        return scheduler

    async with with_default(file) as scheduler:
        async with other_program() as other:
            await other.add_job("plain", handler="registered")
            await scheduler.add_job("free")
            for job in ("decorated", "plain"):
                assert (await ended(scheduler, await scheduler.enqueue(job))).result == "own"
            await ended(scheduler, await scheduler.enqueue("free"))  # it has looked around
        left = [await scheduler.enqueue(job) for job in ("decorated", "plain")]
        await ended(scheduler, await scheduler.enqueue("free"))
        await ended(scheduler, await scheduler.enqueue("free", delay="1s"))
        assert [(await scheduler.get_run(run)).state for run in left] == [State.PENDING] * 2
        assert (await scheduler.explain(left[0].id)).code == "no_handler"
        async with other_program() as other:
            assert [(await ended(other, run)).result for run in left] == ["own", "own"]


async def test_without_a_default_handler_a_worker_refuses_unknown_names(file: str) -> None:
    async with Scheduler(file) as scheduler:
        with pytest.raises(HandlerNotFound):
            await scheduler.add_job("named", handler="elsewhere")


async def test_a_default_handler_works_on_virtual_time_too() -> None:
    scheduler = with_default("memory://")
    async with TestScheduler(scheduler) as test:
        await scheduler.add_job("tick", schedule="1h")
        assert [run.result for run in await test.tick("3h")] == ["default: tick None"] * 3
