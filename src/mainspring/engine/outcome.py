"""Decides what becomes of a run when an attempt has ended. Pure: an attempt in, a change out."""

from __future__ import annotations

import dataclasses
import random
from datetime import datetime, timedelta

from msgspec import Struct

from mainspring.core import transitions
from mainspring.core.clock import later
from mainspring.core.durations import duration, humanize
from mainspring.core.model import (
    Outcome,
    Run,
    replace,
)
from mainspring.core.policy import Delivery, Policy, error_names
from mainspring.core.transitions import AttemptDetails, Change, Failure
from mainspring.engine.attempt import AttemptError, LocalAttempt, StopReason, storable_result
from mainspring.errors import (
    InvalidInput,
    InvalidState,
    MemoryExceeded,
    RetryNotBefore,
    RunLost,
    RunTimeout,
    TransactionAborted,
)

LEAST_SNOOZE = timedelta(seconds=0.1)
"""A run that is snoozed for no time would be claimed and snoozed as fast as the store can."""


LONGEST_ABORT_WAIT = 5.0
"""Most seconds before a run is retried whose transaction keeps conflicting with others."""


class Decision(Struct, frozen=True):
    """The change to commit, the error that it records (None: it went well), and whether another
    attempt follows."""

    change: Change
    error: AttemptError | None = None
    will_retry: bool = False


def decide(attempt: LocalAttempt, now: datetime, rng: random.Random) -> Decision:
    """Not for an attempt whose lease was lost: this worker must write nothing about its run."""
    if attempt.committed:  # by its transaction: what the handler did after it changes nothing
        assert attempt.completion is not None
        return Decision(attempt.completion)
    run, details = _with_progress(attempt), _details(attempt)
    now = max(now, run.started_at or now)
    match attempt.stop_reason:
        case StopReason.CANCEL:
            return Decision(transitions.cancelled(run, now, run.reason, details))
        case StopReason.DRAIN if attempt.error is not None or attempt.lingering:
            return _release_or_lose(run, attempt, now)
        case StopReason.MEMORY if attempt.error is not None or attempt.lingering:
            return _failed(run, attempt, now, rng, _stopped_at_memory_limit(attempt))
        case StopReason.TIMEOUT:
            return _failed(run, attempt, now, rng, _timed_out(attempt))
    error = attempt.error or _missing_transaction_error(attempt)
    if error is not None and isinstance(error.exception, TransactionAborted):
        return _aborted(run, attempt, now, rng, error)
    if error is not None and error.kind == "snooze":
        if attempt.job.policy.delivery is Delivery.AT_MOST_ONCE:
            return _failed(run, attempt, now, rng, _snoozed_at_most_once())
        wait = max(_asked_delay(error) or LEAST_SNOOZE, LEAST_SNOOZE)
        until = later(now, wait)
        return Decision(transitions.snoozed(run, now, until, error.message, began=True))
    if error is not None:
        return _failed(run, attempt, now, rng, error)
    return Decision(transitions.succeeded(run, now, attempt.result, details))


def make_completion(attempt: LocalAttempt, now: datetime) -> Change:
    """The change that a handler's transaction commits with its writes."""
    run, context = _with_progress(attempt), attempt.context
    now = max(now, run.started_at or now)
    result = storable_result(context.result, context)
    return transitions.succeeded(run, now, result, _details(attempt))


def _with_progress(attempt: LocalAttempt) -> Run:
    return replace(
        attempt.run,
        started_at=attempt.began_at or attempt.run.started_at,
        progress=attempt.context.latest_progress,
    )


def _details(attempt: LocalAttempt) -> AttemptDetails:
    context = attempt.context
    return AttemptDetails(
        context.log_lines, context.detail, attempt.cpu_seconds, attempt.peak_memory
    )


def _aborted(
    run: Run, attempt: LocalAttempt, now: datetime, rng: random.Random, error: AttemptError
) -> Decision:
    """Retry soon, later each time, after a random part of the wait, so that two transactions that
    conflicted do not conflict again."""
    details = _details(attempt)
    failure = Failure(error.message, None, Outcome.RELEASED)
    if attempt.job.policy.delivery is Delivery.AT_MOST_ONCE:
        return Decision(
            transitions.failed(run, now, failure, details, reason=transitions.LOST), error
        )
    seconds = min(0.01 * 2 ** min(run.attempt, 20), LONGEST_ABORT_WAIT) * rng.uniform(0.5, 1)
    until = now + timedelta(seconds=seconds)
    return Decision(transitions.aborted(run, now, failure, until, details))


