"""Limits how many attempts of one group run at once in this process: calls to one host, for
example.

A host that answers promptly may use all capacity while nothing else is due. A host that is slow, or
that fails, is held to its share (half of the capacity), so that it cannot keep others waiting; one
that has not answered yet leaves them one unit of capacity. While a group is at its limit the worker
claims no runs of its jobs: the store gives it those of others. Of a group that uses its share
already, runs are claimed only after those of others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mainspring.engine.attempt import LocalAttempt

PROMPT_SECONDS = 5.0
"""A group is slow if its attempts take longer than this on average, or if one that runs does."""

FAILING_PART = 0.5
"""A group fails if more than this part of its latest attempts did."""

MOST_GROUPS, MOST_JOBS = 1000, 10_000
"""How many groups that are idle, and how many jobs, are remembered."""


@dataclass(slots=True)
class _Group:
    share: int
    most: int
    """How many may run at once before one has ended promptly."""
    is_fixed: bool = False
    """Whether that holds for ever."""
    is_proven: bool = False
    seconds: float = 0.0
    failing: float = 0.0
    running: dict[LocalAttempt, float] = field(default_factory=dict)
    """Since when each attempt has its place here."""
    refused: bool = False

    def is_full(self, now: float) -> bool:
        if self.is_slow(now):
            return len(self.running) >= self.share
        return not self.is_proven and len(self.running) >= self.most

    def is_slow(self, now: float) -> bool:
        oldest = next(iter(self.running.values()), now)
        slow = max(self.seconds, now - oldest) > PROMPT_SECONDS
        return slow or self.failing > FAILING_PART


class GroupLimits:
    """Everything here happens on the engine's loop."""

    def __init__(self, capacity: int, monotonic: Callable[[], float]) -> None:
        self._capacity = capacity
        self._monotonic = monotonic
        self._groups: dict[str, _Group] = {}
        self._group_of_job: dict[str, str] = {}
        self.wants_more = False  # a full group has capacity again since the last `full_jobs`

    def full_jobs(self) -> set[str]:
        """The jobs of groups that are at their limit."""
        self.wants_more = False
        now = self._monotonic()
        return self._jobs_of(lambda group: group.is_full(now))

    def large_jobs(self) -> set[str]:
        """The jobs of groups that use their share or more: others come first."""
        return self._jobs_of(lambda group: len(group.running) >= group.share)

    def start(self, attempt: LocalAttempt) -> bool:
        """Return whether the attempt may start now. It counts for its group until `leave`."""
        name = attempt.handler.group(attempt.job)
        if name is None:
            return True
        self._remember_job(attempt.run.job_id, name)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._make_group(attempt.handler.group_limit())
        now = self._monotonic()
        if group.is_full(now):
            group.refused = True
            return False
        group.running[attempt] = now
        return True

    def leave(self, attempt: LocalAttempt, seconds: float | None = None) -> None:
        """Count an attempt no more that has ended (after so many seconds), or that will not
        start."""
        name = attempt.handler.group(attempt.job)
        group = self._groups.get(name) if name is not None else None
        if group is None or attempt not in group.running:
            return
        del group.running[attempt]
        if seconds is not None:
            group.seconds += (seconds - group.seconds) * 0.25
            group.failing += ((attempt.error is not None) - group.failing) * 0.25
            if attempt.error is None and seconds <= PROMPT_SECONDS and not group.is_fixed:
                group.is_proven = True
        if group.refused and not group.is_full(self._monotonic()):
            group.refused = False
            self.wants_more = True
        if len(self._groups) > MOST_GROUPS:
            self._groups = {i: other for i, other in self._groups.items() if other.running}

    def _make_group(self, limit: int | None) -> _Group:
        if limit is not None:
            return _Group(limit, limit, is_fixed=True)
        return _Group(max(1, self._capacity // 2), max(1, self._capacity - 1))

    def _jobs_of(self, has: Callable[[_Group], bool]) -> set[str]:
        names = {name for name, group in self._groups.items() if has(group)}
        if not names:
            return set()
        return {job_id for job_id, name in self._group_of_job.items() if name in names}

    def _remember_job(self, job_id: str, name: str) -> None:
        self._group_of_job.pop(job_id, None)
        self._group_of_job[job_id] = name
        if len(self._group_of_job) > MOST_JOBS:
            del self._group_of_job[next(iter(self._group_of_job))]
