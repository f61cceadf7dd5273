"""Adds runs. One whose dedupe key is held by another run is a duplicate of it.

As every function that writes, `add_runs` takes the transaction and a list of items, and returns one
result for each, in order. The writer may join the items of several callers into one call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from mainspring.core import codec
from mainspring.core.model import Run, replace
from mainspring.core.statistics import ending_of
from mainspring.stores.evaluation import new_run_by_clock
from mainspring.stores.protocol import Added
from mainspring.stores.sql import Lane, find_duplicates
from mainspring.stores.sqlite.codec import (
    insert_runs,
    runs_by_id,
    select_runs_by,
)
from mainspring.stores.sqlite.commit import KEEPS_UPSTREAM_SQL
from mainspring.stores.sqlite.counters import count
from mainspring.stores.sqlite.statements import WriteTransaction, bulk, select


class NewRun(NamedTuple):
    """A run to add, as it will be read back, and its payload as it is stored."""

    run: Run
    payload: str | None

    @classmethod
    def of(cls, run: Run) -> NewRun:
        if run.payload is None and not run.duplicate:
            return cls(run, None)
        text = codec.encode(run.payload)
        return cls(replace(run, payload=codec.decode(text), duplicate=False), text)


def add_runs(tx: WriteTransaction, items: Sequence[NewRun]) -> list[Added]:
    items = [_by_clock(tx, item) for item in items]
    duplicates = _duplicates(tx, items) if any(i.run.dedupe_key is not None for i in items) else {}
    fresh = [item for at, item in enumerate(items) if at not in duplicates]
    stored = _insert(tx, fresh)
    return [
        duplicates[at] if at in duplicates else Added(stored.get(item.run.id, item.run))
        for at, item in enumerate(items)
    ]


def _by_clock(tx: WriteTransaction, item: NewRun) -> NewRun:
    run = new_run_by_clock(item.run, tx.time)
    return item if run is item.run else NewRun(run, item.payload)


def _insert(tx: WriteTransaction, items: Sequence[NewRun]) -> dict[str, Run]:
    """Insert the runs whose id is new. If some ids are not new, return all runs as stored."""
    _count_finished(tx, [item.run for item in items if item.run.finished])
    rows = [(item.run, Lane.of(item.run).name, item.payload) for item in items]
    inserted = insert_runs(tx.connection, rows)
    waits = [(name, item.run.id) for item in items for name in item.run.after]
    if waits:
        bulk(tx.connection, _WAIT, waits)
    if inserted == len(items):
        return {}
    return runs_by_id(tx.connection, [item.run.id for item in items])


def _count_finished(tx: WriteTransaction, runs: Sequence[Run]) -> None:
    """Count runs that are added as they ended: slots that were skipped, and copied runs."""
    if not runs:
        return
    known = _known(tx, runs)
    endings = {run.id: ending_of(run) for run in runs if run.id not in known}
    count(tx, [ending for ending in endings.values() if ending is not None])


# This includes runs that were stored already: they come after the same runs.
_WAIT = (
    "INSERT OR IGNORE INTO mainspring_upstream (upstream, seq)"
    " SELECT v.column1, run.seq FROM (VALUES ",
    f") AS v JOIN mainspring_runs AS run ON run.id = v.column2 WHERE {KEEPS_UPSTREAM_SQL}",
    2,
)


def _duplicates(tx: WriteTransaction, items: Sequence[NewRun]) -> dict[int, Added]:
    """The items whose dedupe key is taken, by position."""
    runs = [item.run for item in items]
    keys = [(run.dedupe_key,) for run in runs if run.dedupe_key is not None]
    held = select_runs_by(tx.connection, _HOLDERS, keys, tx.now)
    holders = {run.dedupe_key: run for _, run in held}
    return find_duplicates(runs, _known(tx, runs), holders, tx.time)


def _known(tx: WriteTransaction, runs: Sequence[Run]) -> set[str]:
    """The ids of those that are stored already."""
    texts = select(tx.connection, _KNOWN, [(run.id,) for run in runs])
    return {run_id for text in texts for run_id in json.loads(text)}


_KNOWN = ("SELECT json_group_array(id) FROM mainspring_runs WHERE id IN (VALUES ", ")", 1)
_HOLDERS = (
    "WHERE dedupe_key IN (VALUES ",
    ") AND (state IN ('waiting', 'pending', 'running') OR dedupe_until > ?)",
    1,
)
