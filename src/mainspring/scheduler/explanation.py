"""Explains in one sentence why a run has not run, or not yet."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from mainspring.core.durations import humanize
from mainspring.core.model import Job, Run, State
from mainspring.engine.engine import Engine
from mainspring.engine.live_workers import LiveWorker
from mainspring.stores.protocol import JobQuery, RunQuery

__all__ = ["explain_run"]

REASONS = {
    "overlap": "an earlier run of the job had not ended, and its overlap policy is to skip",
    "expired": "its start deadline had passed before a worker could start it",
    "upstream failed": "a run that it comes after did not succeed",
    "upstream skipped": "a run that it comes after was skipped",
    "poison": "each worker that held it died or lost its lease, until no further try was allowed",
    "lost": "its worker died or stopped, and the job may be started only once",
}


async def explain_run(engine: Engine, run_id: str) -> str | None:
    """One sentence; None if the run is running or has succeeded."""
    run = await engine.operations.run(run_id)
    match run.state:
        case State.PENDING:
            return await _why_pending(engine, run)
        case State.WAITING:
            return f"it waits for the end of {_named(run.after)}"
        case State.SKIPPED if run.reason == "misfire":
            return _missed(run)
        case State.SKIPPED | State.CANCELLED | State.FAILED:
            return REASONS.get(run.reason or "", run.reason) or run.error
    return None


async def _why_pending(engine: Engine, run: Run) -> str:
    if run.unreadable is not None:
        return f"its record cannot be read: {run.unreadable}"
    now = await engine.store.now()
    if run.run_at > now:
        return f"{_why_later(run)}: it is due in {_span(run.run_at - now)}"
    workers = await engine.live_workers.current()
    if not any(worker.takes(run.handler, run.queue) for worker in workers):
        return _why_no_worker(run, workers)
    if held := await _limit_reached(engine, run):
        return held
    return f"it is due for {_span(now - run.run_at)}, and no worker that can run it was free yet"


def _why_later(run: Run) -> str:
    if run.reason is not None:
        return run.reason
    if run.failures:
        return f"its last attempt failed ({run.error})"
    return "its time has not come"


def _why_no_worker(run: Run, workers: list[LiveWorker]) -> str:
    if not workers:
        return "no worker is running"
    if any(run.handler in worker.handlers for worker in workers):
        return f"no running worker that has its handler takes the queue {run.queue!r}"
    return f"no running worker has its handler {run.handler!r}"


async def _limit_reached(engine: Engine, run: Run) -> str | None:
    """Whether the job's concurrency is used up, counted over all jobs that share its key."""
    found = (await engine.store.jobs(JobQuery(ids=frozenset({run.job_id}), limit=1))).items
    if not found or (limit := found[0].policy.concurrency) is None:
        return None
    counts = (await engine.store.counts()).runs
    sharing = await _sharing_limit(engine, found[0])
    running = sum(counts.get(job_id, {}).get(State.RUNNING, 0) for job_id in sharing)
    running -= await _count_lapsed(engine, sharing)
    if running < limit:
        return None
    key = found[0].policy.concurrency_key
    over = "" if key is None else f" of all jobs with the key {key!r}"
    runs, are = ("run", "is") if running == 1 else ("runs", "are")
    return f"its concurrency limit is reached: {running} {runs}{over} {are} running, {limit} may"


async def _count_lapsed(engine: Engine, job_ids: Collection[str]) -> int:
    """Runs of these jobs that are still recorded as running, but whose lease is over: they take no
    place under a limit."""
    count, cursor = 0, None
    while True:
        query = RunQuery(lapsed=True, brief=True, limit=1000, cursor=cursor)
        page = await engine.store.find(query)
        count += sum(run.job_id in job_ids for run in page.items)
        if (cursor := page.cursor) is None:
            return count


async def _sharing_limit(engine: Engine, job: Job) -> set[str]:
    key = job.policy.concurrency_key
    if key is None:
        return {job.id}
    sharing: set[str] = set()
    cursor = None
    while True:
        page = await engine.store.jobs(JobQuery(limit=1000, cursor=cursor))
        sharing |= {one.id for one in page.items if one.policy.concurrency_key == key}
        if (cursor := page.cursor) is None:
            return sharing


def _missed(run: Run) -> str:
    gap = run.result if isinstance(run.result, dict) else {}
    slots = f"{gap['count']} slots" if gap.get("count", 1) != 1 else "this slot"
    last = f", the last at {_moment(gap['last'])}" if gap.get("count", 1) != 1 else ""
    return f"no scheduler fired {slots} in time{last}: stopped, cut off, or without a worker"


def _moment(given: object) -> str:
    return given.isoformat() if isinstance(given, datetime) else str(given)


def _named(ids: tuple[str, ...]) -> str:
    return ", ".join(ids[:5]) + (f" and {len(ids) - 5} more runs" if len(ids) > 5 else "")


def _span(span: timedelta) -> str:
    return humanize(timedelta(seconds=max(round(span.total_seconds()), 1)))
