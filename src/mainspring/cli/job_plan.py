"""Says in words when a job runs, and how its last run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.cli import time_format

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from mainspring.core.model import Job
    from mainspring.core.statistics import LastRun

__all__ = ["SCHEDULE_OVER", "describe_last_run", "describe_plan", "is_over"]

SCHEDULE_OVER = "its schedule is over"


def is_over(job: Job) -> bool:
    """Whether a job's schedule has no further slot."""
    return job.enabled and job.schedule is not None and job.next_run_at is None


def describe_plan(job: Job) -> str:
    """The schedule of a job, or what else makes it run."""
    if job.schedule is not None:
        described = job.schedule.describe()
        return f"{SCHEDULE_OVER} ({described})" if is_over(job) else described
    reasons = [f"after {', '.join(job.policy.after)}"] if job.policy.after else []
    if job.policy.run_on_start:
        reasons.append("when a worker starts")
    return ", ".join(reasons) or "when enqueued"


def describe_last_run(run: LastRun, moment: Callable[[datetime], str] = time_format.seconds) -> str:
    """`failed 2026-11-16T09:00:00Z (by schedule): ValueError: …`: the first line of the error."""
    error = f": {run.error.splitlines()[0]}" if run.error else ""
    return f"{run.state} {moment(run.finished_at)} (by {run.source}){error}"
