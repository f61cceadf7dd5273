"""Jobs, runs and executions as clients get them: camelCase, times in ISO 8601 with `Z`, spans in
milliseconds, secrets masked."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from fastapi import Response

from mainspring.core import codec
from mainspring.core.events import Event
from mainspring.core.model import Attempt, Job, Outcome, Run, State
from mainspring.core.policy import Delivery
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.cron import Cron
from mainspring.core.schedules.interval import Interval
from mainspring.core.schedules.once import Once
from mainspring.core.schedules.recurrence import Recurrence
from mainspring.service.schemas.json_bytes import written
from mainspring.webhooks.service import shown_headers

__all__ = [
    "answer",
    "created",
    "etag",
    "event_document",
    "executions",
    "job_document",
    "ms",
    "run_document",
    "schedule_text",
    "when",
]

MILLISECOND = timedelta(milliseconds=1)


def answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(written(document), status, headers=headers, media_type="application/json")


def when(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def ms(span: Any) -> int | float | None:
    if span is None:
        return None
    made = span / MILLISECOND
    return int(made) if made == int(made) else float(made)


def plain(value: Any) -> Any:
    """A payload or result in JSON's own types; what JSON lacks is tagged, as it is stored."""
    if value is None or isinstance(value, str | bool):
        return value
    return json.loads(codec.encode(value, limit=2**31))


# -- jobs -----------------------------------------------------------------------------------


def job_document(job: Job, *, id_name: str = "id") -> dict[str, Any]:
    """`id_name`: the compatibility page calls it `_id`."""
    policy, schedule, webhook = job.policy, job.schedule, job.webhook
    document: dict[str, Any] = {
        id_name: job.id,
        "name": job.metadata.get("name", job.id),
        "description": job.description,
        "schedule": schedule_text(schedule),
        "scheduleDescription": None if schedule is None else _described(schedule),
        "every": ms(schedule.interval) if isinstance(schedule, Interval) else None,
        "runAt": when(schedule.when) if isinstance(schedule, Once) else None,
        "timezone": "UTC" if schedule is None else schedule.timezone,
        "jitter": None if schedule is None else ms(schedule.jitter),
        "handler": job.handler,
        "payload": plain(job.payload),
        "executionType": (
            "AT_MOST_ONCE" if policy.delivery is Delivery.AT_MOST_ONCE else "AT_LEAST_ONCE"
        ),
        "enabled": job.enabled,
        "retryAttempts": policy.retries,
        "retryDelay": ms(policy.backoff.delay),
        "backoff": {
            "kind": str(policy.backoff.kind),
            "factor": policy.backoff.factor,
            "cap": ms(policy.backoff.cap),
            "jitter": policy.backoff.jitter,
        },
        "timeout": ms(policy.timeout),
        "priority": policy.priority,
        "queue": policy.queue,
        "concurrency": policy.concurrency,
        "concurrencyKey": policy.concurrency_key,
        "overlap": str(policy.overlap),
        "misfire": {
            "kind": str(policy.misfire.kind),
            "grace": ms(policy.misfire.grace),
            "limit": policy.misfire.limit,
        },
        "startDeadline": ms(policy.start_deadline),
        "breaker": (
            None
            if policy.breaker is None
            else {"failures": policy.breaker.failures, "reset": ms(policy.breaker.reset)}
        ),
        "after": list(policy.after),
        "tags": list(job.tags),
        "metadata": {k: v for k, v in plain(dict(job.metadata)).items() if k != "name"},
        "owner": str(job.owner),
        "nextRunAt": when(job.next_run_at),
        "lastRunAt": when(job.last_run_at),
        "createdAt": when(job.created_at),
        "updatedAt": when(job.updated_at),
    }
    if webhook is not None:
        document |= {
            "endpoint": webhook.url,
            "method": webhook.method,
            "headers": shown_headers(webhook),
            "secretHeaders": list(webhook.secret_headers),
            "body": webhook.body,
            "successCodes": [_codes(one) for one in webhook.success],
            "retryOn": (
                None if webhook.retry_on is None else [_codes(one) for one in webhook.retry_on]
            ),
        }
    return document


def created(job: Job, signing_secret: str | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "jobId": job.id,
        "schedule": schedule_text(job.schedule),
        "endpoint": job.webhook.url if job.webhook else None,
        "nextRunAt": when(job.next_run_at),
    }
    if job.webhook is None:
        document["handler"] = job.handler
    if signing_secret is not None:
        document["signingSecret"] = signing_secret
    return document


def schedule_text(schedule: Schedule | None) -> str | None:
    """A text that gives the schedule back when it is sent with its timezone."""
    if schedule is None:
        return None
    if isinstance(schedule, Cron):
        return schedule.expression
    if isinstance(schedule, Interval):
        return f"{ms(schedule.interval)}ms"
    if isinstance(schedule, Once):
        return when(schedule.when)
    return schedule.text if isinstance(schedule, Recurrence) else schedule.describe()


