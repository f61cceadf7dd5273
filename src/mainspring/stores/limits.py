"""What a claim may take: concurrency limits, rate limits, and turns of the jobs of a priority.

A rate limit says how many runs may start in a span of time, of one job or of all jobs with one key.
Each rate limit has a note (kind `rate`) that counts the starts of the last span, in buckets of a
twentieth of it. A start counts until the end of its bucket and the whole span after that. So never
more starts than the limit lie within any span of that length, and each start makes room for another
one at least one span later, at most a twentieth of the span after that.

The counts are kept by how long before the end of the note their buckets end. The store sets that
end by its own clock, and moves it when somebody sets the clock: the counts move along
(docs/decisions/0019-rate-limits.md).

The docstring of `Store.claim` has the rule of the turns. Everything here is pure and the same for
every store; stores differ only in how they find a job's earliest due runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from mainspring.core import note_kinds
from mainspring.core.clock import from_us, to_us
from mainspring.core.model import Job, Note
from mainspring.stores.protocol import Claim, NoteQuery, NoteWrite, Store

T = TypeVar("T")

BUCKETS_PER_SPAN = 20
"""Into how many buckets a span is divided."""

_US = timedelta(microseconds=1)
_FULL = 10**18


class RateLimit(NamedTuple):
    """At most `max_starts` in `span` microseconds. `name`: that of the note that counts them."""

    name: str
    max_starts: int
    span: int


def rate_limit(job: Job | None) -> RateLimit | None:
    """The rate limit of a job; None if it has none."""
    if job is None or job.policy.rate is None:
        return None
    rate, key = job.policy.rate, job.policy.rate_key
    return RateLimit(f"job:{job.id}" if key is None else f"key:{key}", rate.count, rate.span // _US)


class _Starts(NamedTuple):
    """The starts that a note counts: how many in each bucket, by its end in microseconds, and the
    longest span of the limits that it counts for."""

    buckets: tuple[tuple[int, int], ...] = ()
    span: int = 0
    version: int = 0

    @classmethod
    def of(cls, note: Note) -> _Starts:
        if note.expires_at is None:  # no store has written it
            return cls(version=note.version)
        ends = to_us(note.expires_at)
        try:
            buckets = tuple((ends - int(before), int(n)) for before, n in note.value["starts"])
            return cls(buckets, int(note.value["span"]), note.version)
        except (TypeError, ValueError, LookupError):
            # It is damaged, so it is unknown how many more may start: none does until it has
            # expired.
            return cls(((ends, _FULL),), 0, note.version)

    def within(self, span: int, now: int) -> int:
        """How many starts count for a limit of this span."""
        return sum(count for end, count in self.buckets if end + span > now)

    def next_start(self, limit: RateLimit, now: int) -> int:
        """When the limit allows another start."""
        buckets = sorted(bucket for bucket in self.buckets if bucket[0] + limit.span > now)
        too_many = sum(count for _, count in buckets) - limit.max_starts + 1
        at = now
        for end, count in buckets:
            if too_many <= 0:
                break
            at, too_many = end + limit.span, too_many - count
        return at

    def write(self, limits: Iterable[RateLimit], now: int, count: int) -> NoteWrite:
        """Count so many more starts. They are added to the last bucket, if it has not ended; its
        end stays."""
        limits = list(limits)
        span = max(self.span if self.buckets else 0, *(limit.span for limit in limits))
        length = -(-span // BUCKETS_PER_SPAN)
        # A bucket that ends later than that was counted by a clock that has been set back since.
        buckets = [(min(end, now + length), n) for end, n in self.buckets if end + span > now]
        if buckets and buckets[-1][0] > now:
            buckets[-1] = (buckets[-1][0], buckets[-1][1] + count)
        else:
            buckets.append((now + length, count))
        ends = buckets[-1][0] + span
        value: dict[str, Any] = {"span": span, "starts": [[ends - end, n] for end, n in buckets]}
        note = Note(kind=note_kinds.RATE, name=limits[0].name, value=value, version=self.version)
        return NoteWrite.put(note, (ends - now) * _US)


class RateAllowance:
    """What the rate limits of some jobs allow at one moment of the store's clock, and what a claim
    takes of it. `limits` are by job; `notes` are those of the limits that have not expired."""

    def __init__(
        self, limits: Mapping[str, RateLimit], notes: Iterable[Note] = (), now: int = 0
    ) -> None:
        self._limits: dict[str, RateLimit] = {}
        self._starts: dict[str, _Starts] = {}
        self._now = now
        self._taken: Counter[str] = Counter()
        self._left: dict[str, int] = {}
        self.add(limits, notes)

    def add(self, limits: Mapping[str, RateLimit], notes: Iterable[Note]) -> None:
        """Add the limits of further jobs, with the notes of these limits."""
        self._limits |= limits
        self._starts |= {note.name: _Starts.of(note) for note in notes}
        for job_id, limit in limits.items():
            self._left[job_id] = limit.max_starts - self._of(limit.name).within(
                limit.span, self._now
            )

    def _of(self, name: str) -> _Starts:
        return self._starts.get(name, _Starts())

    def copy(self) -> RateAllowance:
        copied = RateAllowance({}, (), self._now)
        copied._limits, copied._starts, copied._left = self._limits, self._starts, self._left
        copied._taken = self._taken.copy()
        return copied

    def left(self, job_id: str) -> int | None:
        """How many more runs of the job may start now; None: it has no rate limit."""
        limit = self._limits.get(job_id)
        return None if limit is None else self._left[job_id] - self._taken[limit.name]

    def allows(self, job_id: str) -> bool:
        left = self.left(job_id)
        return left is None or left > 0

    def take(self, job_id: str, count: int = 1) -> None:
        if (limit := self._limits.get(job_id)) is not None:
            self._taken[limit.name] += count

    def writes(self, now: int | None = None) -> list[NoteWrite]:
        """What counts the starts that were taken: notes to write, each by compare-and-set. `now`:
        the time to count them at, if it is later than the time this object was made for."""
        by_name: dict[str, list[RateLimit]] = {}
        for limit in self._limits.values():
            by_name.setdefault(limit.name, []).append(limit)
        return [
            self._of(name).write(by_name[name], self._now if now is None else now, count)
            for name, count in self._taken.items()
        ]

    def next_start(self, job_ids: Iterable[str]) -> int | None:
        """When the first of these jobs may start a run that may not now, in microseconds."""
        waiting = [self._limits[i] for i in job_ids if i in self._limits and self._left[i] <= 0]
        times = (self._of(limit.name).next_start(limit, self._now) for limit in waiting)
        return min((at for at in times if at > self._now), default=None)


async def next_start(store: Store, job: Job) -> datetime | None:
    """When the rate limit of a job allows the next start, if it is reached now; else None. For
    explanations: what starts is decided inside of `claim`."""
    if (limit := rate_limit(job)) is None:
        return None
    names = frozenset({limit.name})
    notes = (await store.notes(NoteQuery(kind=note_kinds.RATE, names=names, limit=1))).items
    rates = RateAllowance({job.id: limit}, notes, to_us(await store.now()))
    at = rates.next_start([job.id])
    return None if at is None else from_us(at)


# -- concurrency and turns -------------------------------------------------------------------


class ConcurrencyLimit(NamedTuple):
    """At most `most` running runs. `key`: which runs count, those of one job or of several."""

    key: str
    most: int


def concurrency_limit(job: Job | None) -> ConcurrencyLimit | None:
    """The concurrency limit of a job; None if it has none."""
    if job is None or job.policy.concurrency is None:
        return None
    key = job.policy.concurrency_key
    return ConcurrencyLimit(
        f"job:{job.id}" if key is None else f"key:{key}", job.policy.concurrency
    )


class ClaimLimits:
    """How many more runs of each job a claim may take. `concurrency` and `rates` have the limits by
    job, `used` the running runs by the key of the limit."""

    def __init__(
        self,
        claim: Claim,
        concurrency: Mapping[str, ConcurrencyLimit],
        used: Mapping[str, int],
        rates: RateAllowance,
    ) -> None:
        self.claim = claim
        self.rates = rates
        self.taken = 0
        self._concurrency = dict(concurrency)
        self._used = dict(used)
        self._taken_of_key: Counter[str] = Counter()
        self._taken_of_job: Counter[str] = Counter()
        self._taken_of_limited = 0

    def copy(self) -> ClaimLimits:
        """The same limits (also those that are added later), with what was taken so far."""
        copied = ClaimLimits(self.claim, {}, {}, self.rates.copy())
        copied._concurrency, copied._used = self._concurrency, self._used
        copied.taken, copied._taken_of_limited = self.taken, self._taken_of_limited
        copied._taken_of_key = self._taken_of_key.copy()
        copied._taken_of_job = self._taken_of_job.copy()
        return copied

    def add(self, concurrency: Mapping[str, ConcurrencyLimit], used: Mapping[str, int]) -> None:
        """Add the concurrency limits of further jobs, and the running runs by their keys."""
        self._concurrency |= concurrency
        self._used |= used

    @property
    def counted(self) -> Set[str]:
        """The keys whose running runs are known."""
        return self._used.keys()

    @property
    def full(self) -> bool:
        return self.taken >= self.claim.limit

    def left(self, job_id: str) -> int:
        """How many more runs of the job may be taken now."""
        left = self.claim.limit - self.taken
        most = self.claim.most.get(job_id)
        if most is not None:
            left = min(left, most - self._taken_of_job[job_id])
        limit, starts = self._concurrency.get(job_id), self.rates.left(job_id)
        if limit is not None or starts is not None:
            left = min(left, self.claim.limit - self.claim.ahead - self._taken_of_limited)
        if limit is not None:
            used = self._used.get(limit.key, 0) + self._taken_of_key[limit.key]
            left = min(left, limit.most - used)
        return left if starts is None else min(left, starts)

    def take(self, job_id: str, count: int = 1) -> None:
        self.taken += count
        if job_id in self.claim.most:
            self._taken_of_job[job_id] += count
        limit = self._concurrency.get(job_id)
        if limit is not None:
            self._taken_of_key[limit.key] += count
        if limit is not None or self.rates.left(job_id) is not None:
            self._taken_of_limited += count
        self.rates.take(job_id, count)


def turn_order(claim: Claim, priority: int, job_id: str) -> tuple[int, bool, str]:
    """Sorts jobs as they have their turns, those of the highest priority first."""
    return -priority, job_id <= claim.turns.get(priority, ""), job_id


def first_round(level: Iterable[tuple[str, T]], limits: ClaimLimits) -> dict[str, list[T]]:
    """The lanes of each job, up to the last job that has a turn in the first round. `level` are the
    lanes of one priority that have due runs, each with its job, in the order of the turns."""
    trial = limits.copy()
    lanes: dict[str, list[T]] = {}
    for job_id, lane in level:
        if job_id in lanes:
            lanes[job_id].append(lane)
        elif trial.full:  # then no other job of the priority matters
            break
        else:
            lanes[job_id] = [lane]
            if trial.left(job_id) > 0:
                trial.take(job_id)
    return lanes


class Turns(Generic[T]):
    """The runs that the jobs of one priority give. `job_ids` are in the order of their turns.

    A store reads what `missing` names until nothing is missing, then takes `chosen`. So it reads a
    few runs more than the claim takes, however many are due.
    """

    def __init__(self, job_ids: Sequence[str], limits: ClaimLimits) -> None:
        self._job_ids = job_ids
        self._limits = limits
        self._runs: dict[str, Sequence[T]] = {}
        self._asked: dict[str, int] = {}

    def missing(self) -> dict[str, int]:
        """How many of its earliest due runs each job may have to give, where they are not known."""
        gives = Counter(job_id for job_id, _ in self._rounds(self._limits.copy()))
        return {i: count for i, count in gives.items() if count > self._asked.get(i, 0)}

    def add(self, job_id: str, asked: int, runs: Sequence[T]) -> None:
        """The earliest due runs of a job: as many as were asked for, or all there are."""
        self._asked[job_id] = asked
        self._runs[job_id] = runs

    def chosen(self) -> list[T]:
        """The runs that are taken, in order. They count for the limits from now on."""
        return [self._runs[job_id][at] for job_id, at in self._rounds(self._limits)]

    def _rounds(self, limits: ClaimLimits) -> Iterator[tuple[str, int]]:
        """The jobs as they have their turns, each with the position of the run that it gives."""
        waiting, at = self._job_ids, 0
        while waiting:
            if len(waiting) == 1:  # no other job has a turn in between
                [job_id] = waiting
                count = max(0, min(self._most_due(job_id) - at, limits.left(job_id)))
                limits.take(job_id, count)
                yield from ((job_id, at + n) for n in range(count))
                return
            giving = []
            for job_id in waiting:
                if limits.full:
                    return
                if at < self._most_due(job_id) and limits.left(job_id) > 0:
                    limits.take(job_id)
                    giving.append(job_id)
                    yield job_id, at
            waiting, at = giving, at + 1

    def _most_due(self, job_id: str) -> int:
        """How many due runs the job has, at most."""
        asked, known = self._asked.get(job_id, 0), len(self._runs.get(job_id, ()))
        return known if known < asked else self._limits.claim.limit
