"""Writes jobs by compare-and-set, and fires slots: a job advances together with its slot's runs.

The rows of the jobs are locked first, in the order of their ids, so that two clients that write the
same jobs come one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.errors import SerializationFailure

from mainspring.core.model import Run
from mainspring.core.overlap import may_never_start, resolve_overlap, runs_ended_by
from mainspring.core.policy import Overlap
from mainspring.stores.batching import split_by_key, split_in_order
from mainspring.stores.codec import to_us
from mainspring.stores.postgresql import counters
from mainspring.stores.postgresql.codec import PUT_JOBS, arrays, job_row, select_runs
from mainspring.stores.postgresql.commit import EncodedChange, commit_changes
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.postgresql.dedupe import add_runs, as_stored
from mainspring.stores.protocol import (
    Fired,
    Firing,
    JobWrite,
)

_VERSIONS = "SELECT id, version FROM mainspring.jobs WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
_INSERT_JOBS = PUT_JOBS.partition(" DO UPDATE SET ")[0] + " DO NOTHING"


async def _versions(tx: Transaction, job_ids: Sequence[str]) -> dict[str, int]:
    return dict(await tx.rows(_VERSIONS, [list(job_ids)]))


async def put_jobs(tx: Transaction, writes: Sequence[JobWrite]) -> list[bool]:
    done = [False] * len(writes)
    gone: list[str] = []
    for part in split_in_order(writes, lambda write: write.id):
        versions = await _versions(tx, [writes[at].id for at in part])
        fit = [at for at in part if _is_expected(writes[at], versions)]
        rows = [(job.id in versions, job_row(job)) for at in fit if (job := writes[at].job)]
        new = [row for is_known, row in rows if not is_known]
        old = [row for is_known, row in rows if is_known]
        if new and await tx.changed(_INSERT_JOBS, arrays(new)) < len(new):
            raise SerializationFailure("another client has added one of the jobs")
        if old:
            await tx.changed(PUT_JOBS, arrays(old))
        dropped = [writes[at].id for at in fit if writes[at].job is None]
        if dropped:
            await tx.changed("DELETE FROM mainspring.jobs WHERE id = ANY(%s)", [dropped])
        gone += dropped
        for at in fit:
            done[at] = True
    if gone:
        await counters.drop(tx, gone)
    return done


def _is_expected(write: JobWrite, versions: Mapping[str, int]) -> bool:
    if write.job is None and write.id not in versions:
        return False
    return write.expected_version in (None, versions.get(write.id, 0))


# -- fire -----------------------------------------------------------------------------------


async def fire(tx: Transaction, firings: Sequence[Firing]) -> list[Fired]:
    """Fire the first slot of every job together, then the second slot of every job, and so on."""
    fired = [Fired(False)] * len(firings)
    broken: set[str] = set()
    for part in split_by_key(firings, lambda firing: firing.job_id):
        chained = {at: firings[at] for at in part if firings[at].job_id not in broken}
        await _fire(tx, chained, fired)
        broken |= {firing.job_id for at, firing in chained.items() if not fired[at].done}
    return fired


async def _fire(tx: Transaction, firings: Mapping[int, Firing], fired: list[Fired]) -> None:
    versions = await _versions(tx, [firing.job_id for firing in firings.values()])
    now = await tx.current_time()  # another client may have held the jobs for long
    due = {
        at: f
        for at, f in firings.items()
        if versions.get(f.job_id) == f.version
        and (f.valid_until is None or now <= to_us(f.valid_until))
    }
    if not due:
        return
    unfinished = await _unfinished(tx, list(due.values()))
    runs: list[Run] = []
    replaced: list[tuple[Run, ...]] = []
    counts: list[int] = []
    for firing in due.values():
        earlier = unfinished.get(firing.job_id, [])
        added, changes = resolve_overlap(firing.overlap, firing.runs, earlier, tx.time)
        runs += map(as_stored, added)
        done = await commit_changes(tx, [EncodedChange.of(c) for c in changes]) if changes else []
        replaced.append(runs_ended_by(earlier, changes, done))
        counts.append(len(added))
    stored = iter(await add_runs(tx, runs))
    for at, count, gone in zip(due, counts, replaced, strict=True):
        fired[at] = Fired(True, tuple(next(stored).run for _ in range(count)), gone)
    await tx.changed(_ADVANCE, arrays([_advance(firing) for firing in due.values()]))


_ADVANCE = """
UPDATE mainspring.jobs AS job SET version = job.version + 1, next_run_at = v.next_run_at,
    last_run_at = v.last_run_at
FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) AS v (id, next_run_at, last_run_at)
WHERE job.id = v.id
"""


def _advance(firing: Firing) -> list[Any]:
    moments = (firing.next_run_at, firing.last_run_at)
    return [firing.job_id, *(None if moment is None else to_us(moment) for moment in moments)]


_IS_LIVE_SLOT = "NOT done AND source = 'schedule' AND NOT set_aside"
_LIVE_SLOTS = f"WHERE {_IS_LIVE_SLOT} AND job_id = ANY(%s)"
_NEWEST_LIVE_SLOT = f"""
WHERE NOT done AND seq = ANY(ARRAY(SELECT (
    SELECT seq FROM mainspring.runs WHERE {_IS_LIVE_SLOT} AND job_id = fired.job_id
    AND id <> fired.run_id ORDER BY scheduled_at DESC LIMIT 1
) FROM unnest(%s::text[], %s::text[]) AS fired (job_id, run_id)))
"""


async def _unfinished(tx: Transaction, firings: Sequence[Firing]) -> dict[str, list[Run]]:
    """The unfinished runs of these jobs' slots: all where they are needed, else the newest."""
    whole = [f.job_id for f in firings if f.needs_all_unfinished]
    others = [
        (f.job_id, f.runs[0].id)
        for f in firings
        if f.overlap is not Overlap.ALLOW and not f.needs_all_unfinished
    ]
    rows: list[tuple[int, Run]] = []
    if whole:
        rows += await select_runs(tx, _LIVE_SLOTS, [whole])
    if others:
        newest = await select_runs(tx, _NEWEST_LIVE_SLOT, arrays(others), brief=True)
        unreadable = [run.job_id for _, run in newest if may_never_start(run)]
        rows += newest
        if unreadable:  # the one before it may be able to start
            rows += await select_runs(tx, _LIVE_SLOTS, [unreadable], brief=True)
    unfinished: dict[str, list[Run]] = {}
    for _, run in sorted(rows, key=lambda row: row[0]):
        unfinished.setdefault(run.job_id, []).append(run)
    return unfinished
