"""Takes due runs, and renews leases.

1. Step from lane to lane (one seek each, and one for its first due run), beginning behind the job
   that had the last turn, until enough jobs with due runs are known.
2. Lock the limits of these jobs, and count what is used of them (limits.py).
3. Lock the first runs of each job, as many as it gives when all take turns (`stores/limits.py`).
   Runs that another claim has locked are passed over.
4. Take them by one statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from mainspring.core.model import Run
from mainspring.stores.codec import progress_text
from mainspring.stores.limits import ClaimLimits, RateAllowance, Turns, first_round, turn_order
from mainspring.stores.postgresql import limits as limit_rows
from mainspring.stores.postgresql import notes
from mainspring.stores.postgresql.codec import RUNS, arrays
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.protocol import Claim, Held, Renewed
from mainspring.stores.sql import ALL_LANES, Lane, lanes_from_turn, stored_concurrency

FEW_LANES = 8
"""How many lanes more than it wants runs a claim reads at first."""

_BEGINNING = (-(2**63), 0)
_US = timedelta(microseconds=1)
_PENDING = "NOT done AND state = 'pending' AND NOT set_aside"
_LANES = f"""
WITH RECURSIVE lanes (lane) AS (
    (SELECT lane FROM mainspring.runs WHERE {_PENDING} AND lane > %s AND lane < %s
     ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT lane FROM mainspring.runs WHERE {_PENDING} AND lane > lanes.lane AND lane < %s
        ORDER BY lane LIMIT 1
    ) FROM lanes WHERE lanes.lane IS NOT NULL
)"""
_LANES_DUE = f"""
SELECT due.lane, job.concurrency, job.limit_key, job.rate FROM (
    SELECT found.lane
    FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[]) AS part (low, high, at, seq)
    CROSS JOIN LATERAL (
        SELECT part.low AS lane WHERE (
            SELECT 1 FROM mainspring.runs WHERE {_PENDING} AND part.at IS NOT NULL
            AND lane = part.low AND (run_at, seq) > (part.at, part.seq) AND run_at <= %s
            ORDER BY run_at, seq LIMIT 1
        ) IS NOT NULL
        UNION ALL
        SELECT lanes.lane FROM (
            WITH RECURSIVE lanes (lane) AS (
                (SELECT lane FROM mainspring.runs WHERE {_PENDING} AND part.at IS NULL
                 AND lane > part.low AND lane < part.high ORDER BY lane LIMIT 1)
                UNION ALL
                SELECT (
                    SELECT lane FROM mainspring.runs
                    WHERE {_PENDING} AND lane > lanes.lane AND lane < part.high
                    ORDER BY lane LIMIT 1
                ) FROM lanes WHERE lanes.lane IS NOT NULL
            ) SELECT lane FROM lanes
        ) AS lanes WHERE (
            SELECT 1 FROM mainspring.runs WHERE {_PENDING} AND lane = lanes.lane AND run_at <= %s
            ORDER BY run_at LIMIT 1
        ) IS NOT NULL
    ) AS found LIMIT %s
) AS due LEFT JOIN mainspring.jobs AS job ON job.id = split_part(due.lane, chr(31), 2)
AND (job.concurrency IS NOT NULL OR job.rate IS NOT NULL)
ORDER BY due.lane
"""
"""The parts are stretches of lanes, and between them lanes whose scan begins behind an entry."""
_LANES_AFTER = f"""{_LANES}
SELECT lanes.lane, (
    SELECT min(run_at) FROM mainspring.runs WHERE {_PENDING} AND lane = lanes.lane AND run_at > %s
) FROM lanes WHERE lanes.lane IS NOT NULL
"""
_LATEST_TIME = 253_402_300_800_000_000
"""A `run_at` later than the year 9999 is damaged."""

_LOCK_FIRST = f"""
SELECT lanes.at, run.run_at, run.seq
FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
    WITH ORDINALITY AS lanes (name, most, first_at, first_seq, at)
CROSS JOIN LATERAL (
    SELECT run_at, seq FROM mainspring.runs
    WHERE {_PENDING} AND lane = lanes.name AND run_at <= %s
    AND (run_at, seq) > (lanes.first_at, lanes.first_seq)
    ORDER BY run_at, seq LIMIT lanes.most FOR UPDATE {{locked}}
) AS run
"""
_TAKE = f"""
UPDATE mainspring.runs
SET state = 'running', token = token + 1, attempt = attempt + 1, worker = %s, started_at = %s,
    lease_until = %s, progress = NULL, began = false
