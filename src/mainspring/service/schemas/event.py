"""An event of the stream at `/api/v1/events`."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.core.events import Event
from mainspring.core.model import Job
from mainspring.service.schemas.job import job_document
from mainspring.service.schemas.json_format import to_iso
from mainspring.service.schemas.run import run_document


def event_document(event: Event) -> dict[str, Any]:
    error = event.error
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    job = event.data.get("job")
    data = {name: value for name, value in event.data.items() if not isinstance(value, Job)}
    return {
        "event": event.name,
        "time": to_iso(event.time),
        "jobId": event.job_id,
        "run": None if event.run is None else run_document(event.run),
        "job": job_document(job) if isinstance(job, Job) else None,
        "error": error,
        "data": msgspec.to_builtins(data, enc_hook=str),
    }
