"""Limits of groups of attempts: how many run, how many wait, which jobs are not claimed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mainspring.engine.attempt import LocalAttempt
from mainspring.engine.group_limits import MOST_EXCLUDED_JOBS, GroupLimits


class Host:
    """The group that every attempt here is of. Time goes on as the test says."""

    def __init__(self, limit: int) -> None:
        self.now = 100.0
        self.limit = limit
        self.limits = GroupLimits(2 * limit, lambda: self.now)
        self.running: list[LocalAttempt] = []

    def group(self, job: Any) -> str:
        return "host"

    def group_limit(self, capacity: int) -> int:
        return self.limit

    def claim(self, job: str) -> bool:
        """Whether the run is kept here."""
        run: Any = SimpleNamespace(job_id=job, priority=0)
        handler: Any = self
        nothing: Any = None
        attempt = LocalAttempt(run, nothing, handler, nothing, self.now)
        if self.limits.start(attempt):
            self.running.append(attempt)
            return True
        return self.limits.wait(attempt)

    def end_one(self, seconds: float) -> None:
        if (successor := self.limits.leave(self.running.pop(0), seconds)) is not None:
            self.running.append(successor)


@pytest.mark.parametrize("limit", [1, 2, 5, 50, 2000])
@pytest.mark.parametrize("one_job", [True, False])
def test_a_host_that_stands_still_stays_full_after_it_gave_back(limit: int, one_job: bool) -> None:
    host = Host(limit)
    jobs = ["job" if one_job else f"job{number}" for number in range(4 * limit)]
    for job in jobs:
        host.claim(job)
    for _ in range(100):
        host.now += 1.1
        host.limits.surplus()
        assert host.limits.busy_jobs() == set(jobs)
    assert len(host.limits.waiting) == min(limit, 1000)


def test_a_host_that_goes_on_gets_the_runs_that_it_gave_back() -> None:
    host = Host(5)
    for number in range(30):
        host.claim(f"job{number}")
    host.now += 12
    given_back = {attempt.run.job_id for attempt in host.limits.surplus()}
    assert len(given_back) == 20
    assert given_back < host.limits.busy_jobs()
    while not host.limits.wants_more:
        host.end_one(12)
    assert len(host.running) == 5
    assert host.limits.busy_jobs() == set()


def test_jobs_that_are_over_are_not_remembered() -> None:
    """One-time jobs, at a host that is never idle."""
    host = Host(2)
    for number in range(10):
        host.claim(f"job{number}")
    for number in range(10, 1000):
        host.claim(f"job{number}")
        host.now += 1
        host.end_one(1)
    assert host.limits.busy_jobs() == {f"job{number}" for number in range(990, 1000)}


def test_no_more_jobs_are_remembered_than_a_claim_can_name() -> None:
    host = Host(1)
    for number in range(2 * MOST_EXCLUDED_JOBS):
        host.claim(f"job{number}")
        host.now += 2
        host.limits.surplus()
    assert len(host.limits.busy_jobs()) <= MOST_EXCLUDED_JOBS + 2
