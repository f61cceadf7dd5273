"""Jobs, runs and attempts as JSON documents: the fields of the Python API, times in UTC."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from mainspring.cli.time_format import iso
from mainspring.core import codec
from mainspring.core.model import Attempt, Job, Page, Progress, Run
from mainspring.core.policy_defaults import origins_of
from mainspring.core.statistics import LastRun
from mainspring.webhooks.service import shown

__all__ = [
    "job_document",
    "page_document",
    "plain_json",
    "run_document",
    "statistics_document",
]

T = TypeVar("T")


def page_document(page: Page[T], shape: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    return {"items": [shape(item) for item in page.items], "cursor": page.cursor}


def run_document(run: Run) -> dict[str, Any]:
    document = _document(run, values=("payload", "result"))
    return {**document, "duration": run.duration}


def job_document(job: Job) -> dict[str, Any]:
    document = _document(job, values=("payload", "metadata"))
    schedule = job.schedule
    return {
        **document,
        "schedule": None
        if schedule is None
        else {**schedule.to_dict(), "description": schedule.describe()},
        "policy": job.policy.to_dict(),
        "origins": origins_of(job),
        "webhook": None if job.webhook is None else shown(job.webhook),
    }


def statistics_document(value: Any) -> Any:
    """The health or the metrics of a job; durations in seconds."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: statistics_document(getattr(value, field.name)) for field in fields}
    if isinstance(value, LastRun):
        return {name: statistics_document(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): statistics_document(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [statistics_document(item) for item in value]
    return _plain(value)


def plain_json(value: Any) -> Any:
    """A payload or result in JSON's own types; what JSON lacks is tagged, as it is stored."""
    return json.loads(codec.encode(value, limit=2**31))


def _document(item: Run | Job | Attempt | Progress, values: tuple[str, ...] = ()) -> dict[str, Any]:
    document = {}
    for name in type(item).__annotations__:
        if name == "brief":
            continue
        value = getattr(item, name)
        document[name] = plain_json(value) if name in values else _plain(value)
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Attempt | Progress):
        return _document(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
