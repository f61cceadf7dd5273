"""Waiting runs are released, and failures of one sweep do not hide those of another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring import Client, Scheduler, State
from mainspring.core import note_kinds, transitions
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


class Ordered(MemoryStore):
    """Holds back the skip of a follower, or the retry of a run, until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.skip_reached, self.may_skip = asyncio.Event(), asyncio.Event()
        self.skipped = asyncio.Event()
        self.retry_waits = False

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        skips = any(c.set.get("reason") == transitions.UPSTREAM_FAILED for c in changes)
        retries = any(c.expect.get("state") is State.FAILED for c in changes)
        if skips:
            self.skip_reached.set()
            await self.may_skip.wait()
        if retries and self.retry_waits:
            self.may_skip.set()
            await self.skipped.wait()
        done = await super().commit(changes)
        if skips:
            self.skipped.set()
        return done


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


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_skip_just_before_the_retry_is_undone(bulk: bool) -> None:
    store = Ordered()
    store.retry_waits = True
    scheduler = Scheduler(store, inline=True)
    chain_of_three(scheduler)
    async with scheduler:
        root = await scheduler.trigger("up")
        await store.skip_reached.wait()
        if bulk:
            assert (await scheduler.retry_runs([root.id])).done == 1
        else:
            await scheduler.retry(root.id)
        assert (await scheduler.wait(f"last@{root.id}", 20)).state is State.SUCCEEDED


class SkippedMeanwhile(MemoryStore):
    """While a retry lets runs wait again, one of them is skipped once more, so that its change is
    refused, and then, because of it, one that comes after it and waits again already."""

    upstream = follower = ""

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        if not self.upstream or self.upstream not in {change.id for change in changes}:
            return await super().commit(changes)
        upstream, self.upstream = self.upstream, ""
        run = (await self.find(RunQuery(ids=frozenset({upstream})))).items[0]
        await super().commit([transitions.waiting_again(run)])
        await self._skip(upstream)
        done = await super().commit(changes)
        await self._skip(self.follower)
        return done

    async def _skip(self, run_id: str) -> None:
        [run] = (await self.find(RunQuery(ids=frozenset({run_id})))).items
        skip = transitions.skipped(run, await self.now(), transitions.UPSTREAM_FAILED)
        assert await super().commit([skip]) == [True]


@on_virtual_time()
async def test_a_follower_that_was_skipped_between_two_rounds_of_a_retry_waits_again() -> None:
    store = SkippedMeanwhile(VirtualClock())
    async with on(store, workers=0) as scheduler:
        root = await scheduler.enqueue("first", delay="1h")
        direct = [await scheduler.enqueue("second", after=root.id) for _ in range(2)]
        last = await scheduler.enqueue("second", after=[run.id for run in direct])
        await scheduler.cancel(root.id)
        assert (await scheduler.wait(last.id, 5)).state is State.SKIPPED
        store.upstream, store.follower = direct[1].id, last.id
        await scheduler.retry(root.id)
        await asyncio.sleep(1)
        runs = [await scheduler.get_run(run.id) for run in (*direct, last)]
        assert [run.state for run in runs] == [State.WAITING] * 3


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
