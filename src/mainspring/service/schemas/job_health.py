"""The health and the metrics of a job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mainspring.core.model import Source, State
from mainspring.scheduler import statistics
from mainspring.service.schemas.fields import Document, Milliseconds, Time
from mainspring.service.schemas.json_format import camel_case

_Rate = Annotated[
    float | None,
    Field(description="0 to 1, of the runs that succeeded or failed. Null if none did."),
]


class EndedRun(Document):
    """The run that ended last, of those that were tried."""

    id: str
    state: State
    source: Source
    started_at: Time
    finished_at: Time
    error: str | None


class JobHealth(Document):
    job_id: str
    status: Annotated[
        Literal[
            "healthy",
            "warning",
            "unhealthy",
            "overdue",
            "paused",
            "no_worker",
            "orphaned",
            "unknown",
        ],
        Field(
            description="`healthy`: at least 95 % of the runs succeeded. `warning`: at least 80 %."
            " `unhealthy`: fewer. `overdue`: a slot passed and no scheduler fired it. `paused`: the"
            " job is not enabled. `no_worker`: no live worker has its handler. `orphaned`: the code"
            " or file that defined it no longer does. `unknown`: no run has ended yet."
        ),
    ]
    enabled: bool
    success_rate: _Rate
    rated_since: Annotated[
        Time | None,
        Field(
            description="The rate is over the runs that ended since then. Null: none has, and it is"
            " over all runs since the job was made."
        ),
    ]
    consecutive_failures: int
    last_run: EndedRun | None
    last_run_at: Annotated[Time | None, Field(description="When the newest run started.")]
    next_run_at: Time | None
    breaker: Literal["closed", "open", "half_open", "none"]
    breaker_until: Time | None


class Spread(Document):
    """Percentiles are within 5 % of the true ones, or 1 ms. All are null if no run was counted."""

    average: Milliseconds | None
    p50: Milliseconds | None
    p95: Milliseconds | None
    max: Milliseconds | None


class FailedRun(Document):
    id: str
    finished_at: Time
    attempts: int
    error: str | None


class JobMetrics(Document):
    job_id: str
    since: Annotated[Time, Field(description="Where the window begins: at a full hour.")]
    total: Annotated[int, Field(description="The runs that succeeded or failed.")]
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    success_rate: _Rate
    failure_rate: _Rate
    duration: Annotated[Spread, Field(description="How long the last attempt of each run took.")]
    lateness: Annotated[
        Spread, Field(description="How much later than due the runs started, at the first attempt.")
    ]
    consecutive_failures: int
    ended: Annotated[
        dict[str, int], Field(description="All runs since the job was made, by how they ended.")
    ]
    recent_failures: Annotated[
        list[FailedRun], Field(description="The newest stored runs that failed, at most 10.")
    ]


def metrics_document(found: statistics.JobMetrics) -> dict[str, Any]:
    spans = {"duration": _spread(found.duration), "lateness": _spread(found.lateness)}
    return {**camel_case(found), **spans}


def _spread(spread: statistics.Spread) -> dict[str, float | None]:
    """In milliseconds; the library has seconds."""
    return {
        name: None if value is None else value * 1000 for name, value in camel_case(spread).items()
    }
