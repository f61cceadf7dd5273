"""Applies changes whose expectations still hold; prunes.

Changes are grouped by shape (the fields that they expect and set), and one statement writes all
changes of a shape. A change was applied, now or by an earlier call, if its run has its id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from mainspring.core.model import FINISHED, LIVE, State
from mainspring.core.statistics import Ending
from mainspring.core.transitions import UPSTREAM_FAILED, Change
from mainspring.stores.batching import split_in_order
from mainspring.stores.evaluation import CLOCK_SET_BACK
from mainspring.stores.postgresql import counters
from mainspring.stores.postgresql.codec import arrays, change_column, unnest
from mainspring.stores.postgresql.database import Transaction

CHUNK = 200
"""Changes in one statement. From about 300 the planner reads the whole table instead."""

_LIVE = tuple(LIVE)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    encode: tuple[tuple[int, Callable[[Any], Any]], ...]
    sql: str
    deletes: bool
    run_at: int | None
    """Where in the values a new `run_at` is."""


class EncodedChange(NamedTuple):
    """A change as column values: the run's id, the expected values, the new values, its own id."""

    id: str
    change_id: int
    shape: _Shape
    values: list[Any]
    applied_alone: bool
    """Whether it may take a dedupe key again, or let the run wait."""
    ending: Ending | None = None
    decided_at: datetime | None = None

    @classmethod
    def of(cls, change: Change) -> EncodedChange:
        expect, put = change.expect, change.set
        state, before = put.get("state"), expect.get("state")
        done = None if state is None else state not in _LIVE
        was_done = None if before is None else before not in _LIVE
        shape = change_shape(tuple(expect), tuple(put), done, was_done, change.deletes)
        values = [change.id, *expect.values(), *put.values(), change.change_id]
        for at, encode in shape.encode:
            if values[at] is not None:
                values[at] = encode(values[at])
        revives = state in _LIVE and before not in _LIVE
        alone = revives or state is State.WAITING
        decided_at = None if shape.run_at is None else change.decided_at
        return cls(change.id, change.change_id, shape, values, alone, change.ending, decided_at)

    def moved_back(self, now: datetime) -> EncodedChange:
        """See `evaluation.fields_of_change`."""
        assert self.decided_at is not None
        assert self.shape.run_at is not None
        values = self.values.copy()
        values[self.shape.run_at] -= (self.decided_at - now) // timedelta.resolution
        return self._replace(values=values)


async def commit_changes(tx: Transaction, items: Sequence[EncodedChange]) -> list[bool]:
    latest = tx.time + CLOCK_SET_BACK
    items = [
        item if item.decided_at is None or item.decided_at <= latest else item.moved_back(tx.time)
        for item in items
    ]
    done = [False] * len(items)
    endings: list[Ending | None] = []
    for part in split_in_order(items, lambda item: item.id, lambda item: item.applied_alone):
        by_shape: dict[_Shape, list[int]] = {}
        for at in part:
            by_shape.setdefault(items[at].shape, []).append(at)
        for shape, places in by_shape.items():
            for start in range(0, len(places), CHUNK):
                chunk = places[start : start + CHUNK]
                written, applied = await _apply(tx, shape, [items[at] for at in chunk])
                for at in chunk:
                    done[at] = items[at].id in applied
                endings += [items[at].ending for at in chunk if items[at].id in written]
    await counters.count(tx, endings)
    return done


async def _apply(
    tx: Transaction, shape: _Shape, group: Sequence[EncodedChange]
) -> tuple[set[str], set[str]]:
    """The runs that were changed now; and those, with those to which an earlier call applied the
    very same change."""
    alone = group[0].applied_alone
    if alone and await tx.rows(_KEY_TAKEN, [tx.now, group[0].id]):
        return set(), set()
    columns = arrays([item.values for item in group])
    rows = await tx.rows(shape.sql, [*columns, tx.now] if shape.deletes else columns)
    written = {run_id for (run_id,) in rows}
    if alone and written:
        await _wait_again(tx, group[0].id)
    left = [item for item in group if item.id not in written]
    if not left:
        return written, written
    return written, written | await _applied_before(tx, shape, left)


async def _applied_before(
    tx: Transaction, shape: _Shape, left: Sequence[EncodedChange]
) -> set[str]:
    rows = await tx.rows(_LAST_CHANGES, [[item.id for item in left]])
    last: dict[str, int | None] = dict(rows)
    return {
        item.id
        for item in left
        if (item.id not in last if shape.deletes else last.get(item.id) == item.change_id)
    }