def _release_or_lose(run: Run, attempt: LocalAttempt, now: datetime) -> Decision:
    """Release a run that a drain interrupted, unless its handler may start only once."""
    details = _details(attempt)
    if attempt.job.policy.delivery is Delivery.AT_MOST_ONCE:
        lost = RunLost("the worker stopped before the handler ended")
        failure = Failure(str(lost), None, Outcome.RELEASED)
        change = transitions.failed(run, now, failure, details, reason=transitions.LOST)
        return Decision(change, AttemptError(str(lost), error_names(lost), exception=lost))
    return Decision(transitions.released(run, now, began=True, details=details))


def _failed(
    run: Run, attempt: LocalAttempt, now: datetime, rng: random.Random, error: AttemptError
) -> Decision:
    policy, details = attempt.job.policy, _details(attempt)
    outcome = Outcome.TIMED_OUT if isinstance(error.exception, RunTimeout) else Outcome.FAILED
    failure = Failure(error.message, error.traceback, outcome)
    if not may_retry(run, policy, error):
        reason = transitions.MEMORY if isinstance(error.exception, MemoryExceeded) else None
        return Decision(transitions.failed(run, now, failure, details, reason), error)
    wait = _asked_delay(error)
    if wait is None or isinstance(error.exception, RetryNotBefore):
        wait = max(policy.backoff.wait(run.failures + 1, rng), wait or timedelta())
    change = transitions.retrying(run, now, failure, later(now, wait), details)
    return Decision(change, error, will_retry=True)


def may_retry(run: Run, policy: Policy, error: AttemptError) -> bool:
    """Whether a run whose attempt failed with this error is tried again."""
    if error.kind == "give_up" or policy.delivery is Delivery.AT_MOST_ONCE:
        return False
    if run.failures >= policy.retries:
        return False
    return error.kind == "retry" or policy.retries_error(error.names)


def _asked_delay(error: AttemptError) -> timedelta | None:
    try:
        return None if error.retry_after is None else duration(error.retry_after, what="after")
    except InvalidInput:
        return None


def _missing_transaction_error(attempt: LocalAttempt) -> AttemptError | None:
    """The error of an `effect_once` handler that used no transaction. It is not retried: what the
    handler did would be done again."""
    if attempt.job.policy.delivery is not Delivery.EFFECT_ONCE:
        return None
    error = AttemptError.of(
        InvalidState(
            'the handler ended without a transaction, which delivery="effect_once" asks for. Put'
            " its writes into `with ctx.transaction()` (a block may be empty), or use another"
            " delivery"
        )
    )
    return dataclasses.replace(error, kind="give_up")


def _snoozed_at_most_once() -> AttemptError:
    return AttemptError.of(
        InvalidState(
            'the handler raised Snooze, but with delivery="at_most_once" a run starts only once.'
            " Return, or use another delivery"
        )
    )


def _stopped_at_memory_limit(attempt: LocalAttempt) -> AttemptError:
    message = "the handler ran when its process reached the memory limit, and did not end in time"
    return _with_place(AttemptError.of(MemoryExceeded(message)), attempt)


def _timed_out(attempt: LocalAttempt) -> AttemptError:
    allowed = humanize(attempt.job.policy.timeout or timedelta())
    if attempt.job.webhook is not None:
        return AttemptError.of(RunTimeout(f"the endpoint did not answer within {allowed}"))
    message = f"the handler ran longer than its timeout of {allowed}"
    if not attempt.context.cancelled:
        message += "; the event loop was blocked, so the handler could not be stopped"
    return _with_place(AttemptError.of(RunTimeout(message)), attempt)


def _with_place(error: AttemptError, attempt: LocalAttempt) -> AttemptError:
    """The error, with where the handler was when it was stopped, or what it raised too late."""
    trace = attempt.error.traceback if attempt.error is not None else None
    return error if trace is None else dataclasses.replace(error, traceback=trace)
