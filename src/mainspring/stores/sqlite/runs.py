"""Adds, claims, renews and prunes runs inside a write transaction.

Each function takes the transaction and a list of items, and returns one result for each, in order.
The writer may join the items of several callers into one call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from mainspring.core import codec
from mainspring.core.model import (
    LIVE,
    Run,
    replace,
)
from mainspring.core.statistics import ending_of
from mainspring.stores.codec import progress_text
from mainspring.stores.evaluation import new_run_by_clock
from mainspring.stores.protocol import TTL_NOTE_KEPT, Added, Claim, Held, Renewed
from mainspring.stores.sqlite.claim import has_capacity, next_due, next_runs
from mainspring.stores.sqlite.codec import (
    LANE_SQL,
    RUN_INSERT,
    RUN_SELECT,
    SET_ASIDE,
    lane_of,
    read_runs,
    run_row,
    runs_by_id,
    select_runs_by,
    span_us,
)
from mainspring.stores.sqlite.commit import IS_AWAITED_SQL, KEEPS_UPSTREAM_SQL
from mainspring.stores.sqlite.counters import count
from mainspring.stores.sqlite.counters import prune as prune_counters
from mainspring.stores.sqlite.notes import NoteRow
from mainspring.stores.sqlite.notes import put as put_notes
from mainspring.stores.sqlite.row_batches import bulk, one_value, select
from mainspring.stores.sqlite.write_transaction import WriteTransaction

_BY_SEQS = f"{RUN_SELECT} WHERE seq IN (SELECT value FROM json_each(?))"


# -- add ------------------------------------------------------------------------------------


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
    rows = [run_row(item.run, lane_of(item.run), item.payload) for item in items]
    inserted = bulk(tx.connection, RUN_INSERT, rows)
    waits = [(name, item.run.id) for item in items for name in item.run.after]
    if waits:
        bulk(tx.connection, _WAIT, waits)
    if inserted == len(rows):
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
    """The items whose dedupe key is taken, by a stored run or by an earlier item, by position."""
    keys = [(i.run.dedupe_key,) for i in items if i.run.dedupe_key is not None]
    held = select_runs_by(tx.connection, _HOLDERS, keys, tx.now)
    holders = {run.dedupe_key: run for _, run in held}
    known = _known(tx, [item.run for item in items])
    found: dict[int, Added] = {}
    refused: set[str] = set()
    for at, item in enumerate(items):
        run = item.run
        if run.id in known:
            continue
        if not refused.isdisjoint(run.after):
            refused.add(run.id)
            found[at] = Added(replace(run, duplicate=True), duplicate=True)
            continue
        if run.dedupe_key is not None and run.dedupe_key in holders:
            refused.add(run.id)
            found[at] = Added(replace(holders[run.dedupe_key], duplicate=True), duplicate=True)
            continue
        known.add(run.id)
        if run.dedupe_key is not None and _holds_key(run, tx.time):
            holders[run.dedupe_key] = run
    return found


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


def _holds_key(run: Run, now: datetime) -> bool:
    return run.state in LIVE or (run.dedupe_until is not None and run.dedupe_until > now)


# -- claim and renew ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """Claimed runs, not yet decoded: the caller's thread decodes them after the commit."""

    seqs: Sequence[int] = ()
    text: str = "[]"
    next_due: int | None = None

    def runs(self) -> dict[int, Run]:
        """The runs in order, by seq."""
        runs = dict(read_runs(self.text))
        return {seq: runs[seq] for seq in self.seqs}


def claim_runs(tx: WriteTransaction, items: Sequence[Claim]) -> list[ClaimedRows]:
    return [_claim(tx, item) for item in items]


