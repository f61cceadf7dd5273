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
import math
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
AGE = timedelta(days=30)
"""How long ago the jobs were made."""

CHUNK = 1000
BACKLOG = 240
WORKER = "demo-1:4242:0a1b2c3d"

TEAMS = {
    "payments": ("settle card payments", "send invoices", "check refunds", "renew subscriptions"),
    "catalogue": ("import the feed", "update prices", "count the stock", "rebuild the search"),
    "growth": ("send the newsletter", "score leads", "sync the CRM", "close trials"),
    "platform": ("rotate certificates", "back up the database", "expire sessions", "scan images"),
    "data": ("load the warehouse", "compute daily figures", "export events", "train the model"),
}
REGIONS = {
    "eu": "Europe/Berlin",
    "us": "America/New_York",
    "in": "Asia/Kolkata",
    "jp": "Asia/Tokyo",
    "br": "America/Sao_Paulo",
    "au": "Australia/Sydney",
    "uk": "Europe/London",
    "za": "Africa/Johannesburg",
    "ca": "America/Toronto",
    "mx": "America/Mexico_City",
}
SCHEDULES = (
    "{minute} 6-22 * * *",
    "{minute} {hour} * * *",
    "{minute} {hour} * * 1-5",
    "*/15 7-19 * * 1-5",
    "{minute} */4 * * *",
    "{minute} {hour} * * MON",
    "{minute} {hour} 1 * *",
    "{minute} {hour} * * *",
    "{minute} * * * *",
    "{minute} {hour},{later} * * *",
)
ERRORS = (
    "TimeoutError: the endpoint did not answer within 30 s",
    "ConnectionError: connection refused by db-3.internal:5432",
    "ValueError: row 4821 has no price",
    "HTTPError: 503 Service Unavailable",
    "KeyError: 'customer_id'",
)
TRACEBACK = """Traceback (most recent call last):
  File "app/jobs.py", line {line}, in {name}
    rows = await client.fetch(region)
  File "app/client.py", line 88, in fetch
    raise error
{error}
"""


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
    filling = asyncio.ensure_future(_fill(scheduler, report, jobs))
    # Both come before the store is closed, which would fail what is being written.
    stops = ("worker.stopped", "scheduler.stopped")
    unsubscribe = [scheduler.on(event, lambda _: _cancel(filling)) for event in stops]
    try:
        await asyncio.wait([filling])
        if not filling.cancelled():
            filling.result()
    except (NotStarted, StoreError):
        if scheduler.started:
            raise
    finally:
        filling.cancel()
        for end in unsubscribe:
            end()


def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()


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
    """Jobs of several teams and regions, as if they had been made a month ago."""
    return [_job(scheduler, now, number, rng) for number in range(count)]


def _job(scheduler: Scheduler, now: datetime, number: int, rng: random.Random) -> Job:
    teams = list(TEAMS)
    team = teams[number % len(teams)]
    tasks = TEAMS[team]
    task = tasks[number // len(teams) % len(tasks)]
    regions = list(REGIONS)
    region = regions[number // (len(teams) * len(tasks)) % len(regions)]
    lap = number // (len(teams) * len(tasks) * len(regions))
    name = f"{team}-{task.replace(' the ', ' ').replace(' ', '-')}-{region}"
    hour = rng.choice((1, 2, 3, 5, 6, 7, 9, 9, 12, 18, 22))
    schedule = SCHEDULES[number % len(SCHEDULES)].format(
        minute=rng.choice((0, 0, 0, 15, 30, rng.randrange(60))), hour=hour, later=hour // 2
    )
    draft = scheduler.draft(
        name if lap == 0 else f"{name}-{lap + 1}",
        handler="work",
        schedule=schedule,
        timezone=REGIONS[region],
        payload={"rows": rng.choice((50, 200, 800)), "failing": rng.choice((0, 0.01, 0.05))},
        description=f"{task[0].upper()}{task[1:]}, {region.upper()}",
        tags=[team, region],
        queue="default" if rng.random() < 0.8 else "slow",
        retries=rng.choice((0, 2, 3)),
        timeout="10m",
        enabled=rng.random() > 0.05,
    )
    created_at = now - AGE - timedelta(hours=rng.randrange(2000))
    assert draft.schedule is not None
    return replace(
        draft,
        created_at=created_at,
        updated_at=created_at,
        next_run_at=draft.schedule.next(now) if draft.enabled else None,
    )


def make_history(jobs: Iterable[Job], now: datetime, rng: random.Random) -> Iterator[Run]:
    """The runs that these jobs would have had in the last week, job by job."""
    incident = (now - timedelta(days=2, hours=5), now - timedelta(days=2, hours=3))
    for job in jobs:
        seconds, failing = rng.lognormvariate(1.0, 1.2), rng.choice((0, 0, 0.004, 0.01, 0.08))
        for slot in _slots(job, now - WEEK, now):
            is_down = incident[0] < slot < incident[1] and "payments" in job.tags
            yield _run(job, slot, 0.7 if is_down else failing, seconds, rng)


def _slots(job: Job, start: datetime, end: datetime) -> Iterator[datetime]:
    assert job.schedule is not None
    slot = job.schedule.next(start)
    while slot is not None and slot < end - timedelta(minutes=1):
        yield slot
        slot = job.schedule.next(slot)


def _run(job: Job, slot: datetime, failing: float, seconds: float, rng: random.Random) -> Run:
    # Busy hours are slower, so that the charts have a shape.
    busy = 1 + 0.4 * math.sin(slot.hour / 24 * 2 * math.pi)
    started = slot + timedelta(seconds=abs(rng.gauss(0.02, 0.03)))
    took = timedelta(seconds=max(0.01, rng.gauss(seconds * busy, seconds / 6)))
    failed = rng.random() < failing
    error = rng.choice(ERRORS) if failed else None
    ended = started + took
    attempt = Attempt(
        number=1,
        worker=WORKER,
        started_at=started,
        finished_at=ended,
        outcome=Outcome.FAILED if failed else Outcome.SUCCEEDED,
        error=error,
        traceback=TRACEBACK.format(line=rng.randrange(20, 300), name="work", error=error)
        if failed
        else None,
        log=(f"{job.payload['rows']} rows to do",) + (() if failed else ("done",)),
        cpu_seconds=took.total_seconds() * 0.2,
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
        state=State.FAILED if failed else State.SUCCEEDED,
        attempt=1,
        failures=int(failed),
        token=1,
        started_at=started,
        finished_at=ended,
        result=None if failed else {"rows": job.payload["rows"]},
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
