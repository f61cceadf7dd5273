"""Adds runs: each id once, each dedupe key held by one of them.

Of unfinished runs a unique index sees to both. A finished run may hold its id and its key too: so
the finished ones are looked at again after the insert. A run that ended meanwhile left the index
before its row was there to be found, and is found then. Where two clients have met, the transaction
is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.errors import SerializationFailure

from mainspring.core import codec
from mainspring.core.model import Run, replace
from mainspring.core.statistics import ending_of
from mainspring.stores.evaluation import new_run_by_clock
from mainspring.stores.postgresql import counters
from mainspring.stores.postgresql.codec import (
    INSERT_RUNS,
    arrays,
    run_row,
    runs_by_id,
    select_runs,
)
from mainspring.stores.postgresql.commit import WAIT
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.protocol import Added
from mainspring.stores.sql import Lane, find_duplicates

CHUNK = 500
"""Runs in one statement."""

WITHOUT_OTHER_ADDS = "LOCK TABLE mainspring.runs_live IN SHARE ROW EXCLUSIVE MODE"
"""The first statement of an `add` with finished runs, as a copy makes it: no index keeps another
client from adding an unfinished run of the same id meanwhile. (A slot's finished run is added under
the lock of its job.)"""

BRIEF_WAIT = "SET LOCAL lock_timeout = '500ms'"
"""While that lock is waited for, every other write waits behind it."""


def as_stored(run: Run) -> Run:
    """The run as a later read gives it; raises where it cannot be kept."""
    Lane.of(run)
    if run.payload is None and not run.duplicate:
        return run
    return replace(run, payload=codec.decode(codec.encode(run.payload)), duplicate=False)


async def add_runs(tx: Transaction, runs: Sequence[Run]) -> list[Added]:
    runs = [new_run_by_clock(run, tx.time) for run in runs]
    known = await runs_by_id(tx, [run.id for run in runs])
    duplicates = await find_held_keys(tx, runs, known)
    fresh: dict[str, Run] = {}
    for at, run in enumerate(runs):
        if at not in duplicates and run.id not in known:
            fresh.setdefault(run.id, run)
    await _insert(tx, list(fresh.values()))
    await counters.count(tx, [ending_of(run) for run in fresh.values() if run.finished])
    return [
        duplicates[at] if at in duplicates else Added(known.get(run.id, fresh.get(run.id, run)))
        for at, run in enumerate(runs)
    ]


async def _insert(tx: Transaction, runs: Sequence[Run]) -> None:
    for start in range(0, len(runs), CHUNK):
        part = runs[start : start + CHUNK]
        if await tx.changed(INSERT_RUNS, arrays([run_row(run) for run in part])) < len(part):
            raise SerializationFailure("another client has added one of the runs")
    if await tx.rows(_ENDED_MEANWHILE, [[run.id for run in runs], _keys(runs), tx.now]):
        raise SerializationFailure("a run that holds an id or a key has ended meanwhile")
    waits = [(name, run.id) for run in runs for name in run.after]
    if waits:
        await tx.changed(WAIT, arrays(waits))


def _keys(runs: Sequence[Run]) -> list[str]:
    return [run.dedupe_key for run in runs if run.dedupe_key is not None and not run.finished]


_ENDED_MEANWHILE = """
SELECT 1 FROM mainspring.runs WHERE done AND id = ANY(%s) AND EXISTS (
    SELECT 1 FROM mainspring.runs AS live WHERE NOT live.done AND live.id = runs.id
)
UNION ALL
SELECT 1 FROM mainspring.runs WHERE done AND dedupe_key = ANY(%s) AND dedupe_until > %s
"""
_HELD_BY_ENDED = (
    "SELECT 1 FROM mainspring.runs WHERE done AND dedupe_key = ANY(%s) AND dedupe_until > %s"
)
_HOLDERS = """
WHERE (NOT done AND dedupe_key = ANY(%s)) OR (done AND dedupe_key = ANY(%s) AND dedupe_until > %s)
"""


async def is_held_by_ended(tx: Transaction, keys: Sequence[str]) -> bool:
    """Whether a run that has ended holds one of these keys."""
    return bool(await tx.rows(_HELD_BY_ENDED, [list(keys), tx.now]))


async def find_held_keys(
    tx: Transaction, runs: Sequence[Run], known: dict[str, Run]
) -> dict[int, Added]:
    """Those whose dedupe key is taken, by a stored run or by an earlier one, by position."""
    keys = [run.dedupe_key for run in runs if run.dedupe_key is not None]
    if not keys:
        return {}
    held = await select_runs(tx, _HOLDERS, [keys, keys, tx.now])
    holders = {run.dedupe_key: run for _, run in held}
    return find_duplicates(runs, set(known), holders, tx.time)
