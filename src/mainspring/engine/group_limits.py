"""Limits how many attempts of one group run at once in this process: calls to one host, for
example.

Attempts beyond the limit wait here, higher priority first. They are held (their leases are
renewed), but they take no capacity, so that one slow host cannot keep others waiting. While enough
of a group wait, the worker claims no more runs of its jobs: the store gives it those of others.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

from mainspring.engine.attempt import LocalAttempt

__all__ = ["GroupLimits"]

AHEAD_SECONDS = 0.1
"""As many as a group does in this time are claimed ahead for it."""

FIRST_GUESS = 0.05
"""Seconds that an attempt of an unknown group is expected to take."""

STALLED_SECONDS = 1.0
"""A group in which no attempt has ended for this long gives back those that wait beyond the wanted
number: other processes may have capacity for them."""

MOST_WAITING = 1000

MOST_EXCLUDED_JOBS = 10_000
"""How many jobs of a full group, of which no run waits here, a claim excludes."""


@dataclass(slots=True)
class _Group:
    limit: int
    last_end: float
    seconds: float = FIRST_GUESS
    running: set[LocalAttempt] = field(default_factory=set)
    waiting: list[LocalAttempt] = field(default_factory=list)
    excluded_jobs: set[str] = field(default_factory=set)
    """The jobs of runs that were given back. While the group is full they would only come again."""

    def wanted_waiting(self, now: float) -> int:
        """How many are to wait. Where nothing ends, attempts take at least so long."""
        seconds = max(self.seconds, now - self.last_end, 1e-4)
        return min(max(self.limit, int(self.limit * AHEAD_SECONDS / seconds)), MOST_WAITING)

    def has_enough_waiting(self, now: float) -> bool:
        """Whether more than half of the wanted number wait. `surplus` leaves more than that."""
        return len(self.waiting) > self.wanted_waiting(now) // 2

    @property
    def jobs(self) -> set[str]:
        return {
            attempt.run.job_id for attempt in (*self.running, *self.waiting)
        } | self.excluded_jobs

    def exclude_job(self, attempt: LocalAttempt) -> None:
        if len(self.excluded_jobs) >= MOST_EXCLUDED_JOBS:
            self.excluded_jobs.clear()
        self.excluded_jobs.add(attempt.run.job_id)


class GroupLimits:
    """Everything here happens on the engine's loop."""

    def __init__(self, capacity: int, monotonic: Callable[[], float]) -> None:
        self._capacity = capacity
        self._monotonic = monotonic
        self._groups: dict[str, _Group] = {}
        self.wants_more = False  # a group is not full any more since the last `busy_jobs`

    @property
    def waiting(self) -> list[LocalAttempt]:
        return [attempt for group in self._groups.values() for attempt in group.waiting]

    def busy_jobs(self) -> frozenset[str]:
        """The jobs of which enough runs wait here."""
        self.wants_more = False
        now = self._monotonic()
        full = (group.jobs for group in self._groups.values() if group.has_enough_waiting(now))
        return frozenset[str]().union(*full)

    def start(self, attempt: LocalAttempt) -> bool:
        """Return whether the attempt may start now. It counts for its group until `leave`."""
        name = attempt.handler.group(attempt.job)
        if name is None:
            return True
        group = self._groups.get(name)
        if group is None:
            limit = attempt.handler.group_limit(self._capacity)
            group = self._groups[name] = _Group(limit, self._monotonic())
        group.excluded_jobs.discard(attempt.run.job_id)
        if len(group.running) >= group.limit:
            return False
        group.running.add(attempt)
        return True

    def wait(self, attempt: LocalAttempt) -> bool:
        """Let an attempt wait that may not start; return False if too many wait already."""
        group = self._of(attempt)
        if len(group.waiting) >= MOST_WAITING:
            group.exclude_job(attempt)
            return False
        bisect.insort(group.waiting, attempt, key=lambda one: -one.run.priority)
        return True

    def leave(self, attempt: LocalAttempt, seconds: float | None = None) -> LocalAttempt | None:
        """Count an attempt no more that has ended (after so many seconds), or that will not start.
        Return the one that starts instead."""
        name = attempt.handler.group(attempt.job)
        group = self._groups.get(name) if name is not None else None
        if name is None or group is None or attempt not in group.running:
            return None
        now = self._monotonic()
        was_full = group.has_enough_waiting(now)
        group.running.remove(attempt)
        group.last_end = now
        if seconds is not None:
            group.seconds += (seconds - group.seconds) * 0.25
        if group.waiting:
            successor = group.waiting.pop(0)
            group.running.add(successor)
            self.wants_more |= was_full and not group.has_enough_waiting(now)
            return successor
        group.excluded_jobs.clear()
        if not group.running:
            del self._groups[name]
        return None

    def remove(self, attempt: LocalAttempt) -> bool:
        """Take out an attempt that waits; return False if it does not wait."""
        name = attempt.handler.group(attempt.job)
        group = self._groups.get(name) if name is not None else None
        if group is None or attempt not in group.waiting:
            return False
        group.waiting.remove(attempt)
        return True

    def surplus(self) -> list[LocalAttempt]:
        """Remove the attempts that wait beyond the wanted number in groups where no attempt
        ends."""
        now = self._monotonic()
        found: list[LocalAttempt] = []
        for group in self._groups.values():
            if now - group.last_end > STALLED_SECONDS:
                wanted_waiting = group.wanted_waiting(now)
                for attempt in group.waiting[wanted_waiting:]:
                    group.exclude_job(attempt)
                    found.append(attempt)
                del group.waiting[wanted_waiting:]
        return found

    def _of(self, attempt: LocalAttempt) -> _Group:
        name = attempt.handler.group(attempt.job)
        assert name is not None
        return self._groups[name]
