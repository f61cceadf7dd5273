"""All that a client of PostgreSQL does in its life, with a fault at one of its statements.

It enqueues with ids and dedupe keys, fires, claims with and without limits, renews, commits, writes
in a handler's transaction, revives and deletes runs, writes jobs and notes, adds counters up and
prunes. After a kill another client does what the first one was not told is done. Nothing is lost,
and nothing is done twice.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Job, Note, Run, State
from mainspring.core.policy import Policy
from mainspring.errors import StoreError, StoreUnavailable, TransactionAborted
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import (
    Claim,
    Held,
    JobQuery,
    JobWrite,
    NoteQuery,
    NoteWrite,
)
from mainspring.testing import FakeClock
from tests.support.client_life import KEPT, LEASE, OLD, TOGETHER, ClientLife
from tests.support.postgresql import SharedSchema
from tests.support.postgresql.statement_faults import Client, Effect, Killed

ENQUEUED = ["new0", "new1", "new2"]
LIMITED = ["limited0", "limited1"]
WRITES = ["effect", "effect in a thread"]
"""Their handlers write in a transaction with the end of the run."""
SUCCEED = len(ENQUEUED) + len(TOGETHER) + len(LIMITED) + len(WRITES) + 2
ENDED = {State.SUCCEEDED: SUCCEED - len(LIMITED), State.FAILED: 4}


class Life(ClientLife):
    """What happens in a schema, and what its clients were told."""

    def __init__(self, schema: SharedSchema) -> None:
        self.fake_clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
        super().__init__(self.fake_clock)
        self.schema = schema
        self.owed: list[transitions.Change] = []
        """Ends of runs whose commits failed: the same client sends them again."""

    async def live(self, client: Client, worker: str) -> None:
        """All that a client does, again where the store could not be reached."""
        store = PostgresStore(self.schema.url, self.clock)
        for _ in range(4):
            try:
                with client.calling():
                    await store.open()
                    await self._live_once(store, worker)
                    await store.close()
                return
            except (StoreUnavailable, TransactionAborted):
                self.fake_clock.advance(LEASE.total_seconds() + 1)
                if client.dead:  # a task of its own was killed, that sends hints
                    break
            except Killed:
                break
        self.owed.clear()
        with suppress(StoreError, Killed):
            await store.close()
        if client.dead:
            raise Killed
        raise AssertionError("the store cannot be reached though nothing is wrong any more")

    async def _live_once(self, store: PostgresStore, worker: str) -> None:
        for change in list(self.owed):
            await self._end(store, change)
        await self._put_jobs(store)
        note = Note(kind="k", name="n", value=1)
        await store.put_notes([NoteWrite(note.kind, note.name, 0, note)])
        for number in range(2):
            await self.add(store, self.finished(f"old{number}", self.slot - OLD))
        for run_id in ENQUEUED:
            await self.add(store, self.run(run_id))
        await self.add_together(store)
        await self.add(store, *(self.run(run_id, job_id="limited") for run_id in LIMITED))
        await self.add(store, *(self.run(run_id) for run_id in WRITES))
        await self.revive_and_delete(store)
        await self.fire(store)
        await self.rescue(store)
        await self._work_off(store, worker)
        await store.maintain(None, 100)
        await store.maintain(self.clock.now() - KEPT, 100)

    async def _put_jobs(self, store: PostgresStore) -> None:
        times: Any = {"created_at": self.slot, "updated_at": self.slot}
        job = Job(id="job", handler="work", next_run_at=self.slot, **times)
        limits = Policy.make(concurrency=1, rate="10/1h")
        others = [Job(id="dropped", handler="work", **times)]
        others.append(Job(id="limited", handler="work", policy=limits, **times))
        if "jobs" not in self.told:
            await store.put_jobs([JobWrite.add(one) for one in (job, *others)])
            self.told.add("jobs")
        await store.put_jobs([JobWrite.drop("dropped")])

    async def _work_off(self, store: PostgresStore, worker: str) -> None:
        wanted = Claim(worker=worker, handlers=frozenset({"work"}), limit=3, lease=LEASE)
        while claimed := (await store.claim(wanted)).runs:
            for run in claimed:
                self.claims[run.id, run.token] += 1
            assert sum(run.job_id == "limited" for run in claimed) <= 1
            assert len(await store.renew([Held(r.id, r.token) for r in claimed], LEASE)) == len(
                claimed
            )
            for run in claimed:
                change = transitions.succeeded(run, await store.now(), run.token)
                if run.id in WRITES:
                    await self._write(store, run, change)
                else:
                    self.owed.append(change)
            for change in list(self.owed):
                await self._end(store, change)

    async def _end(self, store: PostgresStore, change: transitions.Change) -> None:
        assert await store.commit([change]) == [True]
        self.ended[change.id] = change.set["result"]
        self.owed.remove(change)

    async def _write(self, store: PostgresStore, run: Run, change: transitions.Change) -> None:
        """What a failed commit leaves is not known: the run is rescued where it was not ended."""
        blocking = run.id == WRITES[1]
        sql = f"INSERT INTO {self.schema.name}.effects VALUES (%s)"
        transaction = store.transaction(Held(run.id, run.token), LEASE, blocking=blocking)
        connection = await transaction.begin()
        try:
            if blocking:
                connection.execute(sql, [run.id])
            else:
                await connection.execute(sql, [run.id])
            assert await transaction.commit(change)
        except BaseException as error:
            with suppress(Killed):
                await transaction.rollback()
            if isinstance(error, Exception) and transaction.transient(error):
                raise StoreUnavailable("as the engine takes it") from error
            raise
        self.ended[run.id] = run.token

    async def check(self) -> None:
        """Another client finds every run, once, and nothing that is not needed."""
        store = PostgresStore(self.schema.url, self.clock)
        await store.open()
        expected = [*ENQUEUED, *TOGETHER, *LIMITED, *WRITES, "revived", self.slot_run]
        await self.check_runs(store, expected)
        jobs = (await store.jobs(JobQuery())).items
        assert sorted(job.id for job in jobs) == ["job", "limited"]
        notes = (await store.notes(NoteQuery(kind="k"))).items
        assert [note.version for note in notes] == [1]
        effects = self.schema.execute("SELECT name FROM $.effects ORDER BY 1")
        assert effects == [(name,) for name in sorted(WRITES)]
        counts = await store.counts(self.slot - timedelta(days=5), frozenset({"job", "limited"}))
        assert counts.totals["job"].ended == ENDED
        assert counts.totals["limited"].ended == {State.SUCCEEDED: len(LIMITED)}
        assert self.schema.execute("SELECT * FROM $.upstream") == []
        await store.close()


async def prepare(schema: SharedSchema) -> None:
    """Make the tables, and one of the user's own."""
    store = PostgresStore(schema.url)
    await store.open()
    await store.close()
    schema.execute("CREATE TABLE $.effects (name text)")


async def live_through(schema: SharedSchema, effect: Effect, at: int) -> bool:
    """A client meets a fault at that statement, and another one goes on if it was killed. False if
    there were fewer statements."""
    schema.empty()
    schema.execute("TRUNCATE $.effects")
    life = Life(schema)
    first = Client(effect, at)
    with suppress(Killed):
        await life.live(first, "first")
    if first.dead:
        life.fake_clock.advance(LEASE.total_seconds() + 1)
        together = schema.execute("SELECT id FROM $.runs WHERE id = ANY(%s)", [TOGETHER])
        assert len(together) in (0, len(TOGETHER))
        await life.live(Client(), "second")
    await life.check()
    return first.met
