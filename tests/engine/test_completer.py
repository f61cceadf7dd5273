"""Outcomes are committed, also those that the store refuses at first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainspring import Scheduler, State
from mainspring.core import transitions
from mainspring.core.model import Page, Run
from mainspring.core.transitions import Change
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import RunQuery
from mainspring.testing import VirtualClock, run_virtual
from tests.support.engine import EventRecorder, all_runs


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


def test_a_cancel_that_beats_an_outcome_is_committed_before_a_stop_returns() -> None:
    async def main() -> None:
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

    run_virtual(main)
