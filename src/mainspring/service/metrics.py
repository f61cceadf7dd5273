"""The series of `/metrics`: what this process did, and the state of the store.

Counters and histograms count in this process alone, as Prometheus expects: sum over instances.
Gauges that come from the store are the same on every instance: take the maximum. No label names a
run or an address; jobs beyond the first `MAX_JOBS` share the label `other`, and so do queues beyond
`MAX_QUEUES`. The series of a removed
job appear in one more scrape and are then dropped. They are not added to `other`: a rate over
`other` would show a burst of runs that never happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import datetime

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric

from mainspring import __version__
from mainspring.core.clock import Clock
from mainspring.core.events import Event
from mainspring.core.model import FINISHED, Attempt, Job, Outcome, Run, State, is_node_handler
from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.scheduler.client import Client
from mainspring.stores.protocol import Due

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The format that `generate_latest` writes."""

MAX_JOBS = 500
OTHER = "other"
MAX_QUEUES = 100
NODE_RUNS = "each_node"
"""The label `handler` of due runs that each wait for one worker."""

TEXT_CACHE_SECONDS = 1.0
STORE_CACHE_SECONDS = 5.0
"""How long figures from the store are reused, so that several scrapers cost it one read."""

HEALTH_CACHE_SECONDS = 30.0
"""The same for the health of jobs: 500 jobs with runs in each of the last 24 hours cost 0.2 s of
CPU on SQLite."""

LOOKUPS_A_READ = 25
"""How many jobs' last success is looked up in one read, after a start."""

DURATIONS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
LATENESS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})

_ENDED = ("run.succeeded", "run.failed", "run.cancelled", "run.skipped")
_BEFORE_END = ("run.started", "run.retrying", "run.rescued")
_BREAKER = ("breaker.opened", "breaker.half_open", "breaker.closed")

# The series: by name without the prefix `mainspring_`, what each says, and its labels.
_COUNTERS = {
    "runs_total": ("Runs that ended in this process.", "job", "state"),
    "run_retries_total": ("Failed attempts that are tried again.", "job"),
    "runs_rescued_total": ("Runs taken from workers that died.", "job"),
    "breaker_changes_total": (
        "Changes of circuit breakers that this process made: opened, half_open or closed.",
        *("job", "change"),
    ),
    "ownership_lost_total": ("Runs that this process lost to another.",),
    "webhook_responses_total": (
        "Answers to webhooks by class; error where none came.",
        *("job", "class"),
    ),
    "http_requests_total": ("Requests to this API.", "method", "status"),
}
_HISTOGRAMS = {
    "run_duration_seconds": ("How long attempts took.", DURATIONS),
    "run_lateness_seconds": ("Time from when a run was due to its start.", LATENESS),
}
"""With their buckets; the label is `job`."""
_GAUGES = {
    "runs_running": ("Runs that this process is running.",),
    "capacity": ("Runs that this process can run at once.",),
    "leader": ("1 if this process is the leader.",),
    "firing_paused": ("1 while all firing is paused.",),
    "store_up": ("1 if the store answers.",),
    "stored_runs": (
        "Runs by state: how many are unfinished, and how many have ever ended so.",
        "state",
    ),
    "runs_due": ("Runs that are due and have not started.", "handler"),
    "due_oldest_seconds": ("How long the oldest due run has waited.", "handler"),
    "queue_runs_due": (
        "Runs of a queue that are due and have not started, without those that wait for one"
        " worker.",
        "queue",
    ),
    "queue_due_oldest_seconds": ("How long the oldest of them has waited.", "queue"),
    "job_next_run_timestamp_seconds": ("The next slot of a job.", "job"),
    "job_last_success_timestamp_seconds": (
        "When a job last succeeded, as far as this process knows.",
        "job",
    ),
    "job_ended_runs": (
        "Runs of a job that ended, in any process, since the job was made.",
        *("job", "state"),
    ),
    "job_health": (
        "1 for the status that the health of a job has, as GET /api/v1/jobs/:id/health shows.",
        *("job", "status"),
    ),
    "job_breaker": (
        "1 for the state that the circuit breaker of a job has, for all nodes: closed, open or"
        " half_open.",
        *("job", "state"),
    ),
    "job_consecutive_failures": (
        "Runs of a job that failed since its last success, in any process.",
        "job",
    ),
    "build_info": ("The version that runs.", "version"),
}


