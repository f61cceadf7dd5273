"""Waiting runs are released, and failures of one sweep do not hide those of another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring import Client, Scheduler, State
from mainspring.core import note_kinds
from mainspring.core.model import Page, Run
from mainspring.core.transitions import Change
from mainspring.engine import follower_releaser
from mainspring.errors import StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import NoteQuery, RunQuery
from mainspring.testing import FaultyStore, VirtualClock
from tests.support.engine import LONG, SwitchableFaults, on_virtual_time


def on(store: Any, **options: Any) -> Scheduler:
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True, **options)

    @scheduler.job()
    async def first() -> None: ...

    @scheduler.job()
    async def second() -> None: ...

    return scheduler


@on_virtual_time()
async def test_a_client_releases_the_followers_of_what_it_cancels() -> None:
    """Also after the store was away; and it keeps nothing of what it has released."""

    store, faults = MemoryStore(VirtualClock()), SwitchableFaults()
    await on(store, workers=0).start()  # stores the jobs
    client = Client(FaultyStore(store, faults), clock=VirtualClock(), inline=True)
    async with client:
        for broken in (set[str](), {"find"}):
            upstream = await client.enqueue("first", delay="1h")
            follower = await client.enqueue("second", after=upstream.id)
            await client.cancel(upstream.id)
            faults.failing = broken
            await asyncio.sleep(1)
            faults.failing = set()
            run = await client.wait(follower.id, 5)
            assert (run.state, run.reason) == (State.SKIPPED, "upstream failed")
        runs = await client.enqueue_many("first", [None] * 2500, delay="1h")
        await client.cancel_runs([run.id for run in runs])
        await asyncio.sleep(1)
        assert client._engine is not None
        assert not client._engine.follower_releaser._ended


def chain_of_three(scheduler: Scheduler) -> None:
    """`up` fails the first time; `down` comes after it, and `last` after `down`."""
    tried: list[int] = []

    @scheduler.job
    async def up() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise OSError("disk full")

    @scheduler.job(after=up)
    async def down() -> None: ...

    @scheduler.job(after=down)
    async def last() -> None: ...


class FailsAfterRetry(MemoryStore):
    """Cannot be read for a while after a run was made pending again."""

    failing = False
    failed = 0

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        done = await super().commit(changes)
        if any(c.expect.get("state") is State.FAILED for c in changes):
            self.failing = True
        return done

    async def find(self, query: RunQuery) -> Page[Run]:
        if self.failing and query.upstream is not None:
            self.failed += 1
            self.failing = self.failed < 3
            raise StoreUnavailable("injected")
        return await super().find(query)


async def test_the_leader_completes_a_retry_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_releaser, "WAITING_SWEEP", 0.2)
    store = FailsAfterRetry()
    scheduler = Scheduler(store, inline=True)
    chain_of_three(scheduler)
    async with scheduler:
        root = await scheduler.trigger("up")
        assert (await scheduler.wait(f"last@{root.id}", 20)).state is State.SKIPPED
        again = await scheduler.retry(root.id)
        assert again.state is State.PENDING
        async with asyncio.timeout(LONG):
            while (await scheduler.get_run(f"last@{root.id}")).state is not State.SUCCEEDED:
                await asyncio.sleep(0.05)
            assert store.failed == 3
            while (await store.notes(NoteQuery(kind=note_kinds.RETRY))).items:
                await asyncio.sleep(0.05)
