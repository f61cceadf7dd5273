"""Selects the due runs that a claim takes.

A lane is a priority, a job, a queue and a handler. The pending index keeps the runs of a lane
together, by time, and lanes in the order in which claims take from them. A claim has three steps:

1. Step from lane to lane (one seek each, and one for its first due run), beginning behind the job
   that had the last turn, until enough jobs with due runs are known.
2. Read the limits of these jobs, and count the running runs once for each limit.
3. Read the first runs of each job, as many as it gives when all take turns (`stores/turns.py`).

The cost depends on the number of runs that the claim takes, and on the number of lanes that it
passes: those with future runs only, of handlers that this worker lacks, or of jobs at their limit.
It does not grow with the number of runs in a lane: a million pending runs cost nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from mainspring.core import note_kinds
from mainspring.stores.protocol import Claim, NoteQuery, NoteWrite
from mainspring.stores.rates import RateAllowance, RateLimit
from mainspring.stores.sqlite.codec import ALL_LANES, Lane, lanes_from_turn
from mainspring.stores.sqlite.notes import find as find_notes
from mainspring.stores.sqlite.row_batches import one_value, select
from mainspring.stores.turns import ClaimLimits, ConcurrencyLimit, Turns, first_round, turn_order

_LANES = """
WITH RECURSIVE lanes (lane) AS (
    SELECT min(lane) FROM mainspring_runs INDEXED BY mainspring_runs_lane
    WHERE state = 'pending' {}
    UNION ALL
    SELECT (
        SELECT min(lane) FROM mainspring_runs INDEXED BY mainspring_runs_lane
        WHERE state = 'pending' AND lane > lanes.lane {}
    ) FROM lanes WHERE lanes.lane IS NOT NULL
)"""
LANES = _LANES.format("", "")
"""All lanes with a pending run: one seek from each lane to the next."""
_LANES_DUE = f"""{_LANES.format("AND lane > ?1 AND lane < ?2", "AND lane < ?2")}
SELECT json_group_array(json_array(lane, first, concurrency, limit_key, rate)) FROM (
    SELECT lane, first FROM (
        SELECT lane, (
            SELECT seq FROM mainspring_runs INDEXED BY mainspring_runs_lane
            WHERE state = 'pending' AND lane = lanes.lane AND run_at <= ?3
            ORDER BY run_at LIMIT 1
        ) AS first FROM lanes LIMIT -1
    ) WHERE first IS NOT NULL LIMIT ?4
) LEFT JOIN mainspring_jobs AS job
    ON job.id = substr(lane, 3, instr(substr(lane, 3), char(31)) - 1)
    AND (concurrency IS NOT NULL OR rate IS NOT NULL)
