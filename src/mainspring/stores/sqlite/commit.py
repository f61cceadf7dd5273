"""Applies changes whose expectations still hold, and deletes old runs.

Changes are grouped by shape (the fields that they expect and set), and one statement writes all
changes of a shape. If it changed as many rows as there are changes, all were applied. Otherwise the
rows are read back: a change was applied, now or by an earlier call, if its run has its id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from mainspring.core.model import FINISHED, LIVE, State
from mainspring.core.statistics import Ending
from mainspring.core.transitions import UPSTREAM_FAILED, Change
from mainspring.stores.batching import split_in_order
from mainspring.stores.evaluation import CLOCK_SET_BACK
from mainspring.stores.protocol import TTL_NOTE_KEPT
from mainspring.stores.sqlite.codec import LANE_SQL, change_column, span_us
from mainspring.stores.sqlite.counters import count
from mainspring.stores.sqlite.counters import prune as prune_counters
from mainspring.stores.sqlite.statements import BulkSql, WriteTransaction, bulk, select

_LIVE = tuple(LIVE)  # an enum's hash is slower than three comparisons
_MOVES_LANE = frozenset({"queue", "handler", "job_id", "priority"})


class PartlyRepeated(Exception):
    """Of changes that were applied together, some were applied before. Which ones is not known, so
    none could be counted: they have to be applied one by one, in a transaction from the start."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    encode: tuple[tuple[int, Callable[[Any], Any]], ...]
    update: BulkSql
    moves_lane: bool
    deletes: bool
    run_at: int | None
    """Where in the values a new `run_at` is."""


class EncodedChange(NamedTuple):
    """A change as column values: the run's id, the expected values, the new values, and the id of
    the change (for a deletion, the time at which no dedupe key may be held)."""

    id: str
    change_id: int
    shape: _Shape
    values: list[Any]
    applied_alone: bool
    """Whether it may take a dedupe key again, change the run's lane, or let the run wait. Such a
    change is written by itself."""
    ending: Ending | None = None
    decided_at: datetime | None = None

    @classmethod
    def of(cls, change: Change) -> EncodedChange:
        expect, put = change.expect, change.set
        shape = change_shape(tuple(expect), tuple(put), change.deletes)
        values = [change.id, *expect.values(), *put.values(), change.change_id]
        for at, encode in shape.encode:
            if values[at] is not None:
                values[at] = encode(values[at])
        revives = put.get("state") in _LIVE and expect.get("state") not in _LIVE
        waits = put.get("state") is State.WAITING
        alone = revives or waits or shape.moves_lane
        decided_at = None if shape.run_at is None else change.decided_at
        return cls(change.id, change.change_id, shape, values, alone, change.ending, decided_at)

    def moved_back(self, now: datetime) -> EncodedChange:
        """See `evaluation.fields_of_change`."""
        assert self.decided_at is not None
        assert self.shape.run_at is not None
        values = self.values.copy()
        values[self.shape.run_at] -= (self.decided_at - now) // timedelta.resolution
        return self._replace(values=values)


def commit_changes(tx: WriteTransaction, items: Sequence[EncodedChange]) -> list[bool]:
    latest = tx.time + CLOCK_SET_BACK
    items = [
        item if item.decided_at is None or item.decided_at <= latest else item.moved_back(tx.time)
        for item in items
    ]
    done = [False] * len(items)
    is_new = [False] * len(items)
    alone = _is_alone if not tx.one_by_one else lambda _: True
    for part in split_in_order(items, lambda item: item.id, alone):
        by_shape: dict[_Shape, list[int]] = {}
        for at in part:
            by_shape.setdefault(items[at].shape, []).append(at)
        for shape, places in by_shape.items():
            group = [items[at] for at in places]
            count_written, applied = _apply(tx, shape, group)
            all_new = _are_new(count_written, applied, group)
            for at, kept in zip(places, applied, strict=True):
                done[at], is_new[at] = kept, kept and all_new
    endings = [item.ending for item, new in zip(items, is_new, strict=True) if new]
    count(tx, [ending for ending in endings if ending is not None])
    return done


def _is_alone(item: EncodedChange) -> bool:
    return item.applied_alone


def _are_new(count_written: int, applied: Sequence[bool], group: Sequence[EncodedChange]) -> bool:
    """Whether the changes that are applied were applied just now, and not by an earlier call."""
    if 0 < count_written < sum(applied) and any(item.ending for item in group):
        raise PartlyRepeated
    return count_written > 0


def _apply(
    tx: WriteTransaction, shape: _Shape, group: Sequence[EncodedChange]
) -> tuple[int, Sequence[bool]]:
    """How many changes were written now, and which are applied: now, or by an earlier call."""
    applied_alone = group[0].applied_alone
    if applied_alone and _key_taken(tx, group[0].id):
        return 0, [False]
    rows = [item.values for item in group]
    if shape.deletes:
        rows = [[*values[:-1], tx.now] for values in rows]
    count_written = bulk(tx.connection, shape.update, rows)
    if count_written == len(rows):
        applied: Sequence[bool] = [True] * len(rows)
    else:
        applied = _find_applied(tx, group)
    if applied_alone:
        tx.changed(_UPDATE_LANE, group[0].id)
        tx.changed(_WAIT_AGAIN, group[0].id)
    return count_written, applied


def _key_taken(tx: WriteTransaction, run_id: str) -> bool:
    """Whether this run has finished and another run holds its dedupe key."""
    return bool(tx.value(_KEY_TAKEN, tx.now, run_id, *FINISHED))