WHERE NOT done AND seq = ANY(%s)
RETURNING {RUNS.columns}
"""


class LaneStarts:
    """Where this client's scans of busy lanes begin: behind the run that it took last.

    While a long transaction elsewhere keeps vacuum from its work, the entries of runs that were
    taken stay in front of the first pending one, and each claim would step over all of them: after
    70,000 runs, a claim cost four times as much. Runs that come back with an earlier time are in
    front of a start, so a claim looks at the whole lane every two seconds, or less often where the
    look itself takes long: after 400,000 runs it may take a second. The last second is always
    looked at: clients do not add their runs exactly in the order of their times.
    """

    BUSY = 1000
    """A lane has a start when this client has taken so many of its runs."""
    LOOK = 2_000_000
    PAUSE = 20
    """How many times as long as a look takes is none."""
    LONGEST_PAUSE = 60_000_000
    RECENT = 1_000_000

    def __init__(self) -> None:
        self.is_looking = False
        self._looked_at = self.next_look = 0
        self._taken: Counter[str] = Counter()
        self._last: dict[str, tuple[int, int]] = {}

    def begin(self, now: int) -> dict[str, tuple[int, int]]:
        """The starts that a claim uses: none if it is to look at the whole."""
        recent = (now - self.RECENT, 0)
        starts = {i: min(self._last[i], recent) for i, n in self._taken.items() if n >= self.BUSY}
        if self._looked_at <= now < self.next_look:
            return starts
        self._looked_at, self.next_look = now, now + self.LOOK
        self.is_looking = bool(starts)
        return {}

    def looked(self, now: int) -> None:
        """A look at the whole has ended."""
        pause = min(self.PAUSE * (now - self._looked_at), self.LONGEST_PAUSE)
        self.next_look = max(self.next_look, now + pause)
        self.is_looking = False

    def took(self, lane: str, runs: Sequence[tuple[int, int]]) -> None:
        if len(self._last) >= 1000:
            self._taken.clear()
            self._last.clear()
        self._taken[lane] += len(runs)
        self._last[lane] = max(runs)


class Taken(NamedTuple):
    """The runs that a claim took, in order; if it took none, when the next one falls due. `again`:
    it met only runs that cannot be read, and others may be due behind them."""

    runs: list[Run]
    next_due: int | None = None
    again: bool = False


async def claim_runs(
    tx: Transaction, claim: Claim, lane_starts: LaneStarts, *, skip_locked: bool
) -> Taken:
    kept: dict[str, Sequence[Any]] = {}
    starts = lane_starts.begin(tx.now)
    lanes = [lane async for lane in _due_lanes(tx, claim, kept, starts)] if claim.limit > 0 else []
    if kept:  # all locks at once, in one order: else two claims wait for each other
        await limit_rows.lock(tx, limit_rows.lock_names(kept))
    limits = _no_limits(tx, claim)
    await limit_rows.add_limits(tx, limits, kept, tx.now)
    passed: set[str] = set()
    chosen: list[int] = []
    for _, level in groupby(lanes, key=lambda lane: lane.priority):
        by_job = first_round(((lane.job_id, lane) for lane in level), limits)
        passed |= by_job.keys()
        found = await _take_turns(tx, by_job, limits, starts, skip_locked=skip_locked)
        chosen += [seq for _, _, seq in found]
        for name, entries in groupby(sorted(found), key=itemgetter(0)):
            lane_starts.took(name, [entry[1:] for entry in entries])
        if limits.full:
            break
    for write in limits.rates.writes():
        await notes.put(tx, write)
    taken = await _take(tx, claim, chosen)
    if lane_starts.is_looking:
        lane_starts.looked(await tx.current_time())
    runs = [run for run in taken if run.unreadable is None]
    aside = [run for run in taken if run.unreadable is not None]
    if aside:
        await _set_aside(tx, aside)
    if taken:
        return Taken(runs, again=not runs)
    times = [limits.rates.next_start(passed), lane_starts.next_look if starts else None]
    return Taken([], await _next_due(tx, claim, [time for time in times if time is not None]))


def _no_limits(tx: Transaction, claim: Claim) -> ClaimLimits:
    return ClaimLimits(claim, {}, {}, RateAllowance({}, (), tx.now))


async def _due_lanes(
    tx: Transaction,
    claim: Claim,
    kept: dict[str, Sequence[Any]],
    starts: Mapping[str, tuple[int, int]],
) -> AsyncIterator[Lane]:
    """The lanes that the claim may take runs from, in the order of the turns, as far as the limits
    seem to allow: they are counted again under their locks. Adds what their jobs have of limits to
    `kept`."""
    limits, count = _no_limits(tx, claim), claim.limit + FEW_LANES
    last: str | None
    if claim.turns:  # mostly there are few lanes: one query reads them all
        lanes, last = await _read_due_lanes(tx, limits, kept, starts, ALL_LANES, count)
        if last is None:
            for lane in sorted(lanes, key=lambda lane: turn_order(claim, *lane[:2])):
                yield lane
            return
    trial, jobs = limits.copy(), set[str]()
    for low, high in lanes_from_turn(claim.turns):
        last = low
        while last is not None:
            lanes, last = await _read_due_lanes(tx, limits, kept, starts, (last, high), count)
            for lane in lanes:
                if lane.job_id not in jobs:
                    if trial.full:  # then no other job matters
                        return
                    jobs.add(lane.job_id)
                    if trial.left(lane.job_id) > 0:
                        trial.take(lane.job_id)
                yield lane
            count *= 2


async def _read_due_lanes(
    tx: Transaction,
    limits: ClaimLimits,
    kept: dict[str, Sequence[Any]],
    starts: Mapping[str, tuple[int, int]],
    between: tuple[str, str],
    count: int,
) -> tuple[list[Lane], str | None]:
    """Of the first `count` lanes between two names, those that the claim may take runs from; and
    the name of the last lane, if there may be more."""
    parts = arrays(_parts(between, starts))
    rows = await tx.rows(_LANES_DUE, [*parts, tx.now, tx.now, count])
    lanes: list[Lane] = []
    limited: dict[str, Sequence[Any]] = {}
    for name, *limit in rows:
        lane = Lane.parse(name)
        if lane is not None and lane.is_claimed_by(limits.claim):
            lanes.append(lane)
            if any(value is not None for value in limit):
                limited[lane.job_id] = limit
    await limit_rows.add_limits(tx, limits, limited, tx.now)
    kept |= limited
    return lanes, rows[-1][0] if len(rows) == count else None


def _parts(
    between: tuple[str, str], starts: Mapping[str, tuple[int, int]]
) -> list[tuple[str, str, int | None, int | None]]:
    low, high = between
    parts: list[tuple[str, str, int | None, int | None]] = []
    for name in sorted(name for name in starts if low < name < high):
        parts += [(low, name, None, None), (name, name, *starts[name])]
        low = name
    return [*parts, (low, high, None, None)]


async def _take_turns(
    tx: Transaction,
    by_job: Mapping[str, list[Lane]],
    limits: ClaimLimits,
    starts: Mapping[str, tuple[int, int]],
    *,
    skip_locked: bool,
) -> list[tuple[str, int, int]]:
    """Which runs each job gives, as lane, time and number. They are locked, and so are a few more
    that it might have given: other claims pass over those until the commit."""
    turns = Turns[tuple[str, int, int]](list(by_job), limits)
    sql = _LOCK_FIRST.replace("{locked}", "SKIP LOCKED" if skip_locked else "")
    while missing := turns.missing():
        lanes = [lane for job_id in missing for lane in by_job[job_id]]
        counts = [missing[lane.job_id] for lane in lanes]
        behind = arrays([starts.get(lane.name, _BEGINNING) for lane in lanes])
        rows = await tx.rows(sql, [[lane.name for lane in lanes], counts, *behind, tx.now])
        first: dict[str, list[tuple[int, int, str]]] = {job_id: [] for job_id in missing}
        for at, run_at, seq in rows:
            lane = lanes[at - 1]
            first[lane.job_id].append((run_at, seq, lane.name))
        for job_id, count in missing.items():
            entries = sorted(first[job_id])[:count]
            turns.add(job_id, count, [(name, run_at, seq) for run_at, seq, name in entries])
    return turns.chosen()


async def _take(tx: Transaction, claim: Claim, seqs: Sequence[int]) -> list[Run]:
    if not seqs:
        return []
    lease = tx.now + claim.lease // _US
    rows = await tx.rows(_TAKE, [claim.worker, tx.now, lease, list(seqs)])
    runs = {row[0]: RUNS.read(row[1:]) for row in rows}
    return [runs[seq] for seq in seqs if seq in runs]


_SET_ASIDE = """
UPDATE mainspring.runs SET state = 'pending', token = token - 1, attempt = attempt - 1,
    worker = NULL, started_at = NULL, lease_until = NULL, began = NULL, set_aside = true
