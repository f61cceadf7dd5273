"""What newcomers try: a sample job, and a believable fleet for `mainspring serve --demo`.

The fleet has jobs, a week of history, failures and a backlog. The history is made up: finished
runs as a week of work would have left them, with the same random numbers each time. What happens
from then on is real: handlers that sleep, report progress, log lines, and fail now and then.

The sample job needs no code and no network. `mainspring serve` has its handler, unless it serves a
program of the user's (`--app`). A page offers the job only if a live worker has the handler, so
that the job really runs. A user's own handler is never used for this, because nobody knows what it
does. A webhook is not used either, because webhooks may not call the service's own address.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from mainspring.core.context import RunContext
from mainspring.core.model import Attempt, Job, Outcome, Run, Source, State, replace, slot_run_id
from mainspring.core.plurals import plural
from mainspring.core.policy import Breaker
from mainspring.engine.live_workers import LiveWorker
from mainspring.errors import NotStarted, StoreError
from mainspring.scheduler import Scheduler
from mainspring.stores.protocol import JobWrite

WEEK = timedelta(days=7)
AGE = timedelta(days=90)
"""How long ago the jobs were made."""

CHUNK = 1000
BACKLOG = 240

TASKS = {
    "payments": ("settle", "refunds", "invoices", "renewals"),
    "catalogue": ("feed", "prices", "stock", "search"),
    "growth": ("newsletter", "leads", "trials", "surveys"),
    "platform": ("certificates", "backup", "sessions", "images"),
    "data": ("warehouse", "figures", "events", "model"),
}
REGIONS = {
    "eu": "Europe/Berlin",
    "us": "America/New_York",
    "in": "Asia/Kolkata",
    "jp": "Asia/Tokyo",
    "br": "America/Sao_Paulo",
}
SCHEDULES = (
    "{minute} 6-22 * * *",
    "{minute} {hour} * * *",
    "*/15 7-19 * * 1-5",
    "{minute} */4 * * *",
    "{minute} {hour} * * MON",
    "{minute} {hour} 1 * *",
    "{minute} * * * *",
)
ERRORS = (
    "TimeoutError: the endpoint did not answer within 30 s",
    "ConnectionError: connection refused by db-3.internal:5432",
    "ValueError: row 4821 has no price",
)


def demo_scheduler(url: str, **options: Any) -> Scheduler:
    """A scheduler with the handlers of the demo."""
    scheduler = Scheduler(url, **options)
    rng = random.Random(7)

    @scheduler.job(description="Works through some rows, and fails now and then.", tags=["demo"])
    async def work(ctx: RunContext, rows: int = 200, failing: float = 0.03) -> dict[str, int]:
        ctx.log.info("%d rows to do", rows)
        for done in range(10):
            await asyncio.sleep(rng.uniform(0.02, 0.3))
            ctx.progress((done + 1) * rows // 10, rows, "rows")
        if rng.random() < failing:
            raise ConnectionError("connection refused by db-3.internal:5432")
        ctx.log.info("done")
        return {"rows": rows}

    @scheduler.job(
        description="Takes its time, one run at once: there is always a backlog.",
        tags=["demo", "media"],
        queue="media",
        concurrency=1,
        timeout="10m",
    )
    async def render_video(ctx: RunContext, video: int = 0) -> str:
        for done in range(100):
            await asyncio.sleep(0.35)
            ctx.progress(done + 1, 100, f"frames of video {video}")
        return f"video-{video}.mp4"

    @scheduler.job(
        description="Always fails, so its circuit breaker opens.",
        tags=["demo", "partners"],
        breaker=Breaker(failures=3, reset="10m"),
    )
    async def call_partner(ctx: RunContext) -> None:
        ctx.log.warning("the partner answers slowly")
        raise TimeoutError("the partner did not answer within 30 s")

    @scheduler.job("20 2 * * *", description="The first step of the nightly workflow.")
    async def extract_orders() -> dict[str, int]:
        await asyncio.sleep(0.5)
        return {"orders": 4821}

    @scheduler.job(after=[extract_orders])
    async def convert_currencies() -> None:
        await asyncio.sleep(0.5)

    @scheduler.job(after=[extract_orders])
    async def find_duplicates() -> None:
        await asyncio.sleep(0.8)

    @scheduler.job(after=[convert_currencies, find_duplicates])
    async def load_warehouse() -> None:
        await asyncio.sleep(0.5)

    return scheduler


def log_failures_in_one_line() -> None:
    """Log failed runs without their tracebacks: a demo's failures are wanted, and what a newcomer
    sees first should not look like faults of the program."""
    logging.getLogger("mainspring.run").addFilter(_drop_traceback)


def _drop_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


async def fill(
    scheduler: Scheduler, report: Callable[[str], None] = lambda text: None, *, jobs: int = 200
) -> None:
    """Fill the store of a started demo scheduler. It ends early if the scheduler stops."""
    stopped = asyncio.Event()
    scheduler.on("worker.stopped", lambda _: stopped.set())
    try:
        await _fill(scheduler, report, jobs)
    except (NotStarted, StoreError):
        if not stopped.is_set():
            raise


async def _fill(scheduler: Scheduler, report: Callable[[str], None], jobs: int) -> None:
    rng = random.Random(42)
    now = await scheduler.now()
    definitions = make_jobs(scheduler, now, jobs, rng)
    await scheduler.store.put_jobs([JobWrite.put(job) for job in definitions])
    # Stores list runs in the order in which they were added.
    history = sorted(make_history(definitions, now, rng), key=lambda run: run.created_at)
    filled = f"{plural(jobs, 'job')} and {plural(len(history), 'run')}"
    report(f"filling the demo with {filled} of the last week …")
    for at in range(0, len(history), CHUNK):
        await scheduler.store.add(history[at : at + CHUNK])
        await asyncio.sleep(0)
    await scheduler.enqueue_many("render_video", [{"video": n} for n in range(1, BACKLOG)])
    await scheduler.enqueue_many("call_partner", [None] * 5)
    await scheduler.enqueue_many("work", [{"rows": 500 * n} for n in range(1, 5)])
    await scheduler.trigger("extract_orders")
    report("the demo is complete")


def make_jobs(scheduler: Scheduler, now: datetime, count: int, rng: random.Random) -> list[Job]:
    """Jobs of several teams and regions, as if they had been made some months ago."""
    kinds = [(team, task, region) for region in REGIONS for team in TASKS for task in TASKS[team]]
    jobs = []
    for number in range(count):
        team, task, region = kinds[number % len(kinds)]
        schedule = SCHEDULES[number % len(SCHEDULES)].format(
            minute=rng.choice((0, 0, 0, 15, 30, rng.randrange(60))), hour=rng.randrange(24)
        )
        draft = scheduler.draft(
            f"{team}-{task}-{region}-{1 + number // len(kinds)}",
            handler="work",
            schedule=schedule,
            timezone=REGIONS[region],
            payload={"rows": rng.choice((50, 200, 800)), "failing": rng.choice((0, 0.01, 0.05))},
            description=f"{task.capitalize()}, {region.upper()}",
            tags=[team, region],
            queue=rng.choice(("default", "default", "default", "slow")),
            retries=rng.choice((0, 2, 3)),
            timeout="10m",
            enabled=rng.random() > 0.05,
        )
        assert draft.schedule is not None
        next_run_at = draft.schedule.next(now) if draft.enabled else None
        made_at = now - AGE
        jobs.append(replace(draft, created_at=made_at, updated_at=made_at, next_run_at=next_run_at))
    return jobs


def make_history(jobs: Iterable[Job], now: datetime, rng: random.Random) -> Iterator[Run]:
    """The runs that these jobs would have had in the last week, job by job."""
    incident = (now - timedelta(days=2, hours=5), now - timedelta(days=2, hours=3))
    for job in jobs:
        assert job.schedule is not None
        seconds, failing = rng.lognormvariate(1.0, 1.2), rng.choice((0, 0, 0.004, 0.01, 0.08))
        slot = job.schedule.next(now - WEEK)
        while slot is not None and slot < now - timedelta(minutes=1):
            is_down = incident[0] < slot < incident[1] and "payments" in job.tags
            failed = rng.random() < (0.7 if is_down else failing)
            took = timedelta(seconds=max(0.01, rng.gauss(seconds, seconds / 6)))
            yield _run(job, slot, took, rng.choice(ERRORS) if failed else None)
            slot = job.schedule.next(slot)


def _run(job: Job, slot: datetime, took: timedelta, error: str | None) -> Run:
    started = slot + timedelta(milliseconds=20)
    ended = started + took
    attempt = Attempt(
        number=1,
        worker="demo-1:4242:0a1b2c3d",
        started_at=started,
        finished_at=ended,
        outcome=Outcome.SUCCEEDED if error is None else Outcome.FAILED,
        error=error,
        log=(f"{job.payload['rows']} rows to do",),
    )
    return Run(
        id=slot_run_id(job.id, slot),
        job_id=job.id,
        handler=job.handler,
        created_at=slot,
        scheduled_at=slot,
        run_at=slot,
        source=Source.SCHEDULE,
        queue=job.policy.queue,
        priority=job.policy.priority,
        payload=job.payload,
        state=State.SUCCEEDED if error is None else State.FAILED,
        attempt=1,
        failures=0 if error is None else 1,
        token=1,
        started_at=started,
        finished_at=ended,
        result={"rows": job.payload["rows"]} if error is None else None,
        error=error,
        attempts=(attempt,),
    )


SAMPLE_HANDLER = "mainspring.sample"
STEPS = 5


async def run_sample(
    ctx: RunContext, name: str = "you", step_seconds: float = 0.4
) -> dict[str, Any]:
    """Writes a few log lines, shows progress and returns a result."""
    ctx.log.info("hello %s, this is attempt %s of run %s", name, ctx.attempt, ctx.run_id)
    for step in range(1, STEPS + 1):
        await asyncio.sleep(step_seconds)
        ctx.progress(step, STEPS, f"step {step} of {STEPS}")
    ctx.log.info("all %s steps are done", STEPS)
    return {"greeting": f"hello {name}", "steps": STEPS}


def sample_job(workers: Iterable[LiveWorker]) -> dict[str, Any] | None:
    """The document that creates the job by `POST /api/v1/jobs`; None if no live worker could run
    it."""
    if not any(worker.takes(SAMPLE_HANDLER, "default") for worker in workers):
        return None
    return {
        "id": "sample",
        "handler": SAMPLE_HANDLER,
        "payload": {"name": "you"},
        "schedule": "* * * * *",
        "description": "A sample: says hello every minute, in five steps. Delete it when you like.",
        "tags": ["sample"],
        "retryAttempts": 2,
        "timeout": "30s",
    }
