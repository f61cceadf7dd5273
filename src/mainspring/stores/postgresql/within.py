"""`add(runs, within=…)`: adds runs in a transaction of the caller's own connection.

The statements are those of the store, over the caller's driver, sync or async. A run without a
dedupe key costs one. The transaction cannot be sent again here: so where another client has taken a
key meanwhile, what was inserted is deleted, and the holder of the key is looked for anew. A
transaction above READ COMMITTED does not see a holder that is newer than its snapshot. If that is
unfinished, the unique index makes PostgreSQL raise a serialization failure. If it has ended, and
still holds its key, only another connection can tell: one of the store's own is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from mainspring.core.clock import Clock
from mainspring.core.model import Run
from mainspring.core.statistics import ending_of
from mainspring.errors import Conflict, StoreError
from mainspring.stores.caller_connection import CallerConnection, check_upstream, recognise, refuse
from mainspring.stores.evaluation import new_run_by_clock
from mainspring.stores.postgresql import counters
from mainspring.stores.postgresql.codec import INSERT_RUNS, arrays, run_row, runs_by_id
from mainspring.stores.postgresql.commit import WAIT
from mainspring.stores.postgresql.database import MOST_TRIES, BlockingConnection, Rows, Transaction
from mainspring.stores.postgresql.dedupe import CHUNK, find_held_keys
from mainspring.stores.protocol import Added

ACCEPTED = (
    "a connection of psycopg, psycopg2 or asyncpg, Django's connection, or a Session, AsyncSession,"
    " Connection or AsyncConnection of SQLAlchemy"
)

_IDENTITY = "SELECT value FROM mainspring.meta WHERE name = 'identity'"
_INSERT = f"{INSERT_RUNS} RETURNING id"
_UNDO = "DELETE FROM mainspring.runs WHERE NOT done AND id = ANY(%s) RETURNING id"


class Callers:
    """Opens transactions on connections of callers, and remembers which of these were checked: a
    connection never leaves its database."""

    def __init__(self, schema: str, identity: int, clock: Clock | None) -> None:
        self._schema = schema
        self._identity = identity
        self._clock = clock
        self._checked: WeakSet[Any] = WeakSet()

    async def transaction(self, within: Any) -> tuple[Transaction, CallerConnection]:
        caller = await recognise(within, ACCEPTED)
        make = _ADAPTERS.get(caller.driver)
        if make is None:
            refuse(within, "this is no connection to PostgreSQL", ACCEPTED)
        adapter = make(caller.connection)
        if (why := adapter.refusal()) is not None:
            refuse(within, why, ACCEPTED)
        tx = Transaction(adapter, self._schema, self._clock)
        if caller.connection not in self._checked:
            await self._check(tx, within)
            self._checked.add(caller.connection)
        return tx, caller

    async def _check(self, tx: Transaction, within: Any) -> None:
        [[known]] = await tx.rows("SELECT to_regclass(%s) IS NOT NULL", [f'"{self._schema}".meta'])
        if not known or await tx.rows(_IDENTITY) != [(self._identity,)]:
            refuse(within, "this connection is to another database than the store's", ACCEPTED)


async def add_within(
    tx: Transaction, runs: Sequence[Run], is_held: Callable[[list[str]], Awaitable[bool]]
) -> list[Added]:
    """`is_held`: whether an ended run still holds one of these keys, read on a connection of the
    store."""
    upstream = {name for run in runs for name in run.after}
    if upstream:
        check_upstream(list(runs), set(await runs_by_id(tx, upstream, brief=True)))
    keyed = any(run.dedupe_key is not None for run in runs)
    if keyed or any(run.finished for run in runs):
        await tx.begin()
        runs = [new_run_by_clock(run, tx.time) for run in runs]
    for tries in count(1):
        duplicates = await find_held_keys(tx, runs, {}) if keyed else {}
        fresh = [run for at, run in enumerate(runs) if at not in duplicates]
        keys = [run.dedupe_key for run in fresh if run.dedupe_key is not None]
        added = await _insert(tx, fresh)
        done = False
        try:
            done = len(added) == len(fresh) and not (keys and await is_held(keys))
        finally:
            if not done:  # also where the store did not answer, and the caller commits all the same
                await tx.rows(_UNDO, [added])
        if done:
            break
        if not keyed:
            raise StoreError("a run of one of these ids is stored already")
        if tries == MOST_TRIES:
            raise Conflict(
                "other clients have taken a dedupe key, and this transaction does not see their"
                " runs: roll it back and begin again"
            )
    waits = [(name, run.id) for run in fresh for name in run.after]
    if waits:
        await tx.changed(WAIT, arrays(waits))
    await counters.count(tx, [ending_of(run) for run in fresh if run.finished])
    return [duplicates[at] if at in duplicates else Added(run) for at, run in enumerate(runs)]


async def _insert(tx: Transaction, runs: Sequence[Run]) -> list[str]:
    """Return the ids of those that were inserted."""
    added: list[str] = []
    for start in range(0, len(runs), CHUNK):
        rows = arrays([run_row(run) for run in runs[start : start + CHUNK]])
        added += [run_id for (run_id,) in await tx.rows(_INSERT, rows)]
    return added


# -- the drivers ----------------------------------------------------------------------------


class _Psycopg(BlockingConnection):
    def refusal(self) -> str | None:
        if self._connection.closed:
            return "this connection is closed"
        info = self._connection.info
        if getattr(info, "pipeline_status", PipelineStatus.OFF) != PipelineStatus.OFF:  # psycopg 3
            return "this connection is in pipeline mode, and enqueue needs each response at once"
        idle = info.transaction_status == TransactionStatus.IDLE
        return _AUTOCOMMIT if idle and self._connection.autocommit else None


class _AsyncPsycopg(_Psycopg):
    async def execute(self, sql: str, parameters: list[Any], **_: Any) -> Any:
        cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
        return await cursor.execute(sql, parameters)


class _Psycopg2(_Psycopg):
    async def execute(self, sql: str, parameters: list[Any], **_: Any) -> Any:
        plain = sys.modules["psycopg2.extensions"].cursor
        with self._connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(sql, parameters)
            return Rows.of(cursor)


class _Asyncpg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def refusal(self) -> str | None:
        if self._connection.is_closed():
            return "this connection is closed"
        return None if self._connection.is_in_transaction() else _AUTOCOMMIT

    async def execute(self, sql: str, parameters: list[Any], **_: Any) -> Any:
        parts = sql.split("%s")
        numbered = "".join(f"{part}${n}" for n, part in enumerate(parts[:-1], 1)) + parts[-1]
        return Rows([tuple(row) for row in await self._connection.fetch(numbered, *parameters)])


_AUTOCOMMIT = "this connection is in no transaction, and commits each statement by itself"
_ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "psycopg.Connection": _Psycopg,
    "psycopg.AsyncConnection": _AsyncPsycopg,
    "psycopg2.connection": _Psycopg2,
    "asyncpg.Connection": _Asyncpg,
    "asyncpg.PoolConnectionProxy": _Asyncpg,
}