"""
"""The first lanes of a range that have a due run, each with that run and the limits of its job. The
limit of -1 keeps SQLite from seeking the first run twice."""
LANES_AFTER = f"""{LANES}, heads (lane, head) AS (
    SELECT lane, (
        SELECT min(run_at) FROM mainspring_runs INDEXED BY mainspring_runs_lane
        WHERE state = 'pending' AND lane = lanes.lane AND run_at > ?
    ) FROM lanes WHERE lane IS NOT NULL
)
SELECT json_group_array(json_array(lane, head)) FROM heads
WHERE head < 253402300800000000
"""
"""A `run_at` later than the year 9999 is damaged. It sorts last."""
_LIMIT_OF_JOB = "SELECT json_array(concurrency, limit_key, rate) FROM mainspring_jobs WHERE id = ?"
# A limit of one job is counted by the job. A limit that jobs share is counted by what is running,
# because a key may have thousands of jobs, and all of them would be looked up.
_USED = """
SELECT json_group_array(json_array(key, used)) FROM (
    SELECT own.value AS key, (
        SELECT count(*) FROM mainspring_runs INDEXED BY mainspring_runs_running
        WHERE state = 'running' AND job_id = substr(own.value, 5) AND lease_until > ?1
    ) AS used
    FROM json_each(?2) AS own
    UNION ALL
    SELECT job.limit_key, count(*)
    FROM mainspring_runs AS run INDEXED BY mainspring_runs_running
    CROSS JOIN mainspring_jobs AS job ON job.id = run.job_id
    WHERE ?3 <> '[]' AND run.state = 'running' AND run.lease_until > ?1
    AND job.limit_key IN (SELECT value FROM json_each(?3))
    GROUP BY job.limit_key
)
"""
# Ordered by `run_at` alone: within one `run_at` the index is in the order of `seq` anyway. If the
# query named `seq` too, SQLite would sort all runs that share a `run_at`: a million runs that were
# enqueued at once.
_EARLIEST_OF_LANE = """
SELECT json_group_array(json_array(run_at, seq)) FROM (
    SELECT run_at, seq FROM mainspring_runs INDEXED BY mainspring_runs_lane
    WHERE state = 'pending' AND lane = {} AND run_at <= {} ORDER BY run_at LIMIT {}
)
"""
_EARLIEST_OF_ONE = _EARLIEST_OF_LANE.format("?1", "?2", "?3")
_EARLIEST = (
    "WITH lane (name) AS (VALUES ",
    ") SELECT json_group_array(json(("
    + _EARLIEST_OF_LANE.format("lane.name", "?", "?")
    + "))) FROM lane",
    1,
)

FEW_LANES = 8
"""How many lanes more than it wants runs a claim reads at first."""


class _DueLane(NamedTuple):
    name: str
    lane: Lane
    first: int
    """Its earliest run."""


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
    limits = ClaimLimits(claim, {}, {}, RateAllowance({}, (), now))
    passed: set[str] = set()
    seqs: list[int] = []
    walk = _due_lanes(connection, limits, now)
    for _, level in groupby(walk, key=lambda due: due.lane.priority):
        lanes = first_round(((due.lane.job_id, due) for due in level), limits)
        passed |= lanes.keys()
        seqs += _take_turns(connection, lanes, limits, now)
        if limits.full:
            break
    return Selection(seqs, limits.rates.writes(), limits.rates.next_start(passed))


def next_due(
    connection: sqlite3.Connection, claim: Claim, now: int, next_start: int | None
) -> int | None:
    """When the next run that the claim could take falls due, or when its rate limit allows it to
    start, if that is later than now."""
    lanes = json.loads(one_value(connection, LANES_AFTER, (now,)))
    times = [at for lane, at in lanes if _parse_if_taken(claim, lane)]
    return min(times if next_start is None else [*times, next_start], default=None)


def has_capacity(connection: sqlite3.Connection, job_id: str, now: int) -> bool:
    """Whether the concurrency limit of the job allows one more run."""
    row = connection.execute(_LIMIT_OF_JOB, (job_id,)).fetchone()
    if row is None:
        return True
    most, key, _ = json.loads(row[0])
    if most is None:
        return True
    limit = _concurrency_limit(job_id, most, key)
    return _count_used(connection, [limit.key], now).get(limit.key, 0) < limit.most


def _due_lanes(connection: sqlite3.Connection, limits: ClaimLimits, now: int) -> Iterator[_DueLane]:
    """The lanes that the claim may take runs from, in the order of the turns. Adds the limits of
    their jobs to `limits`. Reads few more lanes than the caller asks for."""
    claim, count = limits.claim, limits.claim.limit + FEW_LANES
    if claim.turns:  # mostly there are few lanes: one query reads them all
        lanes, last = _read_due_lanes(connection, limits, now, ALL_LANES, count)
        if last is None:
            yield from sorted(lanes, key=lambda due: turn_order(claim, *due.lane[:2]))
            return
    for low, high in lanes_from_turn(claim.turns):
        last = low
        while last is not None:
            lanes, last = _read_due_lanes(connection, limits, now, (last, high), count)
            yield from lanes
            count *= 2


def _read_due_lanes(
    connection: sqlite3.Connection,
    limits: ClaimLimits,
    now: int,
    between: tuple[str, str],
    count: int,
) -> tuple[list[_DueLane], str | None]:
    """Of the first `count` lanes between two names, those that the claim may take runs from; and
    the name of the last lane, if there may be more."""
    rows = json.loads(one_value(connection, _LANES_DUE, (*between, now, count)))
    lanes, kept = [], {}
    for name, first, *limit in rows:
        if (lane := _parse_if_taken(limits.claim, name)) is not None:
            lanes.append(_DueLane(name, lane, first))
            if any(value is not None for value in limit):
                kept[lane.job_id] = limit
    if kept:
        _add_limits(connection, limits, kept, now)
    return lanes, rows[-1][0] if len(rows) == count else None


def _parse_if_taken(claim: Claim, name: str) -> Lane | None:
    """The lane, if the claim may take runs from it."""
    lane = Lane.parse(name)
    if (
        lane is not None
        and lane.handler in claim.handlers
        and (claim.queues is None or lane.queue in claim.queues)
        and claim.most.get(lane.job_id, 1) > 0
    ):
        return lane
    return None


def _add_limits(
    connection: sqlite3.Connection, limits: ClaimLimits, kept: Mapping[str, list[Any]], now: int
) -> None:
    """Add the limits of further jobs, with what is used of them."""
    concurrency: dict[str, ConcurrencyLimit] = {}
    rates: dict[str, RateLimit] = {}
    for job_id, (most, key, rate) in kept.items():
        if most is not None:
            concurrency[job_id] = _concurrency_limit(job_id, most, key)
        if rate is not None:
            rates[job_id] = _rate_limit(job_id, rate)
    keys = {limit.key for limit in concurrency.values()} - limits.counted
    limits.add(concurrency, dict.fromkeys(keys, 0) | _count_used(connection, keys, now))
    names = frozenset(limit.name for limit in rates.values())
    if names:
        query = NoteQuery(kind=note_kinds.RATE, names=names, limit=len(names))
        limits.rates.add(rates, find_notes(connection, query, now).items)


def _count_used(connection: sqlite3.Connection, keys: Iterable[str], now: int) -> dict[str, int]:
    """How many running runs with valid leases count for each limit."""
    own = sorted(key for key in keys if key.startswith("job:"))
    shared = sorted(key for key in keys if key.startswith("key:"))
    if not own and not shared:
        return {}
    return dict(
        json.loads(one_value(connection, _USED, (now, json.dumps(own), json.dumps(shared))))
    )


def _concurrency_limit(job_id: str, most: int, key: str | None) -> ConcurrencyLimit:
    own = f"job:{job_id}"
    if key is None or not (key == own or key.startswith("key:")):  # it is damaged
        return ConcurrencyLimit(own, 0)
    return ConcurrencyLimit(key, most)


def _rate_limit(job: str, text: str) -> RateLimit:
    try:
        name, most, span = json.loads(text)
        return RateLimit(str(name), int(most), int(span))
    except (TypeError, ValueError):  # it is damaged
        return RateLimit(f"job:{job}", 0, 60_000_000)


def _take_turns(
    connection: sqlite3.Connection,
    lanes: Mapping[str, list[_DueLane]],
    limits: ClaimLimits,
    now: int,
) -> list[int]:
    turns = Turns[int](list(lanes), limits)
    for job_id, of_job in lanes.items():
        if len(of_job) == 1:
            turns.add(job_id, 1, [of_job[0].first])
    while missing := turns.missing():
        for count in sorted(set(missing.values())):
            job_ids = [job_id for job_id, wanted in missing.items() if wanted == count]
            names = [due.name for job_id in job_ids for due in lanes[job_id]]
            first = iter(_earliest(connection, names, now, count))
            for job_id in job_ids:
                runs = [run for _ in lanes[job_id] for run in next(first)]
                turns.add(job_id, count, [seq for _, seq in sorted(runs)][:count])
    return turns.chosen()


def _earliest(
    connection: sqlite3.Connection, lanes: list[str], now: int, count: int
) -> list[list[tuple[int, int]]]:
    """The first due runs of each lane, by `run_at` and `seq`."""
    if len(lanes) == 1:  # the usual case
        return [json.loads(one_value(connection, _EARLIEST_OF_ONE, (lanes[0], now, count)))]
    texts = select(connection, _EARLIEST, [(lane,) for lane in lanes], now, count)
    return [runs for text in texts for runs in json.loads(text)][: len(lanes)]