def _claim(tx: WriteTransaction, claim: Claim) -> ClaimedRows:
    seqs, starts, next_start = next_runs(tx.connection, claim, tx.now)
    if not seqs:
        return ClaimedRows(next_due=next_due(tx.connection, claim, tx.now, next_start))
    put_notes(tx, [NoteRow.of(write) for write in starts])
    chosen = json.dumps(seqs)
    tx.changed(_TAKE, claim.worker, tx.now, tx.now + span_us(claim.lease), chosen)
    return ClaimedRows(seqs, one_value(tx.connection, _BY_SEQS, [chosen]))


_TAKE = """
UPDATE mainspring_runs
SET state = 'running', token = token + 1, attempt = attempt + 1,
    worker = ?, started_at = ?, lease_until = ?, progress = NULL, began = 0
WHERE seq IN (SELECT value FROM json_each(?))
"""


def set_aside(tx: WriteTransaction, items: Sequence[tuple[int, int]]) -> list[bool]:
    """Return claimed runs that cannot be read to `pending`, in a lane that no claim reads. Each
    item is a seq and a token. Nothing else of the runs is changed."""
    return [bool(tx.changed(_SET_ASIDE, SET_ASIDE, *item)) for item in items]


_SET_ASIDE = """
UPDATE mainspring_runs SET state = 'pending', attempt = attempt - 1, worker = NULL,
    started_at = NULL, lease_until = NULL, began = NULL, lane = ?
WHERE seq = ? AND token = ? AND state = 'running'
"""


def release_set_aside(tx: WriteTransaction, items: Sequence[str]) -> list[bool]:
    """Let claims find these runs again. They were set aside or have a damaged lane, and can be read
    by now. A lane is computed from the run's other columns."""
    return [bool(tx.changed(_RELEASE_SET_ASIDE, run_id)) for run_id in items]


_RELEASE_SET_ASIDE = (
    f"UPDATE mainspring_runs SET lane = {LANE_SQL} WHERE id = ? AND state = 'pending'"
)


def renew_leases(tx: WriteTransaction, items: Sequence[tuple[Held, int]]) -> list[Renewed | None]:
    """Extend leases. Each item is a held run and the length of its lease in microseconds. Reads
    only the columns that decide."""
    rows = [
        (held.id, held.token, tx.now + lease, progress_text(held.progress), tx.now)
        for held, lease in items
    ]
    bulk(tx.connection, _RENEW, rows)
    texts = select(tx.connection, _HELD, [(held.id,) for held, _ in items])
    found = {row[0]: row for text in texts for row in json.loads(text)}
    return [_if_held(tx, found.get(row[0]), row) for row in rows]


_HELD = (
    "SELECT json_group_array(json_array(id, token, lease_until, job_id, cancel_requested, reason))"
    " FROM mainspring_runs WHERE state = 'running' AND id IN (VALUES ",
    ")",
    1,
)


def _if_held(tx: WriteTransaction, run: list[Any] | None, row: tuple[Any, ...]) -> Renewed | None:
    run_id, token, until, progress, _ = row
    if run is None or run[1] != token:
        return None
    _, _, lease_until, job_id, cancel_requested, reason = run
    if lease_until is not None and lease_until <= tx.now:
        # Its lease had lapsed, and its job has a limit: another run may have used the capacity.
        if not has_capacity(tx.connection, job_id, tx.now):
            return None
        tx.changed(_RENEW_LAPSED, until, progress, run_id)
    return Renewed(run_id, bool(cancel_requested), reason)


_RENEW = (
    "UPDATE mainspring_runs SET lease_until = v.column3, progress = v.column4 FROM (VALUES ",
    ") AS v WHERE id = v.column1 AND token = v.column2 AND state = 'running'"
    " AND (lease_until > v.column5 OR NOT EXISTS (SELECT 1 FROM mainspring_jobs AS job"
    " WHERE job.id = mainspring_runs.job_id AND job.concurrency IS NOT NULL))",
    5,
)
_RENEW_LAPSED = "UPDATE mainspring_runs SET lease_until = ?, progress = ? WHERE id = ?"


# -- maintain ------------------------------------------------------------------------------------


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
