"""What a worker prints when it starts."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from mainspring import __version__
from mainspring.cli import time_format
from mainspring.cli.store_access import Found
from mainspring.core.clock import utcnow
from mainspring.core.plurals import plural
from mainspring.engine.live_workers import without_worker
from mainspring.scheduler.start_message import HOW_TO_STOP

if TYPE_CHECKING:
    from mainspring.core.model import Job
    from mainspring.scheduler import Scheduler

__all__ = ["print_start"]

MOST_JOBS = 20
"""Jobs that are listed; of more only the number is shown."""


async def print_start(scheduler: Scheduler, *, as_json: bool) -> None:
    """Print on stderr, or one JSON document on stdout. Handlers may print there later."""
    page = await scheduler.list_jobs(limit=1000, last_runs=False)
    paused_since = await scheduler.paused_since()
    store = Found(scheduler.store, scheduler.url).name
    if as_json:
        _print_document(scheduler, store, page.items, paused_since)
    else:
        orphaned = without_worker(page.items, await scheduler.list_workers())
        _print_text(scheduler, store, page.items, {job.id for job in orphaned}, paused_since)


def _print_document(
    scheduler: Scheduler, store: str, jobs: list[Job], paused_since: datetime | None
) -> None:
    from mainspring.cli.output import Output

    queues = scheduler.queues
    Output(as_json=True).document(
        {
            "version": __version__,
            "pid": os.getpid(),
            "store": store,
            "workers": scheduler.workers,
            "queues": None if queues is None else sorted(queues),
            "enabled": scheduler.enabled,
            "paused_since": time_format.iso(paused_since),
            "jobs": [
                {"id": job.id, "next_run_at": time_format.iso(job.next_run_at)} for job in jobs
            ],
        }
    )
    sys.stdout.flush()


def _print_text(
    scheduler: Scheduler,
    store: str,
    jobs: list[Job],
    orphaned: set[str],
    paused_since: datetime | None,
) -> None:
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    queues = "all queues" if scheduler.queues is None else ", ".join(sorted(scheduler.queues))
    places = plural(scheduler.workers, "run")
    console.print(f"[bold]Mainspring {__version__}[/] on {store}", markup=True)
    console.print(f"  {places} at once from {queues}; process {os.getpid()}", markup=False)
    if not scheduler.enabled:
        console.print("  it fires no slots, because the code sets enabled=False", markup=False)
    if paused_since is not None:
        since = time_format.relative(paused_since, utcnow())
        console.print(
            f"  all firing was paused {since}; mainspring resume --all resumes it", markup=False
        )
    if not jobs:
        console.print("  no jobs yet: decorate a function with @scheduler.job()", markup=False)
    width = max((len(job.id) for job in jobs[:MOST_JOBS]), default=0)
    soonest = sorted(jobs, key=lambda job: (job.next_run_at is None, job.next_run_at or 0, job.id))
    for job in soonest[:MOST_JOBS]:
        plan = "no running worker can run it" if job.id in orphaned else _describe_next(job)
        console.print(f"  {job.id:{width}}  {plan}", markup=False)
    if len(jobs) > MOST_JOBS:
        console.print(f"  and {len(jobs) - MOST_JOBS} more: mainspring jobs list", markup=False)
    console.print(f"  {HOW_TO_STOP}", style="dim")


def _describe_next(job: Job) -> str:
    if not job.enabled:
        return "paused"
    if job.next_run_at is None:
        after = job.policy.after
        return f"after {', '.join(after)}" if after else "when enqueued"
    schedule = f": {job.schedule.describe()}" if job.schedule is not None else ""
    now = utcnow()  # a slot that is overdue is fired now
    return time_format.relative(max(job.next_run_at, now), now) + schedule