def etag(job: Job) -> str:
    """Of the definition alone: a job that fires is not edited by that. The document leaves out or
    rounds some of it, so those parts are told beside it as they are stored."""
    document = job_document(job, id_name="_id")
    for name in ("nextRunAt", "lastRunAt", "updatedAt"):
        del document[name]
    signing = [one.sealed.box for one in job.webhook.signing] if job.webhook else []
    sealed = [one.box for one in job.webhook.secret_headers.values()] if job.webhook else []
    schedule = job.schedule.to_dict() if job.schedule else None
    text = written([document, schedule, job.policy.to_dict(), signing, sealed])
    return f'"{hashlib.sha256(text).hexdigest()[:32]}"'


@lru_cache(maxsize=10_000)
def _described(schedule: Schedule) -> str:
    return schedule.describe()  # half of what a job's document costs, and rarely new


def _codes(bounds: tuple[int, int]) -> int | str:
    low, high = bounds
    return low if low == high else f"{low}-{high}"


# -- runs -----------------------------------------------------------------------------------


def run_document(run: Run, *, whole: bool = False) -> dict[str, Any]:
    """`whole`: with payload, result and every attempt, for one run that is looked at."""
    document: dict[str, Any] = {
        "id": run.id,
        "jobId": run.job_id,
        "handler": run.handler,
        "state": str(run.state),
        "source": str(run.source),
        "queue": run.queue,
        "priority": run.priority,
        "attempt": run.attempt,
        "failures": run.failures,
        "scheduledAt": when(run.scheduled_at),
        "runAt": when(run.run_at),
        "createdAt": when(run.created_at),
        "startedAt": when(run.started_at),
        "finishedAt": when(run.finished_at),
        "duration": None if run.duration is None else round(run.duration * 1000, 3),
        "worker": run.worker,
        "error": run.error,
        "reason": run.reason,
        "cancelRequested": run.cancel_requested,
        "dedupeKey": run.dedupe_key,
        "progress": (
            None
            if run.progress is None
            else {
                "done": run.progress.done,
                "total": run.progress.total,
                "message": run.progress.message,
            }
        ),
    }
    if whole:
        document |= {
            "payload": plain(run.payload),
            "result": plain(run.result),
            "after": list(run.after),
            "attempts": [_attempt_document(one) for one in run.attempts],
        }
    return document


def _attempt_document(attempt: Attempt) -> dict[str, Any]:
    detail = attempt.detail if isinstance(attempt.detail, dict) else {}
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "startedAt": when(attempt.started_at),
        "finishedAt": when(attempt.finished_at),
        "outcome": str(attempt.outcome),
        "error": attempt.error,
        "traceback": attempt.traceback,
        "log": list(attempt.log),
        "request": detail.get("request"),
        "response": detail.get("response"),
    }


def executions(run: Run) -> list[dict[str, Any]]:
    """The run's attempts as page-002 clients know them, newest first."""
    found = [_execution(run, attempt) for attempt in run.attempts]
    if run.state is State.RUNNING:
        found.append(
            {
                "_id": f"{run.id}:{run.attempt}",
                "jobId": run.job_id,
                "status": "running",
                "startedAt": when(run.started_at),
                "completedAt": None,
                "duration": None,
                "responseCode": None,
                "responseBody": None,
                "truncated": False,
                "encoding": None,
                "errorMessage": None,
                "attempt": run.attempt,
                "scheduledAt": when(run.scheduled_at),
            }
        )
    return found[::-1]


_WHY = {
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.CANCELLED: "cancelled",
    Outcome.LOST: "the worker died or lost its lease",
    Outcome.RELEASED: "the worker stopped and gave the run back",
}


def _execution(run: Run, attempt: Attempt) -> dict[str, Any]:
    detail = attempt.detail if isinstance(attempt.detail, dict) else {}
    response = detail.get("response") or {}
    good = attempt.outcome is Outcome.SUCCEEDED
    return {
        "_id": f"{run.id}:{attempt.number}",
        "jobId": run.job_id,
        "status": "success" if good else "failure",
        "startedAt": when(attempt.started_at),
        "completedAt": when(attempt.finished_at),
        "duration": round((attempt.finished_at - attempt.started_at) / MILLISECOND),
        "responseCode": response.get("status"),
        "responseBody": response.get("body"),
        "truncated": response.get("truncated", False),
        "encoding": response.get("encoding"),
        "errorMessage": None if good else attempt.error or _WHY[attempt.outcome],
        "attempt": attempt.number,
        "scheduledAt": when(run.scheduled_at),
    }


# -- events ---------------------------------------------------------------------------------


def event_document(event: Event, *, id_name: str = "_id") -> dict[str, Any]:
    error = event.error
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    job = event.data.get("job")
    data = {name: value for name, value in event.data.items() if not isinstance(value, Job)}
    return {
        "event": event.name,
        "time": when(event.time),
        "jobId": event.job_id,
        "run": None if event.run is None else run_document(event.run),
        "job": job_document(job, id_name=id_name) if isinstance(job, Job) else None,
        "error": error,
        "data": msgspec.to_builtins(data, enc_hook=str),
    }