_LAST_CHANGES = "SELECT id, last_change FROM mainspring.runs WHERE id = ANY(%s)"
_FINISHED = ", ".join(f"'{state}'" for state in sorted(FINISHED))
_KEY_TAKEN = """
SELECT 1 FROM mainspring.runs AS run JOIN mainspring.runs AS other
ON other.dedupe_key = run.dedupe_key AND other.id <> run.id
WHERE run.done AND (NOT other.done OR other.dedupe_until > %s) AND run.id = %s
"""
_SKIPPED = f"(run.state = 'skipped' AND run.reason = '{UPSTREAM_FAILED}')"
KEEPS_UPSTREAM = f"(NOT run.done OR {_SKIPPED})"
"""Whether the row `run` stays in `upstream`."""

WAIT = """
INSERT INTO mainspring.upstream (upstream, run_id) SELECT * FROM unnest(%s::text[], %s::text[])
ON CONFLICT DO NOTHING
"""


async def _wait_again(tx: Transaction, run_id: str) -> None:
    """Note again what the run comes after: maintenance deletes that once a run has finished."""
    rows = await tx.rows(
        'SELECT "after" FROM mainspring.runs WHERE id = %s AND NOT done AND "after" IS NOT NULL',
        [run_id],
    )
    for (text,) in rows:
        with suppress(ValueError):  # it is damaged
            names = [str(name) for name in json.loads(text)]
            await tx.changed(WAIT, [names, [run_id] * len(names)])


_IS_AWAITED = """EXISTS (
    SELECT 1 FROM mainspring.upstream AS wait
    JOIN mainspring.runs AS follower ON follower.id = wait.run_id AND NOT follower.done
    WHERE wait.upstream = run.id
)"""


@cache
def change_shape(
    expect: tuple[str, ...],
    put: tuple[str, ...],
    done: bool | None,
    was_done: bool | None,
    deletes: bool,
) -> _Shape:
    """Make the statement of a shape. A few dozen shapes exist: transitions.py makes them."""
    expected = [change_column(name) for name in expect]
    written = [change_column(name) for name in put]
    types = ["text[]", *(c[2] for c in expected), *(c[2] for c in written), "bigint[]"]
    names = [f"c{at}" for at in range(len(types))]
    values = f"{unnest(types)} AS v ({', '.join(names)})"
    tests = "".join(
        f" AND run.{column} IS NOT DISTINCT FROM v.{name}"
        for (column, _, _), name in zip(expected, names[1:], strict=False)
    )
    if was_done is not None:
        tests += " AND run.done" if was_done else " AND NOT run.done"
    if deletes:
        sql = (
            f"DELETE FROM mainspring.runs AS run USING {values} WHERE run.id = v.c0{tests}"
            f" AND run.done AND (run.dedupe_until IS NULL OR run.dedupe_until <= %s)"
            f" AND NOT {_IS_AWAITED} RETURNING run.id"
        )
    else:
        first = 1 + len(expect)
        sets = [f"{column} = v.{names[first + at]}" for at, (column, _, _) in enumerate(written)]
        sets += [f"last_change = v.{names[-1]}"]
        if done is not None:
            sets.append(f"done = {str(done).lower()}")
        sql = (
            f"UPDATE mainspring.runs AS run SET {', '.join(sets)} FROM {values}"
            f" WHERE run.id = v.c0{tests} RETURNING run.id"
        )
    return _Shape(
        encode=tuple(
            (at, encode)
            for at, (_, encode, _) in enumerate((*expected, *written), 1)
            if encode is not None
        ),
        sql=sql,
        deletes=deletes,
        run_at=1 + len(expect) + put.index("run_at") if "run_at" in put else None,
    )


# -- prune ----------------------------------------------------------------------------------

_PRUNE = f"""
DELETE FROM mainspring.runs WHERE done AND seq IN (
    SELECT run.seq FROM mainspring.runs AS run
    WHERE run.done AND run.finished_at < %s
    AND (run.dedupe_until IS NULL OR run.dedupe_until <= %s) AND NOT {_IS_AWAITED}
    ORDER BY run.finished_at LIMIT %s
)
"""
_WAITED = f"""
DELETE FROM mainspring.upstream WHERE NOT EXISTS (
    SELECT 1 FROM mainspring.runs AS run WHERE run.id = upstream.run_id AND {KEEPS_UPSTREAM}
)
"""


async def prune_runs(tx: Transaction, before: int, limit: int) -> int:
    deleted = await tx.changed(_PRUNE, [before, tx.now, limit])
    if deleted < limit:
        await tx.changed(_WAITED)  # it reads the whole table: not between the steps of a long prune
    return deleted
