"""Jobs: kept by compare-and-set, and advanced together with the runs of their slots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.model import Run
from mainspring.policy import Overlap
from mainspring.store import Fired, Firing, ended, overlapped
from mainspring.stores.sqlite.bulk import bulk
from mainspring.stores.sqlite.changes import Written, commit
from mainspring.stores.sqlite.rows import LANE_SQL, SET_ASIDE, select_runs, to_us
from mainspring.stores.sqlite.transaction import Transaction
from mainspring.stores.sqlite.writes import NewRun, add
from mainspring.stores.waves import turns

__all__ = ["add_jobs", "drop_jobs", "fire", "put_jobs"]


def put_jobs(tx: Transaction, items: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Each item is a job's row; its version is the one to be, one above the one expected."""
    return [_put_job(tx, row) for row in items]


def _put_job(tx: Transaction, row: Mapping[str, Any]) -> bool:
    stored = tx.connection.execute(_STORED, (row["id"],)).fetchone()
    version, was_limited = stored or (0, False)
    if version != row["version"] - 1:
        return False
    _write_job(tx, row, bool(was_limited))
    return True


def add_jobs(tx: Transaction, items: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Each item is a job's row, to be kept as it is where none of its id is there."""
    return [_add_job(tx, row) for row in items]


def _add_job(tx: Transaction, row: Mapping[str, Any]) -> bool:
    if tx.connection.execute(_STORED, (row["id"],)).fetchone() is not None:
        return False
    _write_job(tx, row, was_limited=False)
    return True


def _write_job(tx: Transaction, row: Mapping[str, Any], was_limited: bool) -> None:
    tx.connection.execute(_PUT, row)
    if was_limited != (row["concurrency"] is not None):
        _restamp(tx, row["id"])


_STORED = "SELECT version, concurrency IS NOT NULL FROM mainspring_jobs WHERE id = ?"
_COLUMNS = (
    "id", "version", "enabled", "next_run_at", "last_run_at", "concurrency", "limit_key", "body",
    "payload", "metadata", "webhook",
)  # fmt: skip
_PUT = (
    f"INSERT INTO mainspring_jobs ({', '.join(_COLUMNS)})"
    f" VALUES ({', '.join(':' + name for name in _COLUMNS)}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])
)


def drop_jobs(tx: Transaction, items: Sequence[tuple[str, int | None]]) -> list[bool]:
    """Each item is a job's id, and the version expected where one is."""
    return [_drop_job(tx, *item) for item in items]


def _drop_job(tx: Transaction, job_id: str, version: int | None) -> bool:
    stored = tx.connection.execute(_STORED, (job_id,)).fetchone()
    if stored is None or version not in (None, stored[0]):
        return False
    tx.changed("DELETE FROM mainspring_jobs WHERE id = ?", job_id)
    if stored[1]:
        _restamp(tx, job_id)  # with the job its limit is gone
    return True


def _restamp(tx: Transaction, job_id: str) -> None:
    """Move the job's live runs to the lanes that its limit, new or gone, gives them."""
    for state in ("waiting", "pending", "running"):  # each has an index of its own
        tx.changed(
            f"UPDATE mainspring_runs SET lane = {LANE_SQL} WHERE job_id = ? AND state = '{state}'",
            job_id,
        )


# -- fire -----------------------------------------------------------------------------------


def fire(tx: Transaction, items: Sequence[Sequence[Firing]]) -> list[list[Fired]]:
    """Each item is what one caller fires."""
    return [_fire_all(tx, firings) for firings in items]


def _fire_all(tx: Transaction, items: Sequence[Firing]) -> list[Fired]:
    """The first firings of all jobs are one bulk, the second ones the next: after an outage every
    job has a gap and a slot, and job by job each would be a statement of its own."""
    fired = [Fired(False)] * len(items)
    broken: set[str] = set()
    for turn in turns(items, lambda firing: firing.job_id):
        chained = {at: items[at] for at in turn if items[at].job_id not in broken}
        _fire(tx, chained, fired)
        broken |= {firing.job_id for at, firing in chained.items() if not fired[at].done}
    return fired


def _fire(tx: Transaction, firings: Mapping[int, Firing], fired: list[Fired]) -> None:
    """Fire those whose job has the version they expect; put what came of it into `fired`."""
    versions = _versions(tx, [firing.job_id for firing in firings.values()])
    due = {
        at: f
        for at, f in firings.items()
        if versions.get(f.job_id) == f.version
        and (f.valid_until is None or tx.time <= f.valid_until)
    }
    unfinished = _unfinished(tx, list(due.values()))
    runs: list[NewRun] = []
    replaced: list[tuple[Run, ...]] = []
    counts = []
    for firing in due.values():
        earlier = unfinished.get(firing.job_id, [])
        added, changes = overlapped(firing, earlier, tx.time)
        runs += map(NewRun.of, added)
        done = commit(tx, [Written.of(change) for change in changes]) if changes else []
        replaced.append(ended(earlier, changes, done))
        counts.append(len(added))
    stored = iter(add(tx, runs))
    for at, count, gone in zip(due, counts, replaced, strict=True):
        fired[at] = Fired(True, tuple(next(stored).run for _ in range(count)), gone)
    bulk(tx.connection, _ADVANCE, [_advance(firing) for firing in due.values()])


def _versions(tx: Transaction, job_ids: Sequence[str]) -> dict[str, int]:
    versions: dict[str, int] = json.loads(tx.value(_VERSIONS, json.dumps(job_ids)))
    return versions


_VERSIONS = (
    "SELECT json_group_object(id, version) FROM mainspring_jobs"
    " WHERE id IN (SELECT value FROM json_each(?))"
)


def _unfinished(tx: Transaction, firings: Sequence[Firing]) -> dict[str, list[Run]]:
    """The live runs of these jobs' slots, oldest first. They are read whole only where they may
    be replaced, and so are told of."""
    replacing = [f.job_id for f in firings if f.overlap is Overlap.REPLACE]
    others = [f.job_id for f in firings if f.overlap in (Overlap.SKIP, Overlap.QUEUE)]
    rows: list[tuple[int, Run]] = []
    for job_ids, brief in ((replacing, False), (others, True)):
        if job_ids:
            rows += select_runs(tx.connection, _LIVE_SLOTS, json.dumps(job_ids), brief=brief)
    found: dict[str, list[Run]] = {}
    for _, run in sorted(rows, key=lambda row: row[0]):
        found.setdefault(run.job_id, []).append(run)
    return found


_LIVE_SLOTS = (
    "INDEXED BY mainspring_runs_slots"
    " WHERE job_id IN (SELECT value FROM json_each(?)) AND source = 'schedule'"
    " AND (state = 'waiting' OR state = 'pending' OR state = 'running')"
    f" AND lane <> '{SET_ASIDE}'"
)
_ADVANCE = (
    "UPDATE mainspring_jobs SET version = version + 1, next_run_at = v.column2,"
    " last_run_at = v.column3 FROM (VALUES ",
    ") AS v WHERE id = v.column1",
    3,
)


def _advance(firing: Firing) -> tuple[str, int | None, int | None]:
    moments = (firing.next_run_at, firing.last_run_at)
    after, last = (None if moment is None else to_us(moment) for moment in moments)
    return firing.job_id, after, last
