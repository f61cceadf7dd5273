"""PostgreSQL as a place of the simulation in real time, and bugs planted there.

Triggers write each change of runs and jobs to a table, signed by the client and its call. What a
write depended on has a smaller number, and is seen no later: so the watcher reads them by number.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import psycopg
from psycopg import AsyncConnection

from mainspring.core.clock import from_us
from mainspring.core.model import Source, replace
from mainspring.core.transitions import Change
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql import claim, commit
from mainspring.stores.postgresql import limits as limit_rows
from mainspring.stores.postgresql.codec import JOBS, RUNS, Rows
from mainspring.stores.postgresql.database import Database, Transaction
from mainspring.stores.postgresql.schema import setup_script
from mainspring.stores.postgresql.store import PostgresStore
from tests.support.postgresql.statement_faults import cut
from tests.support.simulation.machines import Machine
from tests.support.simulation.real_time import Planted
from tests.support.simulation.watching import (
    METHOD,
    ConnectionFaults,
    Mirror,
    WatchMonitor,
    notice_stalls,
)

_TRIGGERS = """
CREATE TABLE $.written (
    seq bigserial PRIMARY KEY, tx text, at bigint, signed text, kind text, id text, body jsonb
);
CREATE FUNCTION $.note_write() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO $.written (tx, at, signed, kind, id, body) VALUES (
        pg_current_xact_id()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        current_setting('watch.signed', true), TG_ARGV[0],
        CASE TG_OP WHEN 'DELETE' THEN OLD.id ELSE NEW.id END,
        CASE TG_OP WHEN 'DELETE' THEN NULL ELSE to_jsonb(NEW) END
    );
    RETURN NULL;
END $body$;
CREATE TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON $.runs
    FOR EACH ROW EXECUTE FUNCTION $.note_write('run');
CREATE TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON $.jobs
    FOR EACH ROW EXECUTE FUNCTION $.note_write('job');
