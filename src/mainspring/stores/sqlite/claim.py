"""Claims due runs, and renews their leases.

A lane is a priority, a job, a queue and a handler. The pending index keeps the runs of a lane
together, by time, and lanes in the order in which claims take from them. A claim has three steps:

1. Step from lane to lane (one seek each, and one for its first due run), beginning behind the job
   that had the last turn, until enough jobs with due runs are known.
2. Read the limits of these jobs, and count the running runs once for each limit.
3. Read the first runs of each job, as many as it gives when all take turns (`stores/limits.py`).

The cost depends on the number of runs that the claim takes, and on the number of lanes that it
passes: those with future runs only, of handlers that this worker lacks, or of jobs at their limit.
It does not grow with the number of runs in a lane: a million pending runs cost nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from mainspring.core.model import Run
from mainspring.stores.codec import progress_text
from mainspring.stores.limits import ClaimLimits, RateAllowance, Turns, first_round, turn_order
from mainspring.stores.protocol import Claim, Held, NoteWrite, Renewed
from mainspring.stores.sql import ALL_LANES, Lane, lanes_from_turn
from mainspring.stores.sqlite.codec import (
    LANE_SQL,
    RUN_SELECT,
    SET_ASIDE,
    read_runs,
    span_us,
)
from mainspring.stores.sqlite.limits import add_limits, has_capacity
from mainspring.stores.sqlite.notes import put as put_notes
from mainspring.stores.sqlite.statements import WriteTransaction, bulk, one_value, select

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
        add_limits(connection, limits, kept, now)
    return lanes, rows[-1][0] if len(rows) == count else None


def _parse_if_taken(claim: Claim, name: str) -> Lane | None:
    """The lane, if the claim may take runs from it."""
    lane = Lane.parse(name)
    return lane if lane is not None and lane.is_claimed_by(claim) else None


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
    put_notes(tx, starts)
    chosen = json.dumps(seqs)
    tx.changed(_TAKE, claim.worker, tx.now, tx.now + span_us(claim.lease), chosen)
    return ClaimedRows(seqs, one_value(tx.connection, _BY_SEQS, [chosen]))


_BY_SEQS = f"{RUN_SELECT} WHERE seq IN (SELECT value FROM json_each(?))"


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
    running = {row[0]: row for text in texts for row in json.loads(text)}
    return [_if_held(tx, running.get(row[0]), row) for row in rows]


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
