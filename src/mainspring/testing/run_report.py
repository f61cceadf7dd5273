"""What happened in a test, as text: jobs with their runs, attempts, errors and reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime

from mainspring.core.model import Job, Run

__all__ = ["describe_runs", "short_time"]

MOST_RUNS = 20
"""Runs that are shown; of more, the newest."""


def describe_runs(now: datetime, jobs: Sequence[Job], runs: Sequence[Run]) -> str:
    """The runs, oldest first, and of jobs without runs when they would run."""
    lines = [f"At {short_time(now)} there {_are(len(runs), 'run')}:"]
    if len(runs) > MOST_RUNS:
        lines.append(f"  … {len(runs) - MOST_RUNS} earlier ones")
    for run in runs[-MOST_RUNS:]:
        lines += _run(run)
    ran = {run.job_id for run in runs}
    lines += [_job(job) for job in jobs if job.id not in ran]
    return "\n".join(lines)


def short_time(moment: datetime) -> str:
    """A time in UTC without what is zero at its end."""
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    more = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{text}{more} UTC"


def _run(run: Run) -> list[str]:
    facts = [f"for {short_time(run.scheduled_at)}"]
    if run.attempt:
        facts.append(f"{run.attempt} attempt{'s' if run.attempt > 1 else ''}")
    if not run.finished and run.run_at > run.scheduled_at:
        facts.append(f"due {'again ' if run.attempt else ''}at {short_time(run.run_at)}")
    if run.reason:
        facts.append(run.reason)
    if run.payload is not None:
        facts.append(f"payload {run.payload!r}"[:200])
    lines = [f"  {run.job_id} {run.state}: {', '.join(facts)}"]
    failed = [attempt for attempt in run.attempts if attempt.error]
    if failed and run.state != "succeeded":
        text = failed[-1].traceback or failed[-1].error or ""
        lines.append(textwrap.indent(text.rstrip(), "    "))
    elif run.error:
        lines.append(f"    {run.error}")
    return lines


def _job(job: Job) -> str:
    if not job.enabled:
        return f"  {job.id} has no run: it is paused"
    if job.next_run_at is None and job.policy.after:
        return f"  {job.id} has no run: it runs after {', '.join(job.policy.after)}"
    if job.next_run_at is None:
        return f"  {job.id} has no run: it has no schedule, so it runs when it is enqueued"
    return f"  {job.id} has no run: its next slot is at {short_time(job.next_run_at)}"


def _are(count: int, noun: str) -> str:
    return f"is 1 {noun}" if count == 1 else f"are {count or 'no'} {noun}s"
