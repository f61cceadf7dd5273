"""The health and the figures of the service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mainspring.service.schemas.fields import Document, Milliseconds, Time

__all__ = [
    "ExecutionCounts",
    "Firing",
    "FiringAnswer",
    "Health",
    "JobCounts",
    "LastDay",
    "PageHealth",
    "Probe",
    "SchedulerHealth",
    "SchedulerState",
    "Statistics",
    "Stats",
    "StatsData",
]

_Status = Annotated[Literal["healthy", "degraded", "stopping"], Field(examples=["healthy"])]
_RunCounts = Annotated[
    dict[str, int],
    Field(
        description="The stored runs, by state.",
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


class Firing(Document):
    """Whether slots fire."""

    paused_since: Annotated[
        Time | None,
        Field(description="Since when all firing is paused, on every node. Null: it is not."),
    ]


class Probe(Document):
    status: Annotated[str, Field(examples=["ok"])]


# -- answers of the compatibility page ------------------------------------------------------------


class SchedulerState(Document):
    is_running: bool
    running_jobs: int
    max_concurrent_jobs: int


class SchedulerHealth(SchedulerState):
    poll_interval: Milliseconds
    is_leader: bool
    stuck_threads: int
    enabled: bool
    paused_since: Time | None
    memory: int | None
    cpu_seconds: float
    memory_limit_reached: bool


class PageHealth(Document):
    success: bool
    status: _Status
    timestamp: Time
    store: Literal["ok", "away"]
    scheduler: SchedulerHealth
    jobs_without_worker: list[str]
    orphaned_jobs: list[str]


class FiringAnswer(Document):
    success: bool
    data: Firing


class ExecutionCounts(Document):
    total: int
    successful: int
    failed: int
    last24_hours: Annotated[int, Field(alias="last24Hours")]


class StatsData(Document):
    executions: ExecutionCounts
    scheduler: SchedulerState
    jobs: dict[str, int]
    runs: _RunCounts
    due: int


class Stats(Document):
    success: bool
    data: StatsData
