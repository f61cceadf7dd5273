"""What becomes of a run when an attempt is over. Pure: an ending in, a change out."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from mainspring import codec, states
from mainspring.durations import duration, humanize
from mainspring.engine.runner import Problem, Stop, Work
from mainspring.errors import InvalidInput, RunTimeout
from mainspring.model import (
    Outcome,
    Run,
    replace,
)
from mainspring.policy import Delivery, Policy
from mainspring.states import Change, Failure

__all__ = ["Verdict", "judge"]

_FAR = datetime(9999, 1, 1, tzinfo=UTC)


class Verdict(Struct, frozen=True):
    """The change to commit; the problem it records (None: it went well); if a try follows."""

    change: Change
    problem: Problem | None = None
    will_retry: bool = False


def judge(work: Work, now: datetime, rng: random.Random) -> Verdict:
    """Not for work whose lease was lost: nothing about it is ours to write."""
    run = replace(
        work.run,
        started_at=work.began_at or work.run.started_at,
        progress=work.context.latest_progress,
    )
    now = max(now, run.started_at or now)
    log = work.context.log_lines
    match work.stop:
        case Stop.CANCEL:
            return Verdict(states.cancelled(run, now, run.reason, log))
        case Stop.DRAIN if work.problem is not None or work.lingering:
            return Verdict(_given_back(run, work.job.policy, now, log))
        case Stop.TIMEOUT:
            return _failed(run, work.job.policy, now, rng, _timed_out(work), log)
    problem = work.problem or _unfit(work.result)
    if problem is not None:
        return _failed(run, work.job.policy, now, rng, problem, log)
    return Verdict(states.succeeded(run, now, work.result, log))


def _given_back(run: Run, policy: Policy, now: datetime, log: tuple[str, ...]) -> Change:
    """A handler that a drain interrupted is tried again elsewhere, unless it may start once."""
    if policy.delivery is Delivery.AT_MOST_ONCE:
        failure = Failure("the worker stopped before the handler ended", None, Outcome.RELEASED)
        return states.failed(run, now, failure, log, reason="lost")
    return states.released(run, now, began=True, log=log)


def _failed(
    run: Run,
    policy: Policy,
    now: datetime,
    rng: random.Random,
    problem: Problem,
    log: tuple[str, ...],
) -> Verdict:
    outcome = Outcome.TIMED_OUT if isinstance(problem.exception, RunTimeout) else Outcome.FAILED
    failure = Failure(problem.error, problem.traceback, outcome)
    if not _another_try(run, policy, problem):
        return Verdict(states.failed(run, now, failure, log), problem)
    wait = _asked_delay(problem)
    if wait is None:
        wait = policy.backoff.wait(run.failures + 1, rng)
    change = states.retrying(run, now, failure, _later(now, wait), log)
    return Verdict(change, problem, will_retry=True)


def _another_try(run: Run, policy: Policy, problem: Problem) -> bool:
    if problem.gives_up or policy.delivery is Delivery.AT_MOST_ONCE:
        return False
    if run.failures >= policy.retries:
        return False
    return problem.asks_retry or policy.retries_error(problem.names)


def _asked_delay(problem: Problem) -> timedelta | None:
    try:
        return None if problem.retry_after is None else duration(problem.retry_after, what="after")
    except InvalidInput:
        return None


def _later(now: datetime, wait: timedelta) -> datetime:
    return now + wait if wait < _FAR - now else _FAR


def _unfit(result: object) -> Problem | None:
    """A result that cannot be kept is a failure, and says so."""
    if result is None:
        return None
    try:
        codec.encode(result, what="result")
    except InvalidInput as error:
        return Problem.of(error)
    return None


def _timed_out(work: Work) -> Problem:
    allowed = humanize(work.job.policy.timeout or timedelta())
    return Problem.of(RunTimeout(f"the handler ran longer than its timeout of {allowed}"))
