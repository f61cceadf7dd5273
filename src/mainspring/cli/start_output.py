"""What a worker and a service print when they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from mainspring import __version__
from mainspring.cli import time_format
from mainspring.cli.job_plan import SCHEDULE_OVER, describe_plan, is_over
from mainspring.cli.output import Output, printable
from mainspring.cli.store_access import LocatedStore
from mainspring.core.clock import utcnow
from mainspring.core.plurals import plural
from mainspring.engine.live_workers import without_worker
from mainspring.scheduler.start_message import HOW_TO_STOP

if TYPE_CHECKING:
    from mainspring.core.model import Job, Page
    from mainspring.scheduler import Scheduler

__all__ = ["print_lines", "print_start"]

MOST_JOBS = 20
"""Jobs that are listed, those that run next first; of more only the number is shown."""

MOST_JOBS_IN_JSON = 1000


async def print_start(scheduler: Scheduler, *, as_json: bool) -> None:
    """Print on stderr, or one JSON document on stdout. Handlers may print there later."""
    limit = MOST_JOBS_IN_JSON if as_json else MOST_JOBS
    page = await scheduler.list_jobs(
        order="next_run_at", limit=limit, with_total=True, last_runs=False
    )
    paused_since = await scheduler.paused_since()
    store = LocatedStore(scheduler.store, scheduler.url).name
    if as_json:
        _print_document(scheduler, store, page, paused_since)
    else:
        orphaned = without_worker(page.items, await scheduler.list_workers())
        lines = _describe_start(scheduler, page, {job.id for job in orphaned}, paused_since)
        print_lines(f"Mainspring {__version__} on {store}", *lines, last=HOW_TO_STOP)


def print_lines(title: str, *lines: str, last: str) -> None:
    """Print on stderr what a process does that has started. A path with [brackets] stays as it
    is."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    name, _, rest = printable(title).partition(" on ")
    console.print(Text.assemble((name, "bold"), f" on {rest}"))
    for line in lines:
        console.print(Text(f"  {printable(line)}"))
    console.print(Text(f"  {last}", style="dim"))


def _print_document(
    scheduler: Scheduler, store: str, page: Page[Job], paused_since: datetime | None
) -> None:
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
            "job_count": page.total,
            "jobs": [
                {"id": job.id, "next_run_at": time_format.iso(job.next_run_at)}
                for job in page.items
            ],
        }
    )
    sys.stdout.flush()


def _describe_start(
    scheduler: Scheduler, page: Page[Job], orphaned: set[str], paused_since: datetime | None
) -> Iterator[str]:
    queues = "all queues" if scheduler.queues is None else ", ".join(sorted(scheduler.queues))
    capacity = plural(scheduler.workers, "run")
    yield f"{capacity} at once from {queues}; process {os.getpid()}"
    if not scheduler.enabled:
        yield "it fires no slots, because the code sets enabled=False"
    if paused_since is not None:
        since = time_format.relative(paused_since, utcnow())
        yield f"all firing was paused {since}; mainspring resume --all resumes it"
    if not page.items:
        yield "no jobs yet: decorate a function with @scheduler.job()"
    width = max((len(job.id) for job in page.items), default=0)
    for job in page.items:
        plan = "no live worker can run it" if job.id in orphaned else _describe_next(job)
        yield f"{job.id:{width}}  {plan}"
    more = (page.total or 0) - len(page.items)
    if more > 0:
        yield f"and {more:,} more: mainspring jobs list"


def _describe_next(job: Job) -> str:
    if not job.enabled:
        return "paused"
    if is_over(job):
        return SCHEDULE_OVER
    if job.next_run_at is None:
        return describe_plan(job)
    schedule = f": {job.schedule.describe()}" if job.schedule is not None else ""
    now = utcnow()  # a slot that is overdue is fired now
    return time_format.relative(max(job.next_run_at, now), now) + schedule
