"""Which due runs a claim takes: within a priority jobs take turns, as far as limits allow.

The docstring of `Store.claim` has the rule. Everything here is pure and the same for every store;
stores differ only in how they find a job's earliest due runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Generic, NamedTuple, TypeVar

from mainspring.stores.protocol import Claim
from mainspring.stores.rates import RateAllowance

T = TypeVar("T")


class ConcurrencyLimit(NamedTuple):
    """At most `most` running runs. `key`: which runs count, those of one job or of several."""

    key: str
    most: int


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
