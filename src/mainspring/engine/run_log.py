"""Logs the outcomes of runs on the logger `mainspring.run`, so that no failure is overlooked.

It listens to the events of its process, which arrive on the program's own loop: a slow logging
handler (mail, a remote server) never delays the engine, whose renewals must be on time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

from mainspring.core.codec import encodable_text
from mainspring.core.durations import humanize_measured
from mainspring.core.events import Event, Events
from mainspring.core.model import Attempt, Run
from mainspring.core.transitions import EXPIRED
from mainspring.engine.attempt import without_engine_frames

log = logging.getLogger("mainspring.run")


def log_runs(events: Events, log_each_run: Callable[[], bool]) -> None:
    """Log failed attempts (WARNING), failed runs (ERROR), and where INFO is on, also the rest.

    Runs that went well are logged only while `log_each_run` says so and the logger takes INFO;
    otherwise their events are not even made.
    """

    def wants_each_run() -> bool:
        return log.isEnabledFor(logging.INFO) and log_each_run()

    events.on("run.retrying", _retrying)
    events.on("run.failed", _failed)
    events.on("run.skipped", lambda event: _skipped(event, wants_each_run()))
    events.on("breaker.opened", _breaker_opened)
    events.on("breaker.closed", _breaker_closed)
    events.on("run.succeeded", _succeeded, only_if=wants_each_run)
    events.on("run.cancelled", _cancelled, only_if=wants_each_run)


def _retrying(event: Event) -> None:
    if (run := event.run) is None:
        return
    wait = max(run.run_at - event.time, timedelta())
    then = f"next attempt in {humanize_measured(wait.total_seconds())}"
    if event.data.get("breaker") == "opened":  # which delays the next attempt
        then = "which opened its circuit breaker; next attempt once that lets one through"
    _log(logging.WARNING, event, run, f"attempt {run.attempt} failed, {then}")


def _failed(event: Event) -> None:
    if (run := event.run) is None:
        return
    reason = f" ({run.reason})" if run.reason else ""
    _log(logging.ERROR, event, run, f"attempt {run.attempt} failed, no attempt follows{reason}")


def _called(attempt: Attempt | None) -> str:
    """The request of a webhook's attempt. The query is left out: it may have a secret."""
    detail = None if attempt is None else attempt.detail
    request = detail.get("request") if isinstance(detail, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("url"), str):
        return ""
    return encodable_text(f", from {request.get('method')} {request['url'].partition('?')[0]}")


def _log(level: int, event: Event, run: Run, what: str) -> None:
    attempt = run.attempts[-1] if run.attempts else None
    trace = (attempt.traceback if attempt is not None else None) or ""
    exc_info = _raised(event.error) if trace and encodable_text(trace) == trace else None
    # Of a handler in another process only the text of the traceback is known.
    shown = "" if exc_info or "\n" not in trace.rstrip() else f"\n{encodable_text(trace).rstrip()}"
    log.log(
        level,
        "job %s: %s: %s (run %s)%s",
        run.job_id,
        what,
        encodable_text(run.error or "no reason is known") + _called(attempt),
        run.id,
        shown,
        exc_info=exc_info,
        extra=_facts(run),
    )


def _raised(
    error: object,
) -> tuple[type[BaseException], BaseException, TracebackType] | None:
    if not isinstance(error, BaseException):
        return None
    frames = without_engine_frames(error)
    return None if frames is None else (type(error), error, frames)


def _skipped(event: Event, each_run: bool) -> None:
    run = event.run
    if run is None:
        return
    if run.reason == EXPIRED:
        log.warning(
            "job %s: not started, because its start deadline had passed (run %s)",
            run.job_id,
            run.id,
            extra=_facts(run),
        )
    elif each_run:
        log.info("job %s: skipped: %s (run %s)", run.job_id, run.reason, run.id, extra=_facts(run))


def _succeeded(event: Event) -> None:
    if (run := event.run) is not None:
        took = "" if run.duration is None else f" in {humanize_measured(run.duration)}"
        log.info("job %s: succeeded%s (run %s)", run.job_id, took, run.id, extra=_facts(run))


def _cancelled(event: Event) -> None:
    if (run := event.run) is not None:
        reason = f": {run.reason}" if run.reason else ""
        log.info("job %s: cancelled%s (run %s)", run.job_id, reason, run.id, extra=_facts(run))


def _breaker_opened(event: Event) -> None:
    log.warning(
        "job %s: its circuit breaker opened after repeated failures; its runs stay pending until"
        " it closes",
        event.job_id,
    )


def _breaker_closed(event: Event) -> None:
    log.info("job %s: its circuit breaker closed again", event.job_id)


def _facts(run: Run) -> dict[str, Any]:
    """Attributes of the log record, for formatters that write JSON."""
    return {"job_id": run.job_id, "run_id": run.id, "attempt": run.attempt}