class Metrics:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._jobs: set[str] = set()
        self._gone: set[str] = set()
        self._queues: set[str] = set()
        self._succeeded_at: dict[str, float | None] = {}
        self._read_at: float | None = None
        self._health_at: float | None = None
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._text: tuple[float, bytes] | None = None
        self._make_instruments()
        for name in (*_ENDED, *_BEFORE_END, *_BREAKER, "ownership.lost", "job.removed"):
            client.on(name, self._count_event)

    def _make_instruments(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._counters = {
            name: Counter(f"mainspring_{name}", about, labels, registry=registry)
            for name, (about, *labels) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"mainspring_{name}", about, ["job"], registry=registry, buckets=bounds)
            for name, (about, bounds) in _HISTOGRAMS.items()
        }
        self._gauges = {
            name: Gauge(f"mainspring_{name}", about, labels, registry=registry)
            for name, (about, *labels) in _GAUGES.items()
        }
        self._gauges["build_info"].labels(__version__).set(1)
        counters = [self._counters[name] for name, labels in _COUNTERS.items() if "job" in labels]
        self._of_jobs = (*counters, *self._histograms.values())

    async def text(self) -> bytes:
        """The series in Prometheus' text format.

        A thread writes it: with 500 jobs it takes 150 ms, and other requests go on meanwhile. All
        scrapes within a second get the same text: its CPU time is that of the scheduler too.
        """
        async with self._writing:
            now = self._clock.monotonic()
            if self._text is None or now - self._text[0] >= TEXT_CACHE_SECONDS:
                await self._read()
                self._text = (now, await asyncio.to_thread(generate_latest, self))
            return self._text[1]

    def collect(self) -> Iterator[Metric]:
        """The series without the times of creation, which prometheus-client adds to each and which
        only a setting for the whole program can switch off."""
        for metric in self._registry.collect():
            samples = metric.samples
            metric.samples = [each for each in samples if not each.name.endswith("_created")]
            yield metric

    def count_response(self, method: str, status: int) -> None:
        """Count an answer of the HTTP API."""
        self._counters["http_requests_total"].labels(
            method if method in METHODS else OTHER, str(status)
        ).inc()

    # Events of this process

    def _count_event(self, event: Event) -> None:
        if event.name == "ownership.lost":
            self._counters["ownership_lost_total"].inc()
        elif event.name == "job.removed":
            self._succeeded_at.pop(event.job_id or "", None)
        elif event.name in _BREAKER and event.job_id is not None:
            self._counters["breaker_changes_total"].labels(
                self._label(event.job_id), event.name.removeprefix("breaker.")
            ).inc()
        elif event.run is not None:
            self._count_run(event.name, event.run)

    def _count_run(self, name: str, run: Run) -> None:
        job = self._label(run.job_id)
        if name == "run.started" and run.started_at is not None:
            late = (run.started_at - run.run_at).total_seconds()
            self._histograms["run_lateness_seconds"].labels(job).observe(max(late, 0))
        elif name == "run.rescued":
            self._counters["runs_rescued_total"].labels(job).inc()
        elif name == "run.retrying":
            self._counters["run_retries_total"].labels(job).inc()
        elif name in _ENDED:
            self._counters["runs_total"].labels(job, name.removeprefix("run.")).inc()
        if name in ("run.retrying", "run.succeeded", "run.failed") and run.attempts:
            self._count_attempt(job, run.attempts[-1])
        if name == "run.succeeded" and run.finished_at is not None:
            self._succeeded_at[run.job_id] = run.finished_at.timestamp()

    def _count_attempt(self, job: str, attempt: Attempt) -> None:
        if attempt.outcome is Outcome.LOST:  # when its worker died is not known
            return
        took = (attempt.finished_at - attempt.started_at).total_seconds()
        self._histograms["run_duration_seconds"].labels(job).observe(max(took, 0))
        if isinstance(attempt.detail, dict) and "request" in attempt.detail:
            status = (attempt.detail.get("response") or {}).get("status")
            kind = f"{status // 100}xx" if isinstance(status, int) else "error"
            self._counters["webhook_responses_total"].labels(job, kind).inc()

    def _label(self, job_id: str) -> str:
        if job_id not in self._jobs:
            if len(self._jobs) >= MAX_JOBS:
                return OTHER
            self._jobs.add(job_id)
        return job_id

    # Figures of the store

    async def _read(self) -> None:
        async with self._reading:
            now = self._clock.monotonic()
            if self._read_at is not None and now - self._read_at < STORE_CACHE_SECONDS:
                return
            self._gauges["capacity"].set(self._client.workers)
            self._gauges["leader"].set(self._client.is_leader)
            try:
                await self._read_store()
            except MainspringError:
                self._gauges["store_up"].set(0)
            else:
                self._gauges["store_up"].set(1)
            self._read_at = self._clock.monotonic()  # later than `now`: the read may take seconds

    async def _read_store(self) -> None:
        client = self._client
        health = await client.health()
        self._gauges["runs_running"].set(health.running_here)
        self._gauges["firing_paused"].set(health.paused_since is not None)
        if health.store != "ok":  # another read would wait until the scraper gives up
            raise StoreUnavailable(health.store)
        counts, now = await client.counts(), await client.now()
        _replace(self._gauges["stored_runs"], {str(state): counts.total(state) for state in State})
        due = _merge_node_runs(counts.due)
        _replace(self._gauges["runs_due"], {name: runs.count for name, runs in due.items()})
        _replace(
            self._gauges["due_oldest_seconds"],
            {name: _ago(runs.oldest, now) for name, runs in due.items()},
        )
        queues = self._label_queues(counts.due_by_queue, now)
        _replace(
            self._gauges["queue_runs_due"], {name: runs.count for name, runs in queues.items()}
        )
        _replace(
            self._gauges["queue_due_oldest_seconds"],
            {name: _ago(runs.oldest, now) for name, runs in queues.items()},
        )
        await self._forget_removed()
        jobs = (await client.list_jobs(limit=MAX_JOBS, last_runs=False)).items
        _replace(
            self._gauges["job_next_run_timestamp_seconds"],
            {job.id: job.next_run_at.timestamp() for job in jobs if job.next_run_at},
        )
        await self._read_totals([job.id for job in jobs])
        await self._read_health(jobs)
        await self._look_up([job for job in jobs if job.id not in self._succeeded_at])
        succeeded = {job.id: self._succeeded_at.get(job.id) for job in jobs}
        _replace(
            self._gauges["job_last_success_timestamp_seconds"],
            {job: at for job, at in succeeded.items() if at is not None},
        )

    def _label_queues(self, due: Mapping[str, Due], now: datetime) -> dict[str, Due]:
        """What is due by label. A queue that had due runs before keeps its series, at 0: a series
        that ends would tell an autoscaler nothing. Queues without due runs are the first to go."""
        self._queues |= due.keys()
        if len(self._queues) > MAX_QUEUES:
            self._queues = set(sorted(due)[:MAX_QUEUES])
        labelled: dict[str, Due] = {}
        for queue, runs in due.items():
            label = queue if queue in self._queues else OTHER
            labelled[label] = runs.plus(labelled.get(label))
        return {queue: Due(0, now) for queue in self._queues} | labelled

    async def _read_totals(self, job_ids: list[str]) -> None:
        totals = (await self._client.counts(jobs=job_ids)).totals
        self._gauges["job_ended_runs"].clear()
        for job_id, of_job in totals.items():
            for state in FINISHED:
                self._gauges["job_ended_runs"].labels(job_id, str(state)).set(
                    of_job.ended.get(state, 0)
                )
        _replace(
            self._gauges["job_consecutive_failures"],
            {job_id: job.consecutive_failures for job_id, job in totals.items()},
        )

    async def _read_health(self, jobs: list[Job]) -> None:
        now = self._clock.monotonic()
        if self._health_at is not None and now - self._health_at < HEALTH_CACHE_SECONDS:
            return
        healths = await self._client.jobs_health(jobs)
        self._health_at = self._clock.monotonic()
        self._gauges["job_health"].clear()
        self._gauges["job_breaker"].clear()
        for health in healths:
            self._gauges["job_health"].labels(health.job_id, health.status).set(1)
            if health.breaker != "none":
                self._gauges["job_breaker"].labels(health.job_id, health.breaker).set(1)

    async def _forget_removed(self) -> None:
        """Drop the series of removed jobs. The store decides which those are: another instance may
        have removed a job, and runs of a removed job may still end here."""
        labels = set(self._jobs)
        stored = await self._client.list_jobs(ids=labels, limit=MAX_JOBS, last_runs=False)
        gone = labels - {job.id for job in stored.items}
        for job in gone & self._gone:
            self._jobs.discard(job)
            self._succeeded_at.pop(job, None)
            for instrument in self._of_jobs:
                instrument.remove_by_labels({"job": job})
        self._gone = gone - self._gone

    async def _look_up(self, unknown: list[Job]) -> None:
        """Read when jobs last succeeded, a few at a time. Needed after a start."""
        for job in unknown[:LOOKUPS_A_READ]:
            page = await self._client.list_runs(
                job=job.id, state=State.SUCCEEDED, brief=True, limit=1
            )
            ended = [run.finished_at for run in page.items if run.finished_at]
            self._succeeded_at.setdefault(job.id, ended[0].timestamp() if ended else None)


def _replace(gauge: Gauge, values: Mapping[str, float]) -> None:
    """Set a gauge of one label to these values alone."""
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)


def _merge_node_runs(due: Mapping[str, Due]) -> dict[str, Due]:
    """Give the node runs of all workers one label: the id of a worker changes with every start, so
    a label for each would make series without end."""
    merged: dict[str, Due] = {}
    for handler, runs in due.items():
        label = NODE_RUNS if is_node_handler(handler) else handler
        merged[label] = runs.plus(merged.get(label))
    return merged


def _ago(then: datetime, now: datetime) -> float:
    return max((now - then).total_seconds(), 0)