"""
_READ = """
SELECT seq, tx, at, signed, kind, id, body FROM $.written WHERE seq > %s ORDER BY seq
"""
_MOST_AT_ONCE = 2000
"""A transaction with an earlier number than the newest that was seen may still be open."""


class AttributedStore(PostgresStore):
    """Each transaction names its author and its call; some break before or after the commit."""

    def __init__(self, url: str, author: str, breaks: ConnectionFaults) -> None:
        super().__init__(url)
        self._author = author
        self._breaks = breaks

    async def open(self, *, create: bool = True) -> None:
        await super().open(create=create)
        db = self._open_session().db
        if not isinstance(db, _AttributedDatabase):
            db.__class__ = _AttributedDatabase
            assert isinstance(db, _AttributedDatabase)
            db.author, db.breaks = self._author, self._breaks


class _AttributedDatabase(Database):
    author: str
    breaks: ConnectionFaults

    async def _transact(
        self,
        work: Callable[[Transaction], Awaitable[Any]],
        limit: float,
        *,
        alone: bool,
        is_keyed: bool = False,
    ) -> Any:
        if alone:
            return await super()._transact(work, limit, alone=True)
        broken = self.breaks.draw()

        async def signed(tx: Transaction) -> Any:
            name = f"{self.author} {METHOD.get()}"
            await tx.rows("SELECT set_config('watch.signed', %s, true)", [name])
            done = await work(tx)
            if broken == "before":
                cut(tx.connection)
            return done

        answer = await super()._transact(signed, limit, alone=False, is_keyed=is_keyed)
        if broken == "after":
            raise StoreUnavailable("injected: the response to the commit is lost")
        return answer


class Watcher:
    def __init__(self, server: str, schema: str, monitor: WatchMonitor, mirror: Mirror) -> None:
        self._server = server
        self._schema = schema
        self._monitor = monitor
        self._mirror = mirror
        self._seen: set[int] = set()
        self.ready = asyncio.Event()

    async def watch(self, machines: list[Machine]) -> None:
        standing = asyncio.get_running_loop().create_task(notice_stalls(machines))
        connection = await AsyncConnection.connect(self._server, autocommit=True)
        sql: Any = _READ.replace("$", self._schema)
        try:
            self.ready.set()
            while not self._monitor.broken.is_set():
                low = max(self._seen, default=0) - _MOST_AT_ONCE
                rows = await (await connection.execute(sql, [low])).fetchall()
                self._take([row for row in rows if row[0] not in self._seen])
                await asyncio.sleep(0.01)
        except psycopg.Error as error:
            self._monitor.fail("engine", f"the watcher sees nothing any more: {error}")
        finally:
            standing.cancel()
            await connection.close()

    def _take(self, rows: list[tuple[Any, ...]]) -> None:
        # A run that ends moves to the other partition: it is deleted, and inserted again.
        last = {(tx, kind, name): seq for seq, tx, _, _, kind, name, _ in rows}
        for seq, tx, at, signed, kind, name, body in rows:
            self._seen.add(seq)
            if body is None and last[tx, kind, name] != seq:
                continue
            clock = self._monitor._watch
            clock.then = from_us(at)
            try:
                if kind == "run":
                    self._take_run(name, body, signed)
                else:
                    self._take_job(name, body, signed)
            except Exception as error:
                self._monitor.fail("engine", f"the watcher itself failed: {error!r}")
                raise
            finally:
                clock.then = None

    def _take_run(self, run_id: str, body: dict[str, Any] | None, signed: str) -> None:
        runs = self._mirror._runs
        if body is None:
            if runs.pop(run_id, None) is not None:
                self._monitor.observe("", "maintain")
            return
        run, old = _read(RUNS, body), runs.get(run_id)
        if run != old:
            runs[run_id] = run
            author, method = signed.split()
            if old is None:
                method = "fire" if run.source is Source.SCHEDULE else "add"
            self._monitor.observe(author, method)

    def _take_job(self, job_id: str, body: dict[str, Any] | None, signed: str) -> None:
        if body is None:
            self._mirror._jobs.pop(job_id, None)
            self._monitor.observe("", "put_jobs")
        else:
            self._mirror._jobs[job_id] = _read(JOBS, body)
            self._monitor.observe(*signed.split())


def _read(rows: Rows[Any], body: dict[str, Any]) -> Any:
    return rows.read([body[name] for name in rows.names])


class WatchedSchema:
    def __init__(self, server: str, seed: int) -> None:
        self._server = server
        self._name = f"sim_{seed}_{uuid.uuid4().hex[:8]}"
        made: Any = setup_script(self._name) + _TRIGGERS.replace("$.", f"{self._name}.")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(made)

    def store(self, author: str, breaks: ConnectionFaults) -> AttributedStore:
        return AttributedStore(f"{self._server}?schema={self._name}", author, breaks)

    def watcher(self, monitor: WatchMonitor, mirror: Mirror) -> Watcher:
        return Watcher(self._server, self._name, monitor, mirror)


# Bugs planted on purpose: the invariants must notice each, on this store too


_encode = commit.EncodedChange.of


def _without_fence(change: Change) -> commit.EncodedChange:
    return _encode(replace(change, expect={}))


async def _without_lock(tx: Transaction, names: Iterable[str]) -> None:
    tx.now = await tx.current_time()


PLANTED = (
    Planted(
        "no fence",
        "a commit ignores what it expects",
        frozenset({"fence", "finished", "cancel", "attempts", "rescue", "completion", "suspects"}),
        (commit.EncodedChange, "of", _without_fence),
        stress=True,
    ),
    Planted(
        "no row locks",
        "a claim takes runs that another claim is taking",
        frozenset({"lease", "tokens", "attempts", "finished", "fence", "early", "start", "alone"}),
        (claim, "_LOCK_FIRST", claim._LOCK_FIRST.replace("FOR UPDATE {locked}", "")),
    ),
    Planted(
        "no lock of limits",
        "two claims count one limit at the same time",
        frozenset({"limit", "rate"}),
        (limit_rows, "lock", _without_lock),
    ),
)
