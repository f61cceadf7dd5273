"""Reads the workflow that a job or a run belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mainspring.core.model import Job, Run, State
from mainspring.core.workflow_graph import Workflow, WorkflowNode
from mainspring.engine.engine import Engine
from mainspring.engine.slots import with_followers
from mainspring.engine.workflow import runs_after, upstream_of
from mainspring.errors import JobNotFound, RunNotFound
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import JobQuery, RunQuery

MOST_RUNS = 2000
"""The most runs of a workflow that are read; a larger graph is not readable."""

SEARCHED_RUNS = 10_000
"""How many of the newest runs are searched for those that were enqueued with `after`."""

PAGE = 1000


async def read_workflow(engine: Engine, name: str, searched: int = SEARCHED_RUNS) -> Workflow:
    """The workflow of a run with this id, or else of a job with this id. `searched`: as in
    `Client.workflow`."""
    page = await engine.store.find(RunQuery(ids=frozenset({name}), brief=True))
    if page.items:
        return await _workflow_of_run(engine, page.items[0], searched)
    return await _workflow_of_job(engine, name)


async def _workflow_of_job(engine: Engine, name: str) -> Workflow:
    """Everything that starts with the same root. Only the jobs that come after others are read, and
    those that they come after."""
    followers = {job.id: job for job in await _jobs(engine, follows=True)}
    order = {job.id: job.policy.after for job in followers.values()}
    upstream = {job_id: upstream_of(job_id, order) for job_id in order}
    roots = {one for one in upstream.get(name, ()) if one not in order} or {name}
    members = {job_id for job_id, before in upstream.items() if before & roots} | roots
    others = frozenset(members - followers.keys())
    jobs = followers | {job.id: job for job in await _jobs(engine, ids=others)}
    if name not in jobs:
        known = [job.id for job in await _jobs(engine)]
        raise RunNotFound(name) if "@" in name else JobNotFound(name, known)
    nodes = [
        WorkflowNode(
            id=job_id,
            job_id=job_id,
            after=tuple(one for one in order.get(job_id, ()) if one in members),
            detail=_schedule(jobs.get(job_id)),
        )
        for job_id in members
    ]
    return Workflow(_in_order(nodes))


async def _jobs(engine: Engine, **query: Any) -> list[Job]:
    return [job async for job in all_items(engine.store.jobs, JobQuery(limit=PAGE, **query))]


def _schedule(job: Job | None) -> str | None:
    if job is None:
        return "there is no such job"
    if not job.enabled:
        return "paused"
    return None if job.schedule is None else job.schedule.describe()


async def _workflow_of_run(engine: Engine, run: Run, searched: int) -> Workflow:
    runs = await _upstream_runs(engine, run)
    roots = [one for one in runs.values() if not any(name in runs for name in one.after)]
    followers = await engine.followers()
    now = engine.time.now()
    expected = {one.id for root in roots for one in with_followers([root], followers, now)}
    runs |= await _runs_by_id(engine, expected - runs.keys())
    complete = len(runs) < MOST_RUNS
    if complete:
        found, complete = await _enqueued_after(engine, runs, searched)
        runs |= {one.id: one for one in found[: MOST_RUNS - len(runs)]}
    nodes = [
        WorkflowNode(
            id=one.id,
            job_id=one.job_id,
            after=tuple(name for name in one.after if name in runs),
            run_id=one.id,
            state=one.state,
            detail=one.error or one.reason,
        )
        for one in runs.values()
    ]
    return Workflow(_in_order(nodes), complete)


async def _upstream_runs(engine: Engine, run: Run) -> dict[str, Run]:
    """The run and all that come before it, directly or not."""
    runs = {run.id: run}
    missing = set(run.after)
    while missing and len(runs) < MOST_RUNS:
        found = await _runs_by_id(engine, missing)
        runs |= found
        missing = {name for one in found.values() for name in one.after} - runs.keys()
    return runs


async def _runs_by_id(engine: Engine, ids: Iterable[str]) -> dict[str, Run]:
    ids = sorted(ids)[:MOST_RUNS]
    if not ids:
        return {}
    page = await engine.store.find(RunQuery(ids=frozenset(ids), brief=True))
    return {run.id: run for run in page.items}


async def _enqueued_after(
    engine: Engine, runs: dict[str, Run], searched: int
) -> tuple[list[Run], bool]:
    """Runs that were enqueued with `after`, and whether these are all. Those that wait are found by
    an index; those that have ended are searched among the newest runs."""
    oldest = min(run.created_at for run in runs.values())
    candidates: dict[str, Run] = {}
    cursor: str | None = None
    complete = False
    for start in range(0, searched, PAGE):
        limit = min(PAGE, searched - start)
        page = await engine.store.find(RunQuery(brief=True, limit=limit, cursor=cursor))
        candidates |= {run.id: run for run in page.items if run.after and run.id not in runs}
        cursor = page.cursor
        if cursor is None or page.items[-1].created_at < oldest:
            complete = True
            break
    waits = frozenset({State.WAITING})
    query = RunQuery(upstream=frozenset(runs), states=waits, brief=True, limit=PAGE)
    waiting = await engine.store.find(query)
    candidates |= {run.id: run for run in waiting.items if run.id not in runs}
    return runs_after(runs.values(), candidates.values()), complete


def _in_order(nodes: Iterable[WorkflowNode]) -> tuple[WorkflowNode, ...]:
    """Each node behind those that it comes after; else by id."""
    left = {node.id: node for node in sorted(nodes, key=lambda node: node.id)}
    ordered: list[WorkflowNode] = []
    while left:
        ready = [node for node in left.values() if not any(name in left for name in node.after)]
        for node in ready or list(left.values()):
            ordered.append(node)
            del left[node.id]
    return tuple(ordered)
