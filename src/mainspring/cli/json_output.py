"""Jobs and runs as documents: the fields of the Python API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import structs

from mainspring.core import codec
from mainspring.core.model import Job, Page, Run
from mainspring.core.policy_defaults import origins_of
from mainspring.webhooks.service import masked_webhook

__all__ = [
    "job_document",
    "page_document",
    "plain_json",
    "run_document",
]

T = TypeVar("T")


def page_document(page: Page[T], shape: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    return {"items": [shape(item) for item in page.items], "cursor": page.cursor}


def run_document(run: Run) -> dict[str, Any]:
    fields = structs.asdict(run)
    del fields["brief"]
    values = {"payload": plain_json(run.payload), "result": plain_json(run.result)}
    return {**fields, **values, "duration": run.duration}


def job_document(job: Job) -> dict[str, Any]:
    schedule = job.schedule
    return {
        **structs.asdict(job),
        "payload": plain_json(job.payload),
        "metadata": plain_json(job.metadata),
        "schedule": None
        if schedule is None
        else {**schedule.to_dict(), "description": schedule.describe()},
        "policy": job.policy.to_dict(),
        "origins": origins_of(job),
        "webhook": None if job.webhook is None else masked_webhook(job.webhook),
    }


def plain_json(value: Any) -> Any:
    """A payload or result in JSON's own types; what JSON lacks is tagged, as it is stored."""
    return json.loads(codec.encode(value, limit=2**31))
