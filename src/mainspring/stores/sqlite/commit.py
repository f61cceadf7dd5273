"""Commit: changes applied where all they expect still stands.

Changes are grouped by shape (which fields they expect and which they set), and each shape has
one statement. Where it changed as many rows as there were changes, all of them stand; else
the rows are read back: a change whose values are there now was applied, just now or before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from mainspring.core.model import FINISHED, LIVE
from mainspring.core.transitions import Change
from mainspring.stores.batching import waves
from mainspring.stores.sqlite.codec import LANE_SQL, change_column
from mainspring.stores.sqlite.row_batches import BulkSql, bulk, select
from mainspring.stores.sqlite.write_transaction import Transaction

__all__ = ["Written", "commit"]

_LIVE = tuple(LIVE)  # an enum's hash is slower than three comparisons
_MOVES_LANE = frozenset({"queue", "handler", "job_id", "priority"})


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    encode: tuple[tuple[int, Callable[[Any], Any]], ...]
    update: BulkSql
    read_back: BulkSql
    set_from: int
    token_at: int | None
    moves_lane: bool


class Written(NamedTuple):
    """A change as values of columns: the id, what is expected, what is set."""

    id: str
    shape: _Shape
    values: list[Any]
    careful: bool
    """It may take a dedupe key again, or move to another lane: applied by itself."""

    @classmethod
    def of(cls, change: Change) -> Written:
        expect, put = change.expect, change.set
        shape = _shape(tuple(expect), tuple(put))
        values = [change.id, *expect.values(), *put.values()]
        for at, encode in shape.encode:
            values[at] = encode(values[at])
        revives = put.get("state") in _LIVE and expect.get("state") not in _LIVE
        return cls(change.id, shape, values, revives or shape.moves_lane)


def commit(tx: Transaction, items: Sequence[Written]) -> list[bool]:
    done = [False] * len(items)
    for wave in waves(items, lambda item: item.id, lambda item: item.careful):
        by_shape: dict[_Shape, list[int]] = {}
        for at in wave:
            by_shape.setdefault(items[at].shape, []).append(at)
        for shape, places in by_shape.items():
            group = [items[at] for at in places]
            for at, stands in zip(places, _apply(tx, shape, group), strict=True):
                done[at] = stands
    return done


def _apply(tx: Transaction, shape: _Shape, group: Sequence[Written]) -> Sequence[bool]:
    careful = group[0].careful
    if careful and _key_taken(tx, group[0].id):
        return [False]
    rows = [item.values for item in group]
    if bulk(tx.connection, shape.update, rows) == len(rows):
        stand: Sequence[bool] = [True] * len(rows)
    else:
        stand = _standing(tx, shape, group)
    if careful:
        tx.changed(_RESTAMP, group[0].id)
    return stand


def _key_taken(tx: Transaction, run_id: str) -> bool:
    """Whether this run is finished and another holds its dedupe key meanwhile."""
    return bool(tx.value(_KEY_TAKEN, tx.now, run_id, *FINISHED))


_KEY_TAKEN = f"""
SELECT EXISTS (
    SELECT 1 FROM mainspring_runs AS other
    WHERE other.dedupe_key = run.dedupe_key AND other.id <> run.id
    AND (other.state IN ('waiting', 'pending', 'running') OR other.dedupe_until > ?)
)
FROM mainspring_runs AS run WHERE run.id = ? AND run.state IN ({", ".join("?" * len(FINISHED))})
"""
_RESTAMP = f"UPDATE mainspring_runs SET lane = {LANE_SQL} WHERE id = ?"


def _standing(tx: Transaction, shape: _Shape, group: Sequence[Written]) -> list[bool]:
    """Which changes' values are there now, under the token they expected."""
    texts = select(tx.connection, shape.read_back, [(item.id,) for item in group])
    found = [row for text in texts for row in json.loads(text)]
    rows = {run_id: (token, values) for run_id, token, *values in found}

    def stands(item: Written) -> bool:
        token, values = rows.get(item.id, (None, None))
        expected = token if shape.token_at is None else item.values[shape.token_at]
        return bool(token == expected and values == item.values[shape.set_from :])

    return [stands(item) for item in group]


@cache
def _shape(expect: tuple[str, ...], put: tuple[str, ...]) -> _Shape:
    """A few dozen exist: the functions of states.py make them."""
    expected = [change_column(name) for name in expect]
    written = [change_column(name) for name in put]
    set_from = 1 + len(expect)
    sets = ", ".join(f"{c} = v.column{at}" for at, (c, _) in enumerate(written, set_from + 1))
    tests = "".join(f" AND {c} IS v.column{at}" for at, (c, _) in enumerate(expected, 2))
    columns = ", ".join(column for column, _ in written)
    return _Shape(
        encode=tuple(
            (at, encode)
            for at, (_, encode) in enumerate((*expected, *written), 1)
            if encode is not None
        ),
        update=(
            f"UPDATE mainspring_runs SET {sets} FROM (VALUES ",
            f") AS v WHERE id = v.column1{tests}",
            set_from + len(put),
        ),
        read_back=(
            f"SELECT json_group_array(json_array(id, token, {columns}))"
            " FROM mainspring_runs WHERE id IN (VALUES ",
            ")",
            1,
        ),
        set_from=set_from,
        token_at=1 + expect.index("token") if "token" in expect else None,
        moves_lane=not _MOVES_LANE.isdisjoint(put),
    )
