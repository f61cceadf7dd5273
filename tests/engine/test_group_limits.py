"""Limits of groups of attempts: how many run, and which jobs are not claimed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mainspring.engine.attempt import AttemptError, LocalAttempt
from mainspring.engine.group_limits import PROMPT_SECONDS, GroupLimits

CAPACITY = 7


class Hosts:
    """Attempts whose jobs are named by their host. Time goes on as the test says."""

    def __init__(self, *, per_host: int | None = None) -> None:
        self.now = 100.0
        self.per_host = per_host
        self.limits = GroupLimits(CAPACITY, lambda: self.now)
        self.running: list[LocalAttempt] = []

    def group(self, job: Any) -> str:
        return str(job).partition("/")[0]

    def group_limit(self) -> int | None:
        return self.per_host

    def start(self, name: str) -> bool:
        run: Any = SimpleNamespace(job_id=name)
        job: Any = name
        handler: Any = self
        nothing: Any = None
        attempt = LocalAttempt(run, job, handler, nothing, self.now)
        if not self.limits.start(attempt):
            return False
        self.running.append(attempt)
        return True

    def start_all(self, *names: str) -> int:
        return sum(self.start(name) for name in names)

    def end(self, seconds: float, *, failed: bool = False) -> None:
        attempt = self.running.pop(0)
        if failed:
            attempt.error = AttemptError("no", ("ValueError",))
        self.limits.leave(attempt, seconds)


def test_a_host_beyond_its_share_comes_after_others() -> None:
    hosts = Hosts()
    hosts.start_all("a/1", "a/2", "b")
    assert hosts.limits.large_jobs() == set()
    hosts.start_all("a/3")
    assert hosts.limits.large_jobs() == {"a/1", "a/2", "a/3"}
    hosts.end(1.0)
    assert hosts.limits.large_jobs() == set()


@pytest.mark.parametrize("reason", ["slow", "failing", "hanging"])
def test_a_slow_or_failing_host_has_half_of_the_capacity(reason: str) -> None:
    hosts = Hosts()
    hosts.start("a")
    hosts.end(1.0)
    hosts.start_all(*["a"] * CAPACITY)
    if reason == "hanging":
        hosts.now += PROMPT_SECONDS + 1
    else:
        for _ in range(CAPACITY):
            hosts.end(30.0 if reason == "slow" else 0.1, failed=reason == "failing")
        assert hosts.start_all(*["a"] * CAPACITY) == CAPACITY // 2
    assert not hosts.start("a")
    assert hosts.limits.full_jobs() == {"a"}
    assert hosts.start("b")
    assert hosts.limits.full_jobs() == {"a"}


def test_a_host_that_is_prompt_again_has_all_capacity_again() -> None:
    hosts = Hosts()
    hosts.start("a")
    hosts.end(30.0, failed=True)
    for _ in range(20):
        assert hosts.start("a")
        hosts.end(0.1)
    assert hosts.start_all(*["a"] * CAPACITY) == CAPACITY
