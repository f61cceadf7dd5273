"""What becomes of a run when an attempt is over. Pure: an ending in, a change out."""

from __future__ import annotations

import dataclasses
import random
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from mainspring.core import transitions
from mainspring.core.durations import duration, humanize
from mainspring.core.model import (
    Outcome,
    Run,
    replace,
)
from mainspring.core.policy import Delivery, Policy
from mainspring.core.transitions import Change, Failure
from mainspring.engine.attempt import Problem, Stop, Work
from mainspring.engine.results import storable_result
from mainspring.errors import (
    InvalidInput,
    InvalidState,
    RetryNotBefore,
    RunTimeout,
    TransactionAborted,
)

__all__ = ["LEAST_SNOOZE", "Verdict", "completed", "judge"]

LEAST_SNOOZE = timedelta(seconds=0.1)
"""A run that is snoozed for no time would be claimed and snoozed as fast as the store can."""

_FAR = datetime(9999, 1, 1, tzinfo=UTC)

LONGEST_ABORT_WAIT = 5.0
"""Seconds before a run is tried again whose transaction others keep coming between."""


class Verdict(Struct, frozen=True):
    """The change to commit; the problem it records (None: it went well); if a try follows."""

    change: Change
    problem: Problem | None = None
    will_retry: bool = False


def judge(work: Work, now: datetime, rng: random.Random) -> Verdict:
    """Not for work whose lease was lost: nothing about it is ours to write."""
    if work.committed:  # by its transaction; what came behind that changes nothing
        assert work.completion is not None
        return Verdict(work.completion)
    run = _as_it_went(work)
    now = max(now, run.started_at or now)
    log, detail = work.context.log_lines, work.context.detail
    match work.stop:
        case Stop.CANCEL:
            return Verdict(transitions.cancelled(run, now, run.reason, log, detail))
        case Stop.DRAIN if work.problem is not None or work.lingering:
            return Verdict(_given_back(run, work, now))
        case Stop.TIMEOUT:
            return _failed(run, work, now, rng, _timed_out(work))
    problem = work.problem or _untransacted(work)
    if problem is not None and isinstance(problem.exception, TransactionAborted):
        return Verdict(_aborted(run, work, now, rng, problem))
    if problem is not None and problem.snoozes:
        wait = max(_asked_delay(problem) or LEAST_SNOOZE, LEAST_SNOOZE)
        return Verdict(transitions.snoozed(run, _later(now, wait), problem.error))
    if problem is not None:
        return _failed(run, work, now, rng, problem)
    return Verdict(transitions.succeeded(run, now, work.result, log, detail))


def completed(work: Work, now: datetime) -> Change:
    """The change that a handler's transaction commits with its writes."""
    run, context = _as_it_went(work), work.context
    now = max(now, run.started_at or now)
    result = storable_result(context.result, context)
    return transitions.succeeded(run, now, result, context.log_lines, context.detail)


def _as_it_went(work: Work) -> Run:
    return replace(
        work.run,
        started_at=work.began_at or work.run.started_at,
        progress=work.context.latest_progress,
    )


def _aborted(run: Run, work: Work, now: datetime, rng: random.Random, problem: Problem) -> Change:
    """Tried again soon, and later each time: those who collided must not do so in step."""
    log, detail = work.context.log_lines, work.context.detail
    failure = Failure(problem.error, None, Outcome.RELEASED)
    if work.job.policy.delivery is Delivery.AT_MOST_ONCE:
        return transitions.failed(run, now, failure, log, reason="lost", detail=detail)
    seconds = min(0.01 * 2 ** min(run.attempt, 20), LONGEST_ABORT_WAIT) * rng.uniform(0.5, 1)
    return transitions.aborted(run, now, failure, now + timedelta(seconds=seconds), log, detail)


def _given_back(run: Run, work: Work, now: datetime) -> Change:
    """A handler that a drain interrupted is tried again elsewhere, unless it may start once."""
    log, detail = work.context.log_lines, work.context.detail
    if work.job.policy.delivery is Delivery.AT_MOST_ONCE:
        failure = Failure("the worker stopped before the handler ended", None, Outcome.RELEASED)
        return transitions.failed(run, now, failure, log, reason="lost", detail=detail)
    return transitions.released(run, now, began=True, log=log, detail=detail)


def _failed(run: Run, work: Work, now: datetime, rng: random.Random, problem: Problem) -> Verdict:
    policy, log, detail = work.job.policy, work.context.log_lines, work.context.detail
    outcome = Outcome.TIMED_OUT if isinstance(problem.exception, RunTimeout) else Outcome.FAILED
    failure = Failure(problem.error, problem.traceback, outcome)
    if not _another_try(run, policy, problem):
        return Verdict(transitions.failed(run, now, failure, log, detail=detail), problem)
    wait = _asked_delay(problem)
    if wait is None or isinstance(problem.exception, RetryNotBefore):
        wait = max(policy.backoff.wait(run.failures + 1, rng), wait or timedelta())
    change = transitions.retrying(run, now, failure, _later(now, wait), log, detail)
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


def _untransacted(work: Work) -> Problem | None:
    """No other try: whatever the handler did outside of a transaction would be done again."""
    if work.job.policy.delivery is not Delivery.EFFECT_ONCE:
        return None
    problem = Problem.of(
        InvalidState(
            'the handler ended without a transaction, which delivery="effect_once" asks for. Put'
            " its writes into `with ctx.transaction()` (a block may be empty), or use another"
            " delivery"
        )
    )
    return dataclasses.replace(problem, gives_up=True)


def _timed_out(work: Work) -> Problem:
    allowed = humanize(work.job.policy.timeout or timedelta())
    return Problem.of(RunTimeout(f"the handler ran longer than its timeout of {allowed}"))
