"""The health and the figures of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mainspring.service.schemas.fields import Cursor, Document, Milliseconds, Time, repeats

_Status = Annotated[Literal["healthy", "degraded", "stopping"], Field(examples=["healthy"])]
_RunCounts = Annotated[
    dict[str, int],
    Field(
        description="Runs by state: how many are unfinished now, and how many have ever ended in"
        " each final state.",
        examples=[{"pending": 2, "succeeded": 1450, "failed": 50}],
    ),
]


class Health(Document):
    status: _Status
    time: Time
    store: Literal["ok", "away"]
    running: Annotated[int, Field(description="Attempts that run in this process.")]
    capacity: Annotated[int, Field(description="How many attempts may run at once here.")]
    poll_interval: Milliseconds
    is_leader: Annotated[bool, Field(description="Whether this process fires slots first.")]
    stuck_threads: Annotated[int, Field(description="Threads that outlived their attempt.")]
    enabled: Annotated[bool, Field(description="Whether this process fires slots.")]
    paused_since: Annotated[
        Time | None,
        Field(description="Since when all firing is paused, on every node. Null: it is not."),
    ]
    jobs_without_worker: Annotated[
        list[str],
        Field(
            description="Jobs that are not fired, or get no further runs after others, because no"
            " live worker can run them."
        ),
    ]
    orphaned_jobs: Annotated[
        list[str],
        Field(description="Jobs that code defined, and whose code is gone."),
    ]
    memory: Annotated[
        int | None, Field(description="Bytes of memory that this process holds. Null: not known.")
    ]
    cpu_seconds: Annotated[float, Field(description="CPU time that this process has used.")]
    memory_limit_reached: Annotated[
        bool,
        Field(
            description="This process holds as much memory as it may: it claims no more runs, and"
            " is replaced."
        ),
    ]


class JobCounts(Document):
    total: int
    enabled: int


class LastDay(Document):
    succeeded: int
    failed: int


class Statistics(Document):
    jobs: JobCounts
    runs: _RunCounts
    last_day: Annotated[LastDay, Field(description="Runs that ended within 24 hours.")]
    due: Annotated[int, Field(description="Pending runs whose time has come.")]


class HistoryPoint(Document):
    time: Annotated[Time, Field(description="When this part of the window begins.")]
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    duration_p95: Annotated[
        Milliseconds | None,
        Field(alias="durationP95", description="95 % of the runs took at most so long."),
    ]
    lateness_p95: Annotated[
        Milliseconds | None,
        Field(alias="latenessP95", description="95 % of the runs started at most so late."),
    ]


class History(Document):
    """How the runs of all jobs ended, over time."""

    since: Time
    step: Annotated[Milliseconds, Field(description="How long each part of the window is.")]
    points: Annotated[list[HistoryPoint], Field(description="The parts, the oldest first.")]


class OpenBreaker(Document):
    """A circuit breaker that is not closed."""

    job_id: str
    state: Literal["open", "half_open"]
    failures: Annotated[int, Field(description="How many runs have failed in a row.")]
    until: Annotated[Time | None, Field(description="When one run may try again. Null: now.")]
    trial: Annotated[str | None, Field(description="The run that tries. Null: none has begun.")]


class OpenBreakerList(Document):
    items: list[OpenBreaker]
    next_cursor: Cursor


@repeats(Health, "paused_since")
class Firing(Document):
    """Whether slots fire."""


class Probe(Document):
    status: Annotated[str, Field(examples=["ok"])]


PROCESS_FIELDS = (
    *("is_leader", "stuck_threads", "enabled", "paused_since"),
    *("memory", "cpu_seconds", "memory_limit_reached"),
)
"""The fields that the library's health of a scheduler has under the same names."""
