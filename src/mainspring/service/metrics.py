"""`/metrics`: what this process did, and how the store stands.

Counters and histograms are of this process alone, as Prometheus wants them: sum over instances.
Gauges that come from the store are the same on every instance: take the maximum. No label ever
names a run or an address; jobs beyond the first `MOST_JOBS` share the label `other`. What was
counted of a job that is gone is told once more and then dropped, not added to `other`: to a rate
that would be a burst of runs that nobody made.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from mainspring import __version__
from mainspring.core.clock import Clock
from mainspring.core.events import Event
from mainspring.core.model import Attempt, Job, Outcome, Run, State
from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.scheduler import Scheduler
from mainspring.service.prometheus_text import Counter, Gauge, Histogram, text_of

__all__ = ["Metrics"]

MOST_JOBS = 500
OTHER = "other"
FRESH = 5.0
"""Seconds that what was read of the store holds: several scrapers cost it one look."""

LOOKUPS = 25
"""Jobs whose last success is looked up in one look, after a start."""

DURATIONS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
LATENESS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})

_ENDED = {
    "run.succeeded": "succeeded",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.skipped": "skipped",
}
_ON_THE_WAY = ("run.started", "run.retrying", "run.rescued")


class Metrics:
    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._jobs: set[str] = set()
        self._gone: set[str] = set()
        self._succeeded_at: dict[str, float | None] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._make()
        for name in (*_ENDED, *_ON_THE_WAY, "ownership.lost", "job.removed"):
            scheduler.on(name, self._take)

    def _make(self) -> None:
        self.runs = Counter(
            "mainspring_runs_total", "Runs that ended in this process.", ["job", "state"]
        )
        self.durations = Histogram(
            "mainspring_run_duration_seconds", "How long attempts took.", DURATIONS, ["job"]
        )
        self.lateness = Histogram(
            "mainspring_run_lateness_seconds",
            "From the moment a run was due to its start.",
            LATENESS,
            ["job"],
        )
        self.retries = Counter(
            "mainspring_run_retries_total", "Failed attempts that are tried again.", ["job"]
        )
        self.rescued = Counter(
            "mainspring_runs_rescued_total", "Runs taken from workers that died.", ["job"]
        )
        self.lost = Counter(
            "mainspring_ownership_lost_total", "Runs that this process lost to another."
        )
        self.responses = Counter(
            "mainspring_webhook_responses_total",
            "Answers to webhooks by class; error where none came.",
            ["job", "class"],
        )
        self.requests = Counter(
            "mainspring_http_requests_total", "Requests to this API.", ["method", "status"]
        )
        self.running = Gauge("mainspring_runs_running", "Runs at work in this process.")
        self.workers = Gauge("mainspring_workers", "Runs that this process can work on at once.")
        self.leader = Gauge("mainspring_leader", "1 where this process leads.")
        self.up = Gauge("mainspring_store_up", "1 where the store does what it is asked.")
        self.stored = Gauge("mainspring_runs", "Runs in the store.", ["state"])
        self.due = Gauge("mainspring_runs_due", "Runs that are due and not begun.", ["handler"])
        self.oldest = Gauge(
            "mainspring_due_oldest_seconds", "How long the oldest of them is due.", ["handler"]
        )
        self.next_run = Gauge(
            "mainspring_job_next_run_timestamp_seconds", "The next slot of a job.", ["job"]
        )
        self.last_success = Gauge(
            "mainspring_job_last_success_timestamp_seconds",
            "When a job last succeeded, as far as this process knows.",
            ["job"],
        )
        self.build = Gauge("mainspring_build_info", "The version that runs.", ["version"])
        self.build.put([((__version__,), 1)])

    async def text(self) -> str:
        await self._read()
        return text_of(value for value in vars(self).values() if hasattr(value, "samples"))

    def answered(self, method: str, status: int) -> None:
        self.requests.add(method if method in METHODS else OTHER, str(status))

    # What happens

    def _take(self, event: Event) -> None:
        if event.name == "ownership.lost":
            self.lost.add()
        elif event.name == "job.removed":
            self._succeeded_at.pop(event.job_id or "", None)
        elif event.run is not None:
            self._take_run(event.name, event.run)

    def _take_run(self, name: str, run: Run) -> None:
        job = self._label(run.job_id)
        if name == "run.started" and run.started_at is not None:
            self.lateness.observe(max((run.started_at - run.run_at).total_seconds(), 0), job)
        elif name == "run.rescued":
            self.rescued.add(job)
        elif name == "run.retrying":
            self.retries.add(job)
        elif name in _ENDED:
            self.runs.add(job, _ENDED[name])
        if name in ("run.retrying", "run.succeeded", "run.failed") and run.attempts:
            self._take_attempt(job, run.attempts[-1])
        if name == "run.succeeded" and run.finished_at is not None:
            self._succeeded_at[run.job_id] = run.finished_at.timestamp()

    def _take_attempt(self, job: str, attempt: Attempt) -> None:
        if attempt.outcome is Outcome.LOST:  # how long it took nobody knows; the lease says nothing
            return
        took = (attempt.finished_at - attempt.started_at).total_seconds()
        self.durations.observe(max(took, 0), job)
        if isinstance(attempt.detail, dict) and "request" in attempt.detail:
            status = (attempt.detail.get("response") or {}).get("status")
            kind = f"{status // 100}xx" if isinstance(status, int) else "error"
            self.responses.add(job, kind)

    def _label(self, job_id: str) -> str:
        if job_id not in self._jobs:
            if len(self._jobs) >= MOST_JOBS:
                return OTHER
            self._jobs.add(job_id)
        return job_id

    # How it stands

    async def _read(self) -> None:
        async with self._reading:
            now = self._clock.monotonic()
            if self._read_at is not None and now - self._read_at < FRESH:
                return
            self.workers.put([((), self._scheduler.workers)])
            self.leader.put([((), self._scheduler.is_leader)])
            try:
                await self._read_store()
            except MainspringError:
                self.up.put([((), 0)])
            else:
                self.up.put([((), 1)])
            self._read_at = self._clock.monotonic()  # of one that is away it took its time

    async def _read_store(self) -> None:
        scheduler = self._scheduler
        found = await scheduler.health()
        self.running.put([((), found.running_here)])
        if found.store != "ok":  # what else is asked would wait for it, and a scraper does not
            raise StoreUnavailable(found.store)
        counts, now = await scheduler.counts(), await scheduler.now()
        self.stored.put([((str(state),), counts.total(state)) for state in State])
        self.due.put([((name,), due.count) for name, due in counts.due.items()])
        self.oldest.put([((name,), _ago(due.oldest, now)) for name, due in counts.due.items()])
        await self._forget_removed()
        jobs = (await scheduler.list_jobs(limit=MOST_JOBS, last_runs=False)).items
        self.next_run.put(
            [((job.id,), job.next_run_at.timestamp()) for job in jobs if job.next_run_at]
        )
        await self._look_up([job for job in jobs if job.id not in self._succeeded_at])
        self.last_success.put(
            [((job.id,), at) for job in jobs if (at := self._succeeded_at.get(job.id)) is not None]
        )

    async def _forget_removed(self) -> None:
        """Asked of the store: a job may be removed by another instance, and its runs end later."""
        labels = set(self._jobs)
        found = await self._scheduler.list_jobs(ids=labels, limit=MOST_JOBS, last_runs=False)
        gone = labels - {job.id for job in found.items}
        for job in gone & self._gone:
            self._jobs.discard(job)
            self._succeeded_at.pop(job, None)
            for metric in (self.runs, self.durations, self.lateness, self.retries, self.rescued):
                metric.drop(job)
            self.responses.drop(job)
        self._gone = gone - self._gone

    async def _look_up(self, unknown: list[Job]) -> None:
        """After a start: when they last succeeded, a few at a time."""
        for job in unknown[:LOOKUPS]:
            page = await self._scheduler.list_runs(
                job=job.id, state=State.SUCCEEDED, brief=True, limit=1
            )
            ended = [run.finished_at for run in page.items if run.finished_at]
            self._succeeded_at.setdefault(job.id, ended[0].timestamp() if ended else None)


def _ago(then: datetime, now: datetime) -> float:
    return max((now - then).total_seconds(), 0)
