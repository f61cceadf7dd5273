"""Counters of ended runs: what is counted of an end, and how counts are added up.

A store counts each end of a run once, when it writes it. Values are added up by `plus`, so
counts of any number of hours, jobs or clients make one. Three kinds are kept:

    totals of a job     since the job was made; those of the whole store under WHOLE_STORE
    hours of a job      for PERIODS_KEPT
    minutes of all      under WHOLE_STORE, for PERIODS_KEPT
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field

from mainspring.core.clock import EPOCH
from mainspring.core.model import FINISHED, Run, Source, State, replace

WHOLE_STORE = ""
"""The name under which all jobs are counted together. No job has it."""

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

PERIODS_KEPT = timedelta(days=8)
"""How long the counts of an hour or a minute are kept: a week, and the day that has begun."""

ERROR_KEPT = 500
"""Characters of the last run's error that are kept with a job's totals."""

ACCURACY = 0.05
"""How far a percentile may be from the true one, as a part of it."""

_ENDS = tuple(FINISHED)  # an enum's hash is slower than four comparisons

_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST = 0.001
"""Seconds. What is shorter counts as this long in percentiles."""


class Ending(Struct, frozen=True, gc=False, array_like=True):
    """The end of a run, as far as it is counted. Times are in seconds. `started_at` is None if the
    run was never tried, `duration` even if no attempt ended with it."""

    run_id: str
    job_id: str
    state: State
    source: Source
    finished_at: datetime
    started_at: datetime | None = None
    duration: float | None = None
    lateness: float | None = None
    error: str | None = None


def ending_of(run: Run, fields: Mapping[str, Any] | None = None) -> Ending | None:
    """What is counted when these fields are written to a run, or, without fields, when the run is
    added as it is. None where it does not end by that.

    A run that is cancelled or skipped while it waits for its retry has no duration: its attempt was
    over before. Lateness is that of runs which ended with their first attempt: a retry moves
    `run_at`, and then the run no longer says when it was due.
    """
    fields = fields or {}
    state = fields.get("state", run.state)
    finished_at = fields.get("finished_at", run.finished_at)
    if finished_at is None or state not in _ENDS:
        return None
    started_at = fields.get("started_at", run.started_at)
    attempt = fields.get("attempt", run.attempt)
    if not attempt:
        started_at = None
    timed = started_at is not None and _ends_attempt(run, fields, finished_at)
    late = timed and attempt == 1 and run.unreadable is None
    return Ending(
        run.id,
        run.job_id,
        state,
        run.source,
        finished_at,
        started_at,
        _seconds(finished_at - started_at) if timed else None,
        _seconds(started_at - run.run_at) if late else None,
        fields.get("error", run.error),
    )


def _ends_attempt(run: Run, fields: Mapping[str, Any], finished_at: datetime) -> bool:
    """Whether an attempt ends with the run."""
    attempts = fields.get("attempts", run.attempts)
    if attempts:
        return bool(attempts[-1].finished_at == finished_at)
    return run.state is State.RUNNING or run.state in _ENDS


def _seconds(span: timedelta) -> float:
    return max(span.total_seconds(), 0.0)  # the wall clock may have been set back meanwhile


class Distribution(Struct, frozen=True, omit_defaults=True):
    """How long something took, over many cases: their number, sum and maximum in seconds, and how
    many there are in each bucket. Each bucket spans 5 % to either side of its middle, so a
    percentile is within 5 % of the true one, also after distributions were added up."""

    count: int = 0
    sum: float = 0.0
    max: float = 0.0
    buckets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        numbers = list(values)
        buckets = dict(Counter(map(_bucket_of, numbers)))
        return cls(len(numbers), sum(numbers), max(numbers, default=0.0), buckets)

    def plus(self, other: Distribution) -> Distribution:
        if not self.count or not other.count:
            return self if self.count else other
        return Distribution(
            self.count + other.count,
            self.sum + other.sum,
            max(self.max, other.max),
            _added(self.buckets, other.buckets),
        )

    @property
    def average(self) -> float | None:
        return self.sum / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """The value that this share (0 to 1) of the cases does not exceed."""
        if not self.count:
            return None
        rank, seen = max(math.ceil(share * self.count), 1), 0
        for at in sorted(self.buckets):
            seen += self.buckets[at]
            if seen >= rank:
                break
        return min(_SMALLEST * 2 * _GROWTH**at / (_GROWTH + 1), self.max)


def _bucket_of(value: float) -> int:
    return math.ceil(math.log(value / _SMALLEST) / _LOG_GROWTH) if value > _SMALLEST else 0


def _added(counts: Mapping[Any, int], more: Mapping[Any, int]) -> dict[Any, int]:
    sums = dict(counts)
    for key, count in more.items():
        sums[key] = sums.get(key, 0) + count
    return sums


class LastRun(Struct, frozen=True, omit_defaults=True):
    """The run that ended last, of those that were tried."""

    id: str
    state: State
    source: Source
    started_at: datetime
    finished_at: datetime
    error: str | None = None


class Totals(Struct, frozen=True, omit_defaults=True):
    """How often runs of a job have ended in each state. `consecutive_failures` is how many have
    failed since the last success, in the order in which the ends were stored."""

    ended: Mapping[State, int] = field(default_factory=dict)
    consecutive_failures: int = 0
    last: LastRun | None = None

    def plus(self, later: Totals) -> Totals:
        before = 0 if State.SUCCEEDED in later.ended else self.consecutive_failures
        return Totals(
            _added(self.ended, later.ended),
            before + later.consecutive_failures,
            later.last or self.last,
        )


class Period(Struct, frozen=True, omit_defaults=True):
    """What ended in the hour, or the minute, that begins at `start`."""

    start: datetime
    ended: Mapping[State, int] = field(default_factory=dict)
    duration: Distribution = field(default_factory=Distribution)
    lateness: Distribution = field(default_factory=Distribution)

    def plus(self, other: Period) -> Period:
        return Period(
            min(self.start, other.start),
            _added(self.ended, other.ended),
            self.duration.plus(other.duration),
            self.lateness.plus(other.lateness),
        )


def period_start(moment: datetime, length: timedelta) -> datetime:
    return moment - (moment - EPOCH) % length


class CounterDelta(Struct, frozen=True):
    """Some ends, added up: what a store adds to what it has."""

    totals: Mapping[str, Totals]
    periods: Mapping[tuple[str, datetime], Period]


def tally(endings: Iterable[Ending], now: datetime) -> CounterDelta:
    """Add up ends that are stored in this order, at this moment.

    Every run that ends passes here, so an end is looked at once: the hours of a job and the minutes
    of all jobs are added up from the minutes of each job.
    """
    oldest = now - PERIODS_KEPT
    ends = list(endings)
    by_job: dict[str, list[Ending]] = {}
    for ending in ends:
        by_job.setdefault(ending.job_id, []).append(ending)
    totals = {job_id: _totals(ended_then) for job_id, ended_then in by_job.items()}
    if ends:
        totals[WHOLE_STORE] = _totals(ends)
    periods: dict[tuple[str, datetime], Period] = {}
    for job_id, of_job in by_job.items():
        for minute, ended_then in _by_minute(of_job).items():
            counted = _period(minute, ended_then)
            keys = [(WHOLE_STORE, minute)]
            if job_id != WHOLE_STORE:  # a run that could not be read has no job
                keys.append((job_id, period_start(minute, HOUR)))
            for key in keys:
                if key[1] >= oldest:  # a copied run may have ended long ago
                    more = replace(counted, start=key[1])
                    periods[key] = periods[key].plus(more) if key in periods else more
    return CounterDelta(totals, periods)


def _by_minute(endings: Iterable[Ending]) -> dict[datetime, list[Ending]]:
    """Groups ends by minute. Most ends fall in the minute of the one before, so two comparisons
    usually suffice."""
    by_minute: dict[datetime, list[Ending]] = {}
    same_minute: list[Ending] = []
    first, last = EPOCH, EPOCH - MINUTE  # no end lies between these
    for ending in endings:
        if not first <= ending.finished_at <= last:
            first = period_start(ending.finished_at, MINUTE)
            last = first + (MINUTE - timedelta.resolution)
            same_minute = by_minute.setdefault(first, [])
        same_minute.append(ending)
    return by_minute


def _totals(endings: Sequence[Ending]) -> Totals:
    ended, failures = _ended(endings), 0
    if State.FAILED in ended:
        for ending in reversed(endings):
            if ending.state is State.SUCCEEDED:
                break
            failures += ending.state is State.FAILED
    last = next((end for end in reversed(endings) if end.started_at is not None), None)
    return Totals(ended, failures, None if last is None else _last_run(last))


def _ended(endings: Iterable[Ending]) -> dict[State, int]:
    states = [ending.state for ending in endings]
    return {state: count for state in _ENDS if (count := states.count(state))}


def _last_run(ending: Ending) -> LastRun:
    assert ending.started_at is not None
    error = None if ending.error is None else ending.error[:ERROR_KEPT]
    return LastRun(
        ending.run_id, ending.state, ending.source, ending.started_at, ending.finished_at, error
    )


def _period(start: datetime, endings: Sequence[Ending]) -> Period:
    return Period(
        start,
        _ended(endings),
        Distribution.of([e.duration for e in endings if e.duration is not None]),
        Distribution.of([e.lateness for e in endings if e.lateness is not None]),
    )