WHERE NOT done AND id = ANY(%s)
"""


async def _set_aside(tx: Transaction, runs: Sequence[Run]) -> None:
    """Runs that cannot be read go back, where no claim finds them."""
    await tx.changed(_SET_ASIDE, [[run.id for run in runs]])


async def release_set_aside(tx: Transaction, ids: Sequence[str]) -> None:
    """Let claims find these runs again: they can be read by now."""
    await tx.changed(
        "UPDATE mainspring.runs SET set_aside = false WHERE NOT done AND id = ANY(%s)", [list(ids)]
    )


async def _next_due(tx: Transaction, claim: Claim, others: list[int]) -> int | None:
    low, high = ALL_LANES
    rows = await tx.rows(_LANES_AFTER, [low, high, high, tx.now])
    times = [
        at
        for name, at in rows
        if at is not None
        and at < _LATEST_TIME
        and (lane := Lane.parse(name)) is not None
        and lane.is_claimed_by(claim)
    ]
    return min([*times, *others], default=None)


# -- leases ---------------------------------------------------------------------------------

_LIMITS_OF_HELD = """
SELECT DISTINCT job.limit_key FROM mainspring.runs AS run
JOIN mainspring.jobs AS job ON job.id = run.job_id
WHERE NOT run.done AND run.id = ANY(%s) AND job.limit_key IS NOT NULL
"""
_RENEW = """
UPDATE mainspring.runs AS run SET lease_until = %s, progress = held.progress
FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS held (id, token, progress)
WHERE NOT run.done AND run.id = held.id AND run.token = held.token AND run.state = 'running'
AND (run.lease_until > %s OR NOT EXISTS (
    SELECT 1 FROM mainspring.jobs AS job WHERE job.id = run.job_id AND job.concurrency IS NOT NULL
))
RETURNING run.id, run.cancel_requested, run.reason
"""
_LAPSED = """
SELECT run.id, run.token, run.job_id, run.cancel_requested, run.reason, job.concurrency,
    job.limit_key
