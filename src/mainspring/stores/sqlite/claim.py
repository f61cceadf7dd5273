"""Selects the due runs that a claim takes.

The cost depends on the number of lanes that have pending runs and on the number of runs that the
claim takes. It does not grow with the backlog: not with a million pending runs, nor with a million
that are due next year at a high priority, nor with runs of a handler that this worker lacks, nor
with runs of a job at its limit.

1. Step from lane to lane through the pending index (one seek each), and read each lane's earliest
   `run_at`, its head.
2. Keep the lanes that are due, that the claim names, and whose limit allows another run.
3. From the highest priority down, take each lane's earliest runs and merge them by `run_at`.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from mainspring.stores.protocol import Claim, NoteQuery, NoteWrite
from mainspring.stores.rates import NOTE_KIND, RateAllowance, RateLimit
from mainspring.stores.sqlite.codec import lane_parts
from mainspring.stores.sqlite.notes import find as find_notes
from mainspring.stores.sqlite.row_batches import one_value, select

__all__ = ["LANES", "LANES_AFTER", "FreeCapacity", "free_capacity", "next_due", "next_runs"]

LANES = """
WITH RECURSIVE lanes (lane) AS (
    SELECT min(lane) FROM mainspring_runs INDEXED BY mainspring_runs_lane
    WHERE state = 'pending'
    UNION ALL
    SELECT (
        SELECT min(lane) FROM mainspring_runs INDEXED BY mainspring_runs_lane
        WHERE state = 'pending' AND lane > lanes.lane
    ) FROM lanes WHERE lanes.lane IS NOT NULL
)"""
"""All lanes with a pending run: one seek from each lane to the next."""
# SQLite then makes one seek in each lane, to its first run before or after a given time.
_HEADS = f"""{LANES}, heads (lane, head) AS (
    SELECT lane, (
        SELECT min(run_at) FROM mainspring_runs INDEXED BY mainspring_runs_lane
        WHERE state = 'pending' AND lane = lanes.lane AND run_at {{}} ?
    ) FROM lanes WHERE lane IS NOT NULL
)
SELECT json_group_array(json_array(lane, head)) FROM heads
WHERE typeof(lane) = 'text' AND head < 253402300800000000
"""
"""A `run_at` that is text, a blob or later than the year 9999 is damaged. It sorts last."""
_LANES_DUE = _HEADS.format("<=")
LANES_AFTER = _HEADS.format(">")
_LIMITS = """
SELECT json_group_array(json_array(
    CASE typeof(id) WHEN 'text' THEN id END,
    CASE typeof(concurrency) WHEN 'integer' THEN concurrency END,
    CASE typeof(limit_key) WHEN 'text' THEN limit_key END, (
    SELECT count(*) FROM mainspring_jobs AS sharing
    JOIN mainspring_runs AS run INDEXED BY mainspring_runs_running ON run.job_id = sharing.id
    WHERE sharing.limit_key = job.limit_key AND run.state = 'running' AND run.lease_until > ?
)))
FROM mainspring_jobs AS job
WHERE concurrency IS NOT NULL AND id IN (SELECT value FROM json_each(?))
"""
# Ordered by `run_at` alone: within one `run_at` the index is in the order of `seq` anyway. If the
# query named `seq` too, SQLite would sort all runs that share a `run_at`: a million runs that were
# enqueued at once. With excluded jobs it steps over their runs: 10 ms for 10,000 of them.
_EARLIEST_OF_ONE = """
SELECT json_group_array(json_array(run_at, seq, 0)) FROM (
    SELECT run_at, seq FROM mainspring_runs INDEXED BY mainspring_runs_lane
    WHERE state = 'pending' AND lane = ? AND run_at <= ? {} ORDER BY run_at LIMIT ?
)
"""
_NOT_EXCLUDED = "AND job_id NOT IN (SELECT value FROM json_each(?))"
_EARLIEST = (
    "SELECT json_group_array(json_array(run.run_at, run.seq, among.column2)) FROM (VALUES ",
    """) AS among JOIN mainspring_runs AS run ON run.seq IN (
        SELECT seq FROM mainspring_runs INDEXED BY mainspring_runs_lane
        WHERE state = 'pending' AND lane = among.column1 AND run_at <= ? {}
        ORDER BY run_at LIMIT ?
    )""",
    2,
)


@dataclass(frozen=True, slots=True)
class _Lane:
    name: str
    head: int
    job: str
    priority: int


class FreeCapacity:
    """How many more runs each job with a concurrency limit may have."""

    def __init__(self, limits: Mapping[str, tuple[int, str]], used: Mapping[str, int]) -> None:
        self._limits = limits
        self._used = Counter(used)

    def copy(self) -> FreeCapacity:
        return FreeCapacity(self._limits, self._used)

    def allows(self, job: str) -> bool:
        limit, key = self._limits.get(job, (1, None))
        return key is None or self._used[key] < limit

    def take(self, job: str) -> None:
        if job in self._limits:
            self._used[self._limits[job][1]] += 1


class Limits:
    """Both kinds of limits of some jobs: how many runs may run at once, and how many may start."""

    def __init__(self, free: FreeCapacity, rates: RateAllowance) -> None:
        self._free = free
        self.rates = rates

    def copy(self) -> Limits:
        return Limits(self._free.copy(), self.rates.copy())

    def allows(self, job: str) -> bool:
        return self._free.allows(job) and self.rates.allows(job)

    def take(self, job: str) -> None:
        self._free.take(job)
        self.rates.take(job)


class Selection(NamedTuple):
    """The runs that a claim should take, by `seq` and in order; the notes that count their starts;
    and the time at which a rate limit allows the next due run to start."""

    seqs: list[int]
    starts: list[NoteWrite]
    next_start: int | None = None


def next_runs(connection: sqlite3.Connection, claim: Claim, now: int) -> Selection:
    """What the claim should take. Reads only."""
    if claim.limit <= 0:
        return Selection([], [])
    lanes = _due_lanes(connection, claim, now)
    jobs = {lane.job for lane in lanes} - {""}
    limits = Limits(
        free_capacity(connection, jobs, now), read_rate_allowance(connection, jobs, now)
    )
    taken: list[int] = []
    for _, level in groupby(lanes, key=lambda lane: lane.priority):
        wanted = claim.limit - len(taken)
        if wanted == 0:
            break
        taken += _earliest(connection, claim, list(level), limits, now, wanted)
    return Selection(taken, limits.rates.writes(), limits.rates.next_start(jobs))


def next_due(
    connection: sqlite3.Connection, claim: Claim, now: int, next_start: int | None
) -> int | None:
    """When the next run that the claim could take falls due, or when its rate limit allows it to
    start, if that is later than now."""
    lanes = json.loads(one_value(connection, LANES_AFTER, (now,)))
    times = [at for lane, at in lanes if _takes(claim, lane)]
    return min(times if next_start is None else [*times, next_start], default=None)


def _due_lanes(connection: sqlite3.Connection, claim: Claim, now: int) -> list[_Lane]:
    """The lanes that the claim may take runs from: the highest priority first, then the earliest
    head."""
    lanes = []
    for name, head in json.loads(one_value(connection, _LANES_DUE, (now,))):
        parts = lane_parts(name)
        if parts is not None and _takes(claim, name):
            _, _, job, priority = parts
            lanes.append(_Lane(name, head, job, priority))
    lanes.sort(key=lambda lane: (-lane.priority, lane.head))
    return lanes


def _takes(claim: Claim, lane: str) -> bool:
    parts = lane_parts(lane)
    if parts is None:
        return False
    queue, handler, job, _ = parts
    return (
        handler in claim.handlers
        and (claim.queues is None or queue in claim.queues)
        and claim.most.get(job, 1) > 0
    )


def free_capacity(connection: sqlite3.Connection, jobs: Iterable[str], now: int) -> FreeCapacity:
    """What the limits of these jobs still allow, counted over running runs with valid leases."""
    limited = sorted(set(jobs) - {""})
    if not limited:
        return FreeCapacity({}, {})
    rows = json.loads(one_value(connection, _LIMITS, (now, json.dumps(limited))))
    return FreeCapacity(
        {job: _NO_CAPACITY if None in (most, key) else (most, key) for job, most, key, _ in rows},
        {key: used for _, _, key, used in rows if key is not None},
    )


def read_rate_allowance(
    connection: sqlite3.Connection, jobs: Iterable[str], now: int
) -> RateAllowance:
    """What the rate limits of these jobs allow now."""
    limited = sorted(jobs)
    if not limited:
        return RateAllowance({})
    rows = json.loads(one_value(connection, _RATES, (json.dumps(limited),)))
    if not rows:
        return RateAllowance({})
    limits = {job: _rate_limit(job, text) for job, text in rows}
    names = frozenset(limit.name for limit in limits.values())
    query = NoteQuery(kind=NOTE_KIND, names=names, limit=len(names))
    return RateAllowance(limits, find_notes(connection, query, now).items, now)


_RATES = """
SELECT json_group_array(json_array(id, CASE typeof(rate) WHEN 'text' THEN rate END))
FROM mainspring_jobs
WHERE rate IS NOT NULL AND typeof(id) = 'text' AND id IN (SELECT value FROM json_each(?))
"""


def _rate_limit(job: str, text: str | None) -> RateLimit:
    try:
        name, most, span = json.loads(text or "")
        return RateLimit(str(name), int(most), int(span))
    except (TypeError, ValueError):  # it is damaged: as `_NO_CAPACITY`
        return RateLimit(f"job:{job}", 0, 60_000_000)


_NO_CAPACITY = (0, "")
"""Stands for a limit that is damaged. It is unknown how many runs it allows, so none is claimed."""


def _first_due_runs(
    connection: sqlite3.Connection, claim: Claim, lanes: list[_Lane], now: int, wanted: int
) -> list[str]:
    """JSON lists of (run_at, seq, position of the lane): the first `wanted` of each lane."""
    jobs = sorted(job for job, most in claim.most.items() if most <= 0)
    excluded = [json.dumps(jobs)] if jobs else []
    condition = _NOT_EXCLUDED if excluded else ""
    if len(lanes) == 1:  # the usual case, and one that the index answers alone
        query = _EARLIEST_OF_ONE.format(condition)
        return [connection.execute(query, (lanes[0].name, now, *excluded, wanted)).fetchone()[0]]
    names = [(lane.name, at) for at, lane in enumerate(lanes)]
    before, behind, columns = _EARLIEST
    query_parts = (before, behind.format(condition), columns)
    return select(connection, query_parts, names, now, *excluded, wanted)


def _earliest(
    connection: sqlite3.Connection,
    claim: Claim,
    level: list[_Lane],
    limits: Limits,
    now: int,
    wanted: int,
) -> list[int]:
    """The earliest runs of these lanes (all of one priority), as far as their limits allow.

    The lanes are in the order of their heads, so only the first `wanted` lanes can hold the
    earliest `wanted` runs. Where limits refuse some of those, later lanes may hold earlier runs:
    then it reads twice as many lanes.
    """
    level = [lane for lane in level if limits.allows(lane.job)]
    width = wanted
    while level:
        lanes = level[:width]
        texts = _first_due_runs(connection, claim, lanes, now, wanted)
        taken: list[tuple[int, _Lane]] = []
        trial, over_limit = limits.copy(), False
        for _, seq, at in sorted(row for text in texts for row in json.loads(text)):
            if len(taken) == wanted:
                break
            if trial.allows(lanes[at].job):
                trial.take(lanes[at].job)
                taken.append((seq, lanes[at]))
            else:
                over_limit = True
        if not over_limit or width >= len(level):
            for _, lane in taken:
                limits.take(lane.job)
            return [seq for seq, _ in taken]
        width *= 2
    return []
