"""A run context without a run: for calling a handler in a test of its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mainspring.context import RunContext
from mainspring.model import Run, State

__all__ = ["make_context"]

_WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def make_context(
    *,
    payload: Any = None,
    job_id: str = "test",
    attempt: int = 1,
    scheduled_at: datetime = _WHEN,
    resources: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
) -> RunContext:
    """What a handler is given, with the facts that its test cares about."""
    run = Run(
        id=f"{job_id}-run",
        job_id=job_id,
        handler=job_id,
        created_at=scheduled_at,
        scheduled_at=scheduled_at,
        run_at=scheduled_at,
        started_at=scheduled_at,
        state=State.RUNNING,
        attempt=attempt,
        token=attempt,
        payload=payload,
    )
    return RunContext(run, resources, results)
