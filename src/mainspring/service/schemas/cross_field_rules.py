"""What the fields of a job make together: each can be right by itself, and wrong beside another.

Looked at in the names and forms that clients send, so that every fault of a body is told at once.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from mainspring.errors import InvalidInput
from mainspring.scheduler.definitions import LONGEST_WEBHOOK
from mainspring.service.schemas.durations import span
from mainspring.webhooks.service import HANDLER

__all__ = ["missing_headers", "of_a_job", "of_a_new_job", "slug"]

Fault = tuple[str, str]
"""A field, and what is wrong with it."""

_TIMES = ("schedule", "every", "runAt")
_REQUEST = ("method", "headers", "secretHeaders", "body", "successCodes", "retryOn")


def slug(text: str) -> str:
    """A readable id: `Daily report (EU)` is `daily-report-eu`."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9._:]+", "-", plain).strip("-.:_")[:100]


def of_a_new_job(body: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _target(body)
    said = [name for name in _TIMES if body.get(name) is not None]
    if len(said) > 1:
        yield "schedule", f"give one of {', '.join(said)}: a job has one schedule"
    elif not {*_TIMES, "after"} & body.keys():
        yield (
            "schedule",
            "give schedule (such as '0 */5 * * * *'), every or runAt; schedule: null makes a job"
            " that only runs when it is triggered",
        )
    name = body.get("name")
    if isinstance(name, str) and body.get("id") is None and not slug(name):
        yield "name", f"no id can be made of {name!r}: give one as id, as in 'report-eu'"
    missing = missing_headers(body.get("secretHeaders"), body.get("headers"))
    if missing:
        yield "secretHeaders", missing
    yield from of_a_job(body)


def of_a_job(job: Mapping[str, Any]) -> Iterator[Fault]:
    """Of a whole job: a new one, or one as an edit would leave it."""
    if job.get("endpoint") is not None:
        if job.get("payload") is not None:
            yield "payload", "a job that calls an endpoint sends its body: give it there"
        if "timeout" in job and _too_long(job["timeout"]):
            shown = json.dumps(job["timeout"])
            yield (
                "timeout",
                f"is at most 1h for a job that calls an endpoint (30s unless said), not {shown}",
            )
    elif job.get("handler") == HANDLER:
        yield "handler", f"{HANDLER!r} is what calls an endpoint: give endpoint, and no handler"
    elif job.get("handler") is not None:
        for name in _REQUEST:
            if job.get(name) is not None:
                yield name, "is of a job that calls an endpoint, and this one runs a handler"
    if job.get("concurrencyKey") is not None and job.get("concurrency") is None:
        yield "concurrencyKey", "needs a concurrency: how many runs that share the key may run"
    if job.get("executionType") == "AT_MOST_ONCE" and job.get("retryAttempts"):
        yield "retryAttempts", "AT_MOST_ONCE starts a run once: leave it out, or say 0"
    planned = any(job.get(name) is not None for name in _TIMES)
    if planned and job.get("after"):
        yield "after", "a job has a schedule or comes after others, not both"
    if not planned and job.get("timezone") not in (None, "UTC"):
        yield "timezone", "is of a schedule, and there is none"
    if not planned and job.get("jitter") is not None:
        yield "jitter", "spreads the slots of a schedule, and there is none"


def missing_headers(marked: Any, headers: Any) -> str | None:
    """What is wrong where headers are marked as secret that are not there."""
    names = [name for name in marked if isinstance(name, str)] if isinstance(marked, list) else []
    there = {name.lower() for name in headers} if isinstance(headers, Mapping) else set()
    missing = sorted({name.lower() for name in names} - there)
    return f"{', '.join(missing)}: there is no such header in headers" if missing else None


def _target(body: Mapping[str, Any]) -> Iterator[Fault]:
    calls, runs = body.get("endpoint") is not None, body.get("handler") is not None
    if calls is runs:
        yield (
            "endpoint",
            "give endpoint (the address to call) or handler (the name of a registered Python"
            f" function){', not both' if calls else ''}",
        )


def _too_long(timeout: Any) -> bool:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | str):
        return False
    try:
        return span(timeout, "timeout") > LONGEST_WEBHOOK
    except InvalidInput:
        return False  # told by itself