_KEY_TAKEN = f"""
SELECT EXISTS (
    SELECT 1 FROM mainspring_runs AS other
    WHERE other.dedupe_key = run.dedupe_key AND other.id <> run.id
    AND (other.state IN ('waiting', 'pending', 'running') OR other.dedupe_until > ?)
)
FROM mainspring_runs AS run WHERE run.id = ? AND run.state IN ({", ".join("?" * len(FINISHED))})
"""
_UPDATE_LANE = f"UPDATE mainspring_runs SET lane = {LANE_SQL} WHERE id = ?"
SKIPPED_SQL = f"(run.state = 'skipped' AND run.reason = '{UPSTREAM_FAILED}')"
"""Whether the row `run` was skipped because an upstream run failed."""

KEEPS_UPSTREAM_SQL = f"(run.state IN ('waiting', 'pending', 'running') OR {SKIPPED_SQL})"
"""Whether the row `run` stays in `mainspring_upstream`."""

_WAIT_AGAIN = """
INSERT OR IGNORE INTO mainspring_upstream (upstream, seq)
SELECT name.value, run.seq FROM mainspring_runs AS run,
    json_each(CASE WHEN json_valid(run."after") THEN run."after" END) AS name
WHERE run.id = ? AND run.state IN ('waiting', 'pending', 'running')
"""
"""Maintenance deletes these rows once a run has finished and cannot wait again."""

IS_AWAITED_SQL = """EXISTS (
    SELECT 1 FROM mainspring_upstream AS wait
    JOIN mainspring_runs AS follower ON follower.seq = wait.seq
    WHERE wait.upstream = run.id AND follower.state IN ('waiting', 'pending', 'running')
)"""
"""Whether an unfinished run comes after the row `run`."""


def _find_applied(tx: WriteTransaction, group: Sequence[EncodedChange]) -> list[bool]:
    """Which changes were applied: the last change of its run, or a deletion whose run is gone."""
    texts = select(tx.connection, _LAST_CHANGES, [(item.id,) for item in group])
    last = dict(row for text in texts for row in json.loads(text))
    return [
        item.id not in last if item.shape.deletes else last.get(item.id) == item.change_id
        for item in group
    ]


_LAST_CHANGES = (
    "SELECT json_group_array(json_array(id, last_change)) FROM mainspring_runs"
    " WHERE id IN (VALUES ",
    ")",
    1,
)


@cache
def change_shape(expect: tuple[str, ...], put: tuple[str, ...], deletes: bool) -> _Shape:
    """Make the statement of a shape. A few dozen shapes exist: transitions.py makes them."""
    expected = [change_column(name) for name in expect]
    written = [change_column(name) for name in put]
    first_set = 2 + len(expect)
    last = first_set + len(put)
    sets = "".join(f"{c} = v.column{at}, " for at, (c, _) in enumerate(written, first_set))
    tests = "".join(f" AND run.{c} IS v.column{at}" for at, (c, _) in enumerate(expected, 2))
    update = (
        f"UPDATE mainspring_runs AS run SET {sets}last_change = v.column{last} FROM (VALUES ",
        f") AS v WHERE run.id = v.column1{tests}",
        last,
    )
    delete = (
        "DELETE FROM mainspring_runs WHERE seq IN (SELECT run.seq FROM (VALUES ",
        f") AS v JOIN mainspring_runs AS run ON run.id = v.column1{tests}"
        " WHERE run.finished_at IS NOT NULL"
        f" AND (run.dedupe_until IS NULL OR run.dedupe_until <= v.column{last})"
        f" AND NOT {IS_AWAITED_SQL})",
        last,
    )
    return _Shape(
        encode=tuple(
            (at, encode)
            for at, (_, encode) in enumerate((*expected, *written), 1)
            if encode is not None
        ),
        update=delete if deletes else update,
        moves_lane=not _MOVES_LANE.isdisjoint(put),
        deletes=deletes,
        run_at=first_set - 1 + put.index("run_at") if "run_at" in put else None,
    )


# -- maintain -------------------------------------------------------------------------------


def prune_runs(tx: WriteTransaction, items: Sequence[tuple[int, int]]) -> list[int]:
    """Delete old runs and expired notes. Each item is a time and the most runs to delete."""
    tx.changed(_EXPIRED, tx.now, span_us(TTL_NOTE_KEPT))
    prune_counters(tx)
    deleted = [tx.changed(_PRUNE, before, tx.now, limit) for before, limit in items]
    if any(done < limit for done, (_, limit) in zip(deleted, items, strict=True)):
        tx.changed(_WAITED)  # it reads the whole table: not between the steps of a long prune
    return deleted


_WAITED = f"""
DELETE FROM mainspring_upstream WHERE NOT EXISTS (
    SELECT 1 FROM mainspring_runs AS run
    WHERE run.seq = mainspring_upstream.seq AND {KEEPS_UPSTREAM_SQL}
)
"""
_EXPIRED = """
DELETE FROM mainspring_notes
WHERE expires_at <= ?1 AND (ttl IS NULL OR expires_at <= ?1 - ?2)
"""


_PRUNE = f"""
DELETE FROM mainspring_runs WHERE seq IN (
    SELECT seq FROM mainspring_runs AS run INDEXED BY mainspring_runs_ended
    WHERE finished_at < ? AND (dedupe_until IS NULL OR dedupe_until <= ?) AND NOT {IS_AWAITED_SQL}
    ORDER BY finished_at LIMIT ?
)
"""
