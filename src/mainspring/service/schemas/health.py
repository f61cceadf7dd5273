"""The health and the figures of the service and of jobs; workers; probes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from msgspec import Meta

from mainspring.core.model import Source, State
from mainspring.engine.live_workers import LiveWorker
from mainspring.scheduler import statistics
from mainspring.service.schemas.documents import Cursor, Document, Milliseconds, example
from mainspring.service.schemas.json_format import Time, to_iso

Status = Literal["healthy", "degraded", "stopping"]


class Health(Document):
    status: Annotated[Status, example("healthy")]
    time: Time
    store: Annotated[Literal["ok", "away"], example("ok")]
    running: int
    """Attempts that run in this process."""
    capacity: int
    """How many attempts may run at once here."""
    poll_interval: Milliseconds
    is_leader: bool
    """Whether this process fires slots first."""
    stuck_threads: int
    """Threads that outlived their attempt."""
    enabled: bool
    """Whether this process fires slots."""
    paused_since: Time | None
    """Since when all firing is paused, on every node. Null: it is not."""
    memory: int | None
    """Bytes of memory that this process holds. Null: not known."""
    cpu_seconds: float
    """CPU time that this process has used."""
    memory_limit_reached: bool
    """This process holds as much memory as it may: it claims no more runs, and is replaced."""
    jobs_without_worker: list[str]
    """Jobs that are not fired, or get no further runs after others, because no live worker can run
    them."""
    orphaned_jobs: list[str]
    """Jobs that code defined, and whose code is gone."""


class JobCounts(Document):
    total: int
    enabled: int


class LastDay(Document):
    succeeded: int
    failed: int


class Statistics(Document):
    jobs: JobCounts
    runs: Annotated[dict[State, int], example({"pending": 2, "succeeded": 1450, "failed": 50})]
    """Runs by state: how many are unfinished now, and how many have ever ended in each final
    state."""
    last_day: LastDay
    """Runs that ended within 24 hours."""
    due: int
    """Pending runs whose time has come."""


class HistoryPoint(Document):
    time: Time
    """When this part of the window begins."""
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    duration_p95: Milliseconds | None
    """95 % of the runs took at most so long."""
    lateness_p95: Milliseconds | None
    """95 % of the runs started at most so late."""


class History(Document):
    """How the runs of all jobs ended, over time."""

    since: Time
    step: Milliseconds
    """How long each part of the window is."""
    points: list[HistoryPoint]
    """The parts, the oldest first."""


class OpenBreaker(Document):
    """A circuit breaker that is not closed."""

    job_id: str
    state: Annotated[Literal["open", "half_open"], example("open")]
    failures: int
    """How many runs have failed in a row."""
    until: Time | None
    """When one run may try again. Null: now."""
    trial: str | None
    """The run that tries. Null: none has begun."""


class OpenBreakerList(Document):
    items: list[OpenBreaker]
    next_cursor: Cursor


class Firing(Document):
    """Whether slots fire."""

    paused_since: Time | None
    """Since when all firing is paused, on every node. Null: it is not."""


class Probe(Document):
    status: Annotated[str, example("ok")]


class Worker(Document):
    """A process that works on runs. A worker of an earlier version says less of itself."""

    id: str
    node: str | None
    """The host or pod that it runs on."""
    pid: int | None
    version: str | None
    is_leader: bool
    """Whether it fires slots first."""
    fires: bool
    """Whether it fires slots: not with enabled=False."""
    queues: list[str] | None
    """The queues it takes; null: all."""
    handlers: list[str]
    capacity: int | None
    """How many attempts it may run at once."""
    running: int | None
    """How many it ran when it was last seen."""
    memory: int | None
    """Bytes that it used when it was last seen."""
    memory_limit: int | None
    """Bytes at which it drains."""
    memory_limit_reached: bool
    """Whether it takes no more runs because of its memory limit."""
    started_at: Time | None
    seen_at: Time | None
    """Its last sign of life."""

    @classmethod
    def of(cls, worker: LiveWorker) -> Self:
        fields = worker.to_dict()
        times = {name: to_iso(fields[name]) for name in ("started_at", "seen_at")}
        return cls(**{**fields, **times})


class WorkerList(Document):
    items: list[Worker]
    next_cursor: Cursor


# -- jobs -----------------------------------------------------------------------------------------

Rate = Annotated[
    float | None,
    Meta(description="0 to 1, of the runs that succeeded or failed. Null if none did."),
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
    status: statistics.JobStatus
    """`healthy`: at least 95 % of the runs succeeded. `warning`: at least 80 %. `unhealthy`: fewer.
    `overdue`: a slot passed and no scheduler fired it. `paused`: the job is not enabled.
    `no_worker`: no live worker has its handler. `orphaned`: the code or file that defined it no
    longer does. `unknown`: no run has ended yet."""
    enabled: bool
    success_rate: Rate
    rated_since: Time | None
    """The rate is over the runs that ended since then. Null: none has, and it is over all runs
    since the job was made."""
    consecutive_failures: int
    last_run: EndedRun | None
    last_run_at: Time | None
    """When the newest run started."""
    next_run_at: Time | None
    breaker: Literal["closed", "open", "half_open", "none"]
    breaker_until: Time | None


class Spread(Document):
    """Percentiles are within 5 % of the true ones, or 1 ms. All are null if no run was counted."""

    average: Milliseconds | None
    p50: Milliseconds | None
    p95: Milliseconds | None
    max: Milliseconds | None

    @classmethod
    def of(cls, spread: statistics.Spread) -> Self:
        """In milliseconds; the library has seconds."""
        seconds = {name: getattr(spread, name) for name in cls.__struct_fields__}
        return cls(**{name: value and value * 1000 for name, value in seconds.items()})


class FailedRun(Document):
    id: str
    finished_at: Time
    attempts: int
    error: str | None


class JobMetrics(Document):
    job_id: str
    since: Time
    """Where the window begins: at a full hour."""
    total: int
    """The runs that succeeded or failed."""
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    success_rate: Rate
    failure_rate: Rate
    duration: Spread
    """How long the last attempt of each run took."""
    lateness: Spread
    """How much later than due the runs started, at the first attempt."""
    consecutive_failures: int
    ended: dict[str, int]
    """All runs since the job was made, by how they ended."""
    recent_failures: list[FailedRun]
    """The newest stored runs that failed, at most 10."""

    @classmethod
    def of(cls, metrics: statistics.JobMetrics) -> Self:
        document = super().of(metrics)
        document.duration = Spread.of(metrics.duration)
        document.lateness = Spread.of(metrics.lateness)
        return document
