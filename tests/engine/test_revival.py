"""A retry lets the runs after it wait again, whatever a sweeper does at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mainspring import Scheduler, State
from mainspring.core import note_kinds, transitions
from mainspring.core.model import Page, Run, replace
from mainspring.core.transitions import Change
from mainspring.engine import revival, sweeper
from mainspring.errors import StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import NoteQuery, RunQuery
from tests.support.engine import LONG


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


async def retry(scheduler: Scheduler, run_id: str, bulk: bool) -> None:
    if bulk:
        assert (await scheduler.retry_runs([run_id])).done == 1
    else:
        await scheduler.retry(run_id)


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_skip_that_was_decided_before_the_retry_is_refused(bulk: bool) -> None:
    store = Ordered()
    scheduler = Scheduler(store, inline=True)
    chain_of_three(scheduler)
    async with scheduler:
        root = await scheduler.trigger("up")
        await store.skip_reached.wait()
        await retry(scheduler, root.id, bulk)
        store.may_skip.set()
        await store.skipped.wait()
        assert (await scheduler.wait(f"last@{root.id}", 20)).state is State.SUCCEEDED


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_skip_just_before_the_retry_is_undone(bulk: bool) -> None:
    store = Ordered()
    store.retry_waits = True
    scheduler = Scheduler(store, inline=True)
    chain_of_three(scheduler)
    async with scheduler:
        root = await scheduler.trigger("up")
        await store.skip_reached.wait()
        await retry(scheduler, root.id, bulk)
        assert (await scheduler.wait(f"last@{root.id}", 20)).state is State.SUCCEEDED


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
    monkeypatch.setattr(sweeper, "WAITING_SWEEP", 0.2)
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


async def test_a_note_of_runs_that_are_still_failed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may be about to make them pending."""
    store = MemoryStore()
    scheduler = Scheduler(store, inline=True)
    chain_of_three(scheduler)
    async with scheduler:
        root = await scheduler.trigger("up")
        assert (await scheduler.wait(f"last@{root.id}", 20)).state is State.SKIPPED
        engine = scheduler._engine
        assert engine is not None
        await revival.note_retry(engine._context, [root])
        await revival.complete_retries(engine._context)
        [note] = (await store.notes(NoteQuery(kind=note_kinds.RETRY))).items
        assert note.value == {"runs": [root.id]}
        assert (await scheduler.get_run(f"down@{root.id}")).state is State.SKIPPED


class Watched(MemoryStore):
    """Keeps the ids of the runs that were read by a query, in `read`."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    async def find(self, query: RunQuery) -> Page[Run]:
        page = await super().find(query)
        self.read.update(run.id for run in page.items)
        return page


async def test_a_retry_reads_the_runs_after_it_and_no_other_skipped_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revival, "PAGE", 5)
    store = Watched()
    scheduler = Scheduler(store, inline=True)
    broken = True

    @scheduler.job
    async def up() -> None:
        assert not broken

    @scheduler.job
    async def down() -> None: ...

    async with scheduler:
        root = await scheduler.enqueue("up")
        behind = [await scheduler.enqueue("down", after=[root.id]) for _ in range(12)]
        last = await scheduler.enqueue("down", after=[behind[0].id])
        ended = await scheduler.wait(last.id, 20)
        assert ended.reason == "upstream failed"
        others = [
            replace(ended, id=f"other{reason}{n}", reason=reason, after=after)
            for reason, after in (("overlap", (root.id,)), ("upstream failed", ("another",)))
            for n in range(20)
        ]
        await store.add(others)
        store.read.clear()
        broken = False
        await scheduler.retry(root.id)
        for run in (*behind, last):
            assert (await scheduler.wait(run.id, 20)).state is State.SUCCEEDED
        assert store.read.isdisjoint(run.id for run in others)
