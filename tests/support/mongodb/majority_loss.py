"""Loses every write that only one server has: freezes the secondaries, goes on writing, kills all
three servers, restarts the secondaries first.

Plain kills show nothing: a primary that dies has nearly always replicated what it acknowledged.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from mainspring import Run, State
from mainspring.core import transitions
from mainspring.core.model import Job, Source, replace
from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import JobQuery
from mainspring.testing.store_calls import claim_runs, get_runs, put_job
from tests.support.mongodb.store import CLAIM
from tests.support.records import a_firing, a_run
from tests.support.servers.mongodb import Mongod, ReplicaSet, with_database
from tests.support.servers.server import wait_for

__all__ = ["KINDS", "lose_unreplicated_writes"]

KINDS = frozenset({"added", "claimed", "ended", "cancelled", "put", "fired"})
"""What a store acknowledges."""
LEASE = timedelta(minutes=10)


async def lose_unreplicated_writes(
    servers: ReplicaSet, options: str = ""
) -> tuple[Counter[str], Counter[str]]:
    """How much of each kind was acknowledged, and how much of that is gone or undone."""
    database = f"cut{uuid.uuid4().hex[:8]}"
    url = f"{with_database(servers.url, database)}&timeoutMS=1000{options}"
    client = _AcknowledgingClient(MongoStore(url))
    await client.store.open()
    try:
        await client.prepare()
        first = servers.primary()
        for member in servers.secondaries():
            member.freeze()
        await client.write()
    finally:
        await client.store.close()
    others = [member for member in servers.members if member is not first]
    for member in servers.members:
        member.kill()
    await asyncio.to_thread(_restart, servers, others)
    await asyncio.to_thread(servers.heal)
    await client.store.open()
    try:
        return Counter(map(_kind, client.acknowledged)), Counter(map(_kind, await client.lost()))
    finally:
        await client.store.close()


Acknowledged = tuple[str, str, Any]
"""A kind, an id, and what was said of it."""


def _kind(acknowledged: Acknowledged) -> str:
    return acknowledged[0]


class _AcknowledgingClient:
    """A client that remembers what the store acknowledged, which may have been wrong."""

    def __init__(self, store: MongoStore) -> None:
        self.store = store
        self.acknowledged: list[Acknowledged] = []
        self._held: list[Run] = []
        self._first_versions: dict[str, int] = {}

    async def prepare(self) -> None:
        """A little of everything while all is well, and enough to go on with."""
        await self._add("before", 60)
        await self._claim("before", 40)
        await self._end(self._held[:10])
        await self._cancel("before-50", "before-51")
        for name in ("well", "frozen"):
            await self._put(name)
        await self._fire("well")

    async def write(self) -> None:
        """Each write in its own, so that one which waits in vain keeps no other from being sent;
        and each twice, as whoever was not answered would."""
        await asyncio.gather(
            self._twice(lambda: self._add("frozen", 20)),
            self._twice(lambda: self._claim("frozen", 5)),
            self._twice(lambda: self._end(self._held[10:30])),
            self._twice(lambda: self._cancel("before-52", "before-53")),
            self._twice(lambda: self._put("new")),
            self._twice(lambda: self._fire("frozen")),
        )

    async def _twice(self, write: Callable[[], Awaitable[None]]) -> None:
        for _ in range(2):
            with suppress(StoreUnavailable):
                await write()

    async def _add(self, name: str, count: int) -> None:
        now = await self.store.now()
        batch = [a_run(now, f"{name}-{n:02}") for n in range(count)]
        self.acknowledged += [("added", one.run.id, None) for one in await self.store.add(batch)]

    async def _claim(self, worker: str, limit: int) -> None:
        claim = replace(CLAIM, worker=worker, limit=limit, lease=LEASE)
        held = await claim_runs(self.store, claim)
        self._held += held
        self.acknowledged += [("claimed", run.id, (worker, run.token)) for run in held]

    async def _end(self, runs: Sequence[Run]) -> None:
        now = await self.store.now()
        kept = await self.store.commit([transitions.succeeded(run, now, run.id) for run in runs])
        self.acknowledged += [
            ("ended", run.id, None) for run, mine in zip(runs, kept, strict=True) if mine
        ]

    async def _cancel(self, *ids: str) -> None:
        found = await get_runs(self.store, ids)
        now = await self.store.now()
        wishes = [transitions.cancelled(run, now, "no more") for run in found.values()]
        for run_id, done in zip(found, await self.store.commit(wishes), strict=True):
            if done:
                self.acknowledged.append(("cancelled", run_id, None))

    async def _put(self, name: str) -> None:
        now = await self.store.now()
        job = Job(id=name, handler="none", created_at=now, updated_at=now, next_run_at=now)
        self._first_versions[name] = job.next_version()
        if await put_job(self.store, job):
            self.acknowledged.append(("put", name, None))

    async def _fire(self, name: str) -> None:
        now = await self.store.now()
        slot = a_run(now, f"{name}-slot", job_id=name, handler="none", source=Source.SCHEDULE)
        job = Job(id=name, handler="none", created_at=now, updated_at=now)
        firing = a_firing(job, slot, version=self._first_versions[name], next_run_at=None)
        [fired] = await self.store.fire([firing])
        if fired.done:
            self.acknowledged.append(("fired", slot.id, None))

    async def lost(self) -> list[Acknowledged]:
        runs = await get_runs(self.store, [run_id for _, run_id, _ in self.acknowledged])
        jobs = {job.id for job in (await self.store.jobs(JobQuery())).items}
        ended = {run_id for kind, run_id, _ in self.acknowledged if kind == "ended"}

        def is_stored(kind: str, name: str, said: Any) -> bool:
            if kind == "put":
                return name in jobs
            run = runs.get(name)
            if run is None:
                return False
            match kind:
                case "ended":
                    return run.state is State.SUCCEEDED
                case "cancelled":
                    return run.state is State.CANCELLED
                case "claimed":
                    return name in ended or (run.worker, run.token) == tuple(said)
            return True

        return [acknowledged for acknowledged in self.acknowledged if not is_stored(*acknowledged)]


def _restart(servers: ReplicaSet, members: Sequence[Mongod]) -> None:
    """Start those that were frozen, and have one of them lead before the old primary is back."""
    for member in members:
        member.launch()
    for member in members:
        member.wait_until_listening()

    def elected() -> bool:
        if servers._primary() is None and len(servers.secondaries()) == len(members):
            members[0].command("replSetStepUp")
        return servers._primary() is not None

    wait_for("a primary among the frozen", elected, members)
