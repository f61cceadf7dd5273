"""The claim: which due runs come next.

Its cost follows the number of lanes that have pending runs and the number of runs it takes,
never the backlog: not a million pending runs, nor a million that are due next year at a high
priority, nor those of a handler this worker lacks, nor those of a job at its limit.

1. Step from lane to lane through the pending index (one seek each), with each lane's head.
2. Keep the lanes that are due, that the claim names, and whose limit has room.
3. From the highest priority down, take each lane's earliest runs and merge them by `run_at`.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from mainspring.store import Claim
from mainspring.stores.sqlite.rows import lane_parts

__all__ = ["next_runs"]

_DUE_LANES = """
WITH RECURSIVE lanes (lane) AS (
    SELECT min(lane) FROM mainspring_runs INDEXED BY mainspring_runs_lane
    WHERE state = 'pending'
    UNION ALL
    SELECT (
        SELECT min(lane) FROM mainspring_runs INDEXED BY mainspring_runs_lane
        WHERE state = 'pending' AND lane > lanes.lane
    ) FROM lanes WHERE lanes.lane IS NOT NULL
), heads (lane, head) AS (
    SELECT lane, (
        SELECT min(run_at) FROM mainspring_runs INDEXED BY mainspring_runs_lane
        WHERE state = 'pending' AND lane = lanes.lane
    ) FROM lanes WHERE lane IS NOT NULL
)
SELECT json_group_array(json_array(lane, head)) FROM heads WHERE head <= ?
"""
_LIMITS = """
SELECT json_group_array(json_array(id, concurrency, limit_key, (
    SELECT count(*) FROM mainspring_jobs AS sharing
    JOIN mainspring_runs AS run INDEXED BY mainspring_runs_running ON run.job_id = sharing.id
    WHERE sharing.limit_key = job.limit_key AND run.state = 'running' AND run.lease_until > ?
)))
FROM mainspring_jobs AS job
WHERE concurrency IS NOT NULL AND id IN (SELECT value FROM json_each(?))
"""
_EARLIEST = """
SELECT json_group_array(json_array(run.run_at, run.seq, lane.key))
FROM json_each(?) AS lane JOIN mainspring_runs AS run ON run.seq IN (
    SELECT seq FROM mainspring_runs INDEXED BY mainspring_runs_lane
    WHERE state = 'pending' AND lane = lane.value AND run_at <= ? ORDER BY run_at, seq LIMIT ?
)
"""


@dataclass(frozen=True, slots=True)
class _Lane:
    name: str
    head: int
    job: str
    priority: int


class _Room:
    """How many more runs each limited job may have."""

    def __init__(self, limits: Mapping[str, tuple[int, str]], used: Mapping[str, int]) -> None:
        self._limits = limits
        self._used = Counter(used)

    def copy(self) -> _Room:
        return _Room(self._limits, self._used)

    def left(self, job: str) -> bool:
        limit, key = self._limits.get(job, (1, None))
        return key is None or self._used[key] < limit

    def take(self, job: str) -> None:
        if job in self._limits:
            self._used[self._limits[job][1]] += 1


def next_runs(connection: sqlite3.Connection, claim: Claim, now: int) -> list[int]:
    """The `seq` of the runs the claim should take, in order. Reads only."""
    if claim.limit <= 0:
        return []
    lanes = _due_lanes(connection, claim, now)
    room = _room(connection, lanes, now)
    taken: list[int] = []
    for _, level in groupby(lanes, key=lambda lane: lane.priority):
        wanted = claim.limit - len(taken)
        if wanted == 0:
            break
        taken += _earliest(connection, list(level), room, now, wanted)
    return taken


def _due_lanes(connection: sqlite3.Connection, claim: Claim, now: int) -> list[_Lane]:
    """Those the claim may take from: the highest priority first, then the earliest head."""
    lanes = []
    for name, head in json.loads(connection.execute(_DUE_LANES, (now,)).fetchone()[0]):
        queue, handler, job, priority = lane_parts(name)
        if handler in claim.handlers and (claim.queues is None or queue in claim.queues):
            lanes.append(_Lane(name, head, job, priority))
    lanes.sort(key=lambda lane: (-lane.priority, lane.head))
    return lanes


def _room(connection: sqlite3.Connection, lanes: list[_Lane], now: int) -> _Room:
    jobs = sorted({lane.job for lane in lanes if lane.job})
    if not jobs:
        return _Room({}, {})
    (text,) = connection.execute(_LIMITS, (now, json.dumps(jobs))).fetchone()
    rows = json.loads(text)
    return _Room(
        {job: (limit, key) for job, limit, key, _ in rows},
        {key: used for _, _, key, used in rows},
    )


def _earliest(
    connection: sqlite3.Connection, level: list[_Lane], room: _Room, now: int, wanted: int
) -> list[int]:
    """The earliest runs of these lanes (all of one priority), as far as their limits allow.

    Of lanes in the order of their heads only the first `wanted` can hold the earliest `wanted`
    runs. Where limits turn some of those away, later lanes may hold better ones: look at more.
    """
    level = [lane for lane in level if room.left(lane.job)]
    width = wanted
    while level:
        lanes = level[:width]
        names = json.dumps([lane.name for lane in lanes])
        (text,) = connection.execute(_EARLIEST, (names, now, wanted)).fetchone()
        taken: list[tuple[int, _Lane]] = []
        trial, turned_away = room.copy(), False
        for _, seq, at in sorted(json.loads(text)):
            if len(taken) == wanted:
                break
            if trial.left(lanes[at].job):
                trial.take(lanes[at].job)
                taken.append((seq, lanes[at]))
            else:
                turned_away = True
        if not turned_away or width >= len(level):
            for _, lane in taken:
                room.take(lane.job)
            return [seq for seq, _ in taken]
        width *= 2
    return []
