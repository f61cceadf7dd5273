"""Runs the tests of the suite: opens a store for each, moves time, and builds runs and jobs.

Each test is a coroutine that takes the opened store. It becomes a plain function when its class is
created, so the suite needs only pytest.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import Job, Run, Source, State, replace, slot_run_id
from mainspring.core.policy import Overlap, Policy
from mainspring.stores.protocol import (
    Claim,
    Fired,
    Firing,
    Held,
    JobQuery,
    Renewed,
    RunQuery,
    Store,
)
from mainspring.testing.store_calls import drop_job, get_runs, put_job
from mainspring.testing.virtual_time import FakeClock

Repair = Callable[[], Awaitable[None]]
"""Puts back what a test has damaged."""


class Suite:
    """The methods that the author of a store overrides, and helpers for the tests."""

    tick: float = 1.0
    """The suite's unit of time in seconds. Real time wants a small one (0.2) with `advance`."""

    clock: FakeClock
    """A clock to give to the store, where it takes one."""

    reads_clock: bool = False
    """Whether the store reads `clock`: then steps of the wall clock are tried as well."""

    refuses_when_closed: bool = True
    """Whether every call of a closed store raises, as the protocol says."""

    place: Path
    """An empty directory for this test alone."""

    start: datetime
    """The store's time when the test began."""

    def make_store(self) -> Store:
        """Make a store that is not open. It may use the folder `self.place` and `self.clock`."""
        raise NotImplementedError("say how a store is made: override make_store()")

    def make_peer(self, store: Store) -> Store:
        """Make another client of the same data, as a second process would have."""
        return self.make_store()

    async def write_effect(self, session: Any, name: str) -> None:
        """Write an effect of that name with the session of a transaction."""
        raise NotImplementedError("say how a handler writes: override write_effect()")

    def write_effect_blocking(self, session: Any, name: str) -> None:
        """The same in code that is not async."""
        raise NotImplementedError("say how a handler writes: override write_effect_blocking()")

    async def effects(self, store: Store) -> list[str]:
        """The names of the effects that were committed, sorted."""
        raise NotImplementedError("say how effects are read: override effects()")

    def caller_transaction(self, store: Store) -> AbstractAsyncContextManager[Any]:
        """Begin a transaction on a connection that is not the store's, and give what `within` and
        `write_effect` take. It is committed at the end of the block, and rolled back on errors."""
        raise NotImplementedError("say how a caller begins: override caller_transaction()")

    async def damage_run(self, store: Store, run_id: str, part: str) -> Repair:
        """Damage a part of a run's record, behind the store's back, so that it cannot be read.

        `part` is the name of one of a run's fields (payload, result, attempts, progress, after,
        source; `state`: one that no version knows). Gives what puts the part back, unless
        something has overwritten it since. The tests that need it are skipped where it is not
        overridden.
        """
        pytest.skip("say how a record is damaged: override damage_run()")

    async def damage_job(self, store: Store, job_id: str, part: str) -> Repair:
        """The same for a job: its schedule, policy, payload or `definition` (all of it)."""
        pytest.skip("say how a record is damaged: override damage_job()")

    async def damage_note(self, store: Store, kind: str, name: str) -> None:
        """Damage the value of a note's record, so that it cannot be read."""
        pytest.skip("say how a record is damaged: override damage_note()")

    async def damage_every_field(
        self, store: Store, kind: str, record_id: str
    ) -> AsyncIterator[str]:
        """Damage a run or a job (`kind`) in one way after the other, and say which: each field of
        its record with a value of a wrong type, or without one. Before the next way, and at the
        end, the record is put back as it was."""
        pytest.skip("say how a record is damaged: override damage_every_field()")
        yield ""

    async def advance(self, seconds: float) -> None:
        """Let time pass, for the store too."""
        self.clock.advance(seconds)

    def __init_subclass__(cls) -> None:
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _plain(test))

    async def peer(self, store: Store) -> Store:
        peer = self.make_peer(store)
        if peer is not store:
            await peer.open()
            self._stack.push_async_callback(peer.close)
        return peer

    async def pass_ticks(self, count: float) -> None:
        await self.advance(count * self.tick)

    def ticks(self, count: float) -> timedelta:
        return timedelta(seconds=count * self.tick)

    def at(self, count: float) -> datetime:
        return self.start + self.ticks(count)

    def run(self, run_id: str = "run", **fields: Any) -> Run:
        """A run that has been due since the test began."""
        times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), self.start)
        return Run(**{"id": run_id, "job_id": "job", "handler": "work", **times, **fields})

    def runs(self, *ids: str, **fields: Any) -> list[Run]:
        return [self.run(run_id, **fields) for run_id in ids]

    def job(self, job_id: str = "job", **fields: Any) -> Job:
        times = {"created_at": self.start, "updated_at": self.start}
        return Job(**{"id": job_id, "handler": "work", **times, **fields})

    async def put(self, store: Store, job_id: str = "job", **policy: Any) -> Job:
        """Make or change a job's policy, and read it back."""
        stored = (await store.jobs(JobQuery(ids=frozenset({job_id})))).items
        job = stored[0] if stored else self.job(job_id, next_run_at=self.start)
        assert await put_job(store, replace(job, policy=Policy.make(job.policy, **policy)))
        return (await store.jobs(JobQuery(ids=frozenset({job_id})))).items[0]

    async def make_anew(self, store: Store, job_id: str = "job", **fields: Any) -> Job:
        """Drop a job, make another one under its id a tick later, and read it back."""
        assert await drop_job(store, job_id)
        assert await put_job(store, self.job(job_id, created_at=self.at(1), **fields))
        return await self.read_job(store, job_id)

    async def claim(self, store: Store, limit: int = 100, **fields: Any) -> list[Run]:
        given = {"worker": "w1", "handlers": frozenset({"work"}), "lease": self.ticks(30), **fields}
        return (await store.claim(Claim(limit=limit, **given))).runs

    async def claim_ids(self, store: Store, limit: int = 100, **fields: Any) -> list[str]:
        return [run.id for run in await self.claim(store, limit, **fields)]

    async def running(self, store: Store, run_id: str = "run", **fields: Any) -> Run:
        """Add a run and claim it."""
        new = self.run(run_id, **fields)
        await store.add([new])
        [run] = await self.claim(store, handlers=frozenset({new.handler}))
        return run

    async def finished(self, store: Store, run_id: str = "run", **fields: Any) -> Run:
        await self.succeed(store, await self.running(store, run_id, **fields))
        return await self.one(store, run_id)

    async def succeed(self, store: Store, *held: Run) -> None:
        now = await store.now()
        ends = [transitions.succeeded(run, now, None) for run in held]
        assert await store.commit(ends) == [True] * len(held)

    async def added(self, store: Store, run_id: str, **fields: Any) -> tuple[str, bool]:
        """Add a run; gives the id of the run that is stored, and whether it holds the key."""
        [added] = await store.add([self.run(run_id, **fields)])
        return added.run.id, added.duplicate

    async def renew(self, store: Store, *runs: Run, lease: float = 30) -> list[Renewed]:
        return await store.renew([Held(r.id, r.token) for r in runs], self.ticks(lease))

    async def one(self, store: Store, run_id: str = "run") -> Run:
        return (await get_runs(store, [run_id]))[run_id]

    async def states(self, store: Store, *ids: str) -> list[State | None]:
        stored = await get_runs(store, ids)
        return [stored[i].state if i in stored else None for i in ids]

    async def all_ids(self, store: Store, **query: Any) -> list[str]:
        """Every id that a query finds, page by page."""
        ids: list[str] = []
        cursor = None
        for _ in range(1000):
            page = await store.find(RunQuery(cursor=cursor, **query))
            ids += [run.id for run in page.items]
            if page.cursor is None:
                return ids
            cursor = page.cursor
        raise AssertionError("a thousand pages, and no end to them")

    async def lapsed(self, store: Store) -> list[str]:
        return await self.all_ids(store, lapsed=True)

    def slot(self, at: datetime, job_id: str = "job", **fields: Any) -> Run:
        """The run of a slot, as the scheduler makes it."""
        given = {"source": Source.SCHEDULE, "scheduled_at": at, "run_at": at, **fields}
        return self.run(slot_run_id(job_id, at), job_id=job_id, **given)

    async def fire(
        self,
        store: Store,
        job: Job,
        at: datetime,
        overlap: str = "skip",
        *rest: Run,
        valid_until: datetime | None = None,
    ) -> Fired:
        firing = self.firing(job, at, overlap, *rest, valid_until=valid_until)
        [fired] = await store.fire([firing])
        return fired

    def firing(
        self,
        job: Job,
        at: datetime,
        overlap: str,
        *rest: Run,
        valid_until: datetime | None = None,
    ) -> Firing:
        return Firing(
            job_id=job.id,
            version=job.version,
            runs=(self.slot(at, job.id), *rest),
            overlap=Overlap(overlap),
            next_run_at=at + self.ticks(60),
            last_run_at=at,
            valid_until=valid_until,
        )

    async def read_job(self, store: Store, job_id: str = "job") -> Job:
        [job] = (await store.jobs(JobQuery(ids=frozenset({job_id})))).items
        return job

    async def _run_test(
        self, test: Callable[..., Awaitable[None]], place: Path, given: dict[str, Any]
    ) -> None:
        self.place = place
        self.clock = FakeClock()
        async with AsyncExitStack() as self._stack:
            store = self.make_store()
            await store.open()
            self._stack.push_async_callback(store.close)
            self.start = await store.now()
            await test(self, store, **given)


def _plain(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The coroutine test as a function that pytest can call; its parameters stay fixtures."""

    def run(self: Suite, tmp_path: Path, **given: Any) -> None:
        asyncio.run(self._run_test(test, tmp_path, given))

    _self, _store, *others = inspect.signature(test).parameters.values()
    place = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__dict__.update(vars(test))  # the marks
    run.__name__, run.__qualname__ = test.__name__, test.__qualname__
    run.__doc__, run.__module__ = test.__doc__, test.__module__
    run.__signature__ = inspect.Signature([_self, place, *others])  # type: ignore[attr-defined]
    return run
