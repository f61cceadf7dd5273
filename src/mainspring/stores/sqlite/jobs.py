"""Writes jobs by compare-and-set, and fires slots: a job advances together with its slot's runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from mainspring.core.model import Run
from mainspring.core.overlap import may_never_start, resolve_overlap, runs_ended_by
from mainspring.core.policy import Overlap
from mainspring.stores.batching import split_by_key, split_in_order
from mainspring.stores.codec import to_us
from mainspring.stores.protocol import (
    Fired,
    Firing,
    JobWrite,
)
from mainspring.stores.sqlite.codec import JOB_COLUMNS, SET_ASIDE, job_row, select_runs
from mainspring.stores.sqlite.commit import EncodedChange, commit_changes
from mainspring.stores.sqlite.counters import drop as drop_counters
from mainspring.stores.sqlite.dedupe import NewRun, add_runs
from mainspring.stores.sqlite.statements import WriteTransaction, bulk, select


def put_jobs(tx: WriteTransaction, items: Sequence[JobWrite]) -> list[bool]:
    """Write each job by itself. Jobs with different ids share a few statements."""
    done = [False] * len(items)
    for part in split_in_order(items, lambda item: item.id):
        versions = _versions(tx, [items[at].id for at in part])
        fit = [at for at in part if _is_expected(items[at], versions)]
        rows = [job_row(job) for at in fit if (job := items[at].job) is not None]
        bulk(tx.connection, _PUT, rows)
        gone = [items[at].id for at in fit if items[at].job is None]
        bulk(tx.connection, _DROP, [(job_id,) for job_id in gone])
        drop_counters(tx, gone)
        for at in fit:
            done[at] = True
    return done


def drop_jobs(tx: WriteTransaction, items: Sequence[JobWrite]) -> list[bool]:
    """`put_jobs` for a batch of deletions, which a store that is short of disk space still does."""
    return put_jobs(tx, items)


def _is_expected(item: JobWrite, versions: Mapping[str, int | None]) -> bool:
    if item.job is None and item.id not in versions:
        return False
    return item.expected_version in (None, versions.get(item.id, 0))


def _versions(tx: WriteTransaction, job_ids: Sequence[str]) -> dict[str, int]:
    """The versions of those of the jobs that are there."""
    texts = select(tx.connection, _VERSIONS, [(job_id,) for job_id in job_ids])
    return {job_id: version for text in texts for job_id, version in json.loads(text)}


_VERSIONS = (
    "SELECT json_group_array(json_array(id, version)) FROM mainspring_jobs WHERE id IN (VALUES ",
    ")",
    1,
)
_PUT = (
    f"INSERT INTO mainspring_jobs ({', '.join(JOB_COLUMNS)}) SELECT * FROM (VALUES ",
    ") WHERE column1 IS NOT NULL ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in JOB_COLUMNS[1:]),
    len(JOB_COLUMNS),
)
_DROP = ("DELETE FROM mainspring_jobs WHERE id IN (VALUES ", ")", 1)


# -- fire -----------------------------------------------------------------------------------


def fire(tx: WriteTransaction, items: Sequence[Sequence[Firing]]) -> list[list[Fired]]:
    """Fire slots. Each item holds the firings of one caller."""
    return [_fire_all(tx, firings) for firings in items]


def _fire_all(tx: WriteTransaction, items: Sequence[Firing]) -> list[Fired]:
    """Fire the first slot of every job together, then the second slot of every job, and so on. Job
    by job, each firing would need its own statements."""
    fired = [Fired(False)] * len(items)
    broken: set[str] = set()
    for part in split_by_key(items, lambda firing: firing.job_id):
        chained = {at: items[at] for at in part if items[at].job_id not in broken}
        _fire(tx, chained, fired)
        broken |= {firing.job_id for at, firing in chained.items() if not fired[at].done}
    return fired


def _fire(tx: WriteTransaction, firings: Mapping[int, Firing], fired: list[Fired]) -> None:
    """Fire those whose job has the expected version, and put the results into `fired`."""
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
        added, changes = resolve_overlap(firing.overlap, firing.runs, earlier, tx.time)
        runs += map(NewRun.of, added)
        done = (
            commit_changes(tx, [EncodedChange.of(change) for change in changes]) if changes else []
        )
        replaced.append(runs_ended_by(earlier, changes, done))
        counts.append(len(added))
    stored = iter(add_runs(tx, runs))
    for at, count, gone in zip(due, counts, replaced, strict=True):
        fired[at] = Fired(True, tuple(next(stored).run for _ in range(count)), gone)
    bulk(tx.connection, _ADVANCE, [_advance(firing) for firing in due.values()])


def _unfinished(tx: WriteTransaction, firings: Sequence[Firing]) -> dict[str, list[Run]]:
    """The live runs of these jobs' slots: all where they are needed, with their payloads, because
    events show those that are replaced; else the newest."""
    whole = [f.job_id for f in firings if f.needs_all_unfinished]
    others = [
        (f.job_id, f.runs[0].id)
        for f in firings
        if f.overlap is not Overlap.ALLOW and not f.needs_all_unfinished
    ]
    rows: list[tuple[int, Run]] = []
    if whole:
        rows += select_runs(tx.connection, _LIVE_SLOTS, json.dumps(whole))
    if others:
        newest = select_runs(tx.connection, _NEWEST_LIVE_SLOT, json.dumps(others), brief=True)
        unreadable = [run.job_id for _, run in newest if may_never_start(run)]
        rows += newest
        if unreadable:  # the one before it may be able to start
            rows += select_runs(tx.connection, _LIVE_SLOTS, json.dumps(unreadable), brief=True)
    unfinished: dict[str, list[Run]] = {}
    for _, run in sorted(rows, key=lambda row: row[0]):
        unfinished.setdefault(run.job_id, []).append(run)
    return unfinished


_IS_LIVE_SLOT = (
    "source = 'schedule' AND (state = 'waiting' OR state = 'pending' OR state = 'running')"
    f" AND lane <> '{SET_ASIDE}'"
)
_LIVE_SLOTS = (
    "INDEXED BY mainspring_runs_slots"
    f" WHERE job_id IN (SELECT value FROM json_each(?)) AND {_IS_LIVE_SLOT}"
)
_NEWEST_LIVE_SLOT = (
    "WHERE seq IN (SELECT (SELECT seq FROM mainspring_runs INDEXED BY mainspring_runs_slots"
    f" WHERE job_id = fired.value ->> 0 AND {_IS_LIVE_SLOT} AND id <> fired.value ->> 1"
    " ORDER BY scheduled_at DESC LIMIT 1) FROM json_each(?) AS fired)"
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
