"""Outcomes are committed, also those that the store refuses at first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core import transitions
from mainspring.core.model import Page, Run
from mainspring.core.transitions import Change
from mainspring.errors import InvalidInput
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import RunQuery
from mainspring.testing import VirtualClock
from tests.support.engine import EventRecorder, all_runs, on_virtual_time


class CancelledFirst(MemoryStore):
    """Another client's cancel comes just before the outcome of a run."""

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        for change in changes:
            if change.set.get("state") is State.SUCCEEDED:
                [run] = (await super().find(RunQuery(ids=frozenset({change.id})))).items
                await super().commit([transitions.request_cancel(run, "by another client")])
        return await super().commit(changes)

    async def find(self, query: RunQuery) -> Page[Run]:
        await asyncio.sleep(0.05)  # a round trip
        return await super().find(query)


@on_virtual_time()
async def test_a_cancel_that_beats_an_outcome_is_committed_before_a_stop_returns() -> None:
    store = CancelledFirst(VirtualClock())
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True)
    events = EventRecorder(scheduler, "run.*")
    began = asyncio.Event()

    @scheduler.job()
    async def work() -> None:
        began.set()
        await asyncio.sleep(1)

    await scheduler.start()
    run = await scheduler.enqueue("work")
    await began.wait()
    await scheduler.stop()
    assert (await all_runs(store))[run.id].state is State.CANCELLED
    assert events.names == ["run.enqueued", "run.started", "run.cancelled"]
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left


class Refusing(MemoryStore):
    """Refuses what a handler has written, or the end of every run."""

    def __init__(self, *, all_ends: bool) -> None:
        super().__init__(VirtualClock())
        self.all_ends = all_ends

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        for change in changes:
            if change.set.get("state") in (State.SUCCEEDED, State.FAILED):
                attempt = change.set["attempts"][-1]
                refused = change.set.get("result"), attempt.detail, "told" in str(attempt.log)
                if self.all_ends or any(refused):
                    raise InvalidInput("no such character can be kept: ä")
        return await super().commit(changes)


@pytest.mark.parametrize("fails", [False, True])
@on_virtual_time()
async def test_an_outcome_that_the_store_refuses_is_recorded_without_its_values(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, began = Refusing(all_ends=False), 0
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True, lease="10s")
    events = EventRecorder(scheduler)

    @scheduler.job()
    async def work(ctx: RunContext) -> str:
        nonlocal began
        began += 1
        ctx.log.info("told")
        ctx.detail = {"a": 1}
        if fails:
            raise ValueError("xäy")
        return "odd"

    async with scheduler:
        run = await scheduler.wait((await scheduler.enqueue("work")).id, 60)
        await asyncio.sleep(60)
    assert began == 1
    assert run.state is (State.FAILED if fails else State.SUCCEEDED)
    assert run.error == ("ValueError: x\\xe4y" if fails else None)
    [attempt] = run.attempts
    assert (run.result, attempt.detail) == (None, None)
    assert attempt.log[0].startswith("the store refused the result, the log or the detail: no")
    assert "ownership.lost" not in events.names
    assert "is recorded without its result, log and detail" in caplog.text
    assert "taken over" not in caplog.text