FROM mainspring.runs AS run JOIN mainspring.jobs AS job ON job.id = run.job_id
WHERE NOT run.done AND run.id = ANY(%s) AND run.state = 'running' FOR UPDATE OF run
"""
_RENEW_LAPSED = """
UPDATE mainspring.runs SET lease_until = %s, progress = %s WHERE NOT done AND id = %s
"""


async def renew_leases(tx: Transaction, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
    names = [item.id for item in held]
    keys = [key for (key,) in await tx.rows(_LIMITS_OF_HELD, [names])]
    if keys:
        await limit_rows.lock(tx, [f"running {key}" for key in keys])
    now = tx.now
    until = now + lease // _US
    progress = {item.id: progress_text(item.progress) for item in held}
    tokens = [item.token for item in held]
    rows = await tx.rows(_RENEW, [until, names, tokens, [progress[i] for i in names], now])
    renewed = {run_id: Renewed(run_id, cancel, reason) for run_id, cancel, reason in rows}
    left = {item.id: item.token for item in held if item.id not in renewed}
    if left and keys:
        await _renew_lapsed(tx, left, progress, until, now, renewed)
    return [renewed[item.id] for item in held if item.id in renewed]


async def _renew_lapsed(
    tx: Transaction,
    left: Mapping[str, int],
    progress: Mapping[str, str | None],
    until: int,
    now: int,
    renewed: dict[str, Renewed],
) -> None:
    """Their leases had lapsed, and their jobs have limits: others may have used the capacity."""
    rows = [row for row in await tx.rows(_LAPSED, [list(left)]) if row[1] == left[row[0]]]
    limits = [stored_concurrency(job_id, most, key) for _, _, job_id, _, _, most, key in rows]
    for (run_id, _, _, cancel, reason, _, _), limit in zip(rows, limits, strict=True):
        used = await limit_rows.count_used(tx, [limit.key], now)
        if used.get(limit.key, 0) < limit.most:
            await tx.changed(_RENEW_LAPSED, [until, progress[run_id], run_id])
            renewed[run_id] = Renewed(run_id, cancel, reason)
