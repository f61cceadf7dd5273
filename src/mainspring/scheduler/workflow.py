"""The workflow that a job or a run belongs to, as a graph of jobs or of runs, and its picture as
text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from mainspring.core.model import Job, Run, State
from mainspring.engine.engine import Engine
from mainspring.engine.slots import with_followers
from mainspring.engine.workflow import runs_after, upstream_of
from mainspring.errors import JobNotFound, RunNotFound
from mainspring.stores.paging import all_items, read_runs
from mainspring.stores.protocol import JobQuery, RunQuery


class WorkflowNode(Struct, frozen=True, kw_only=True):
    """A job (`run_id` and `state` are None) or a run, and the ids of the nodes it comes after."""

    id: str
    job_id: str
    after: tuple[str, ...] = ()
    run_id: str | None = None
    state: State | None = None
    detail: str | None = None
    """Why a run did not succeed, or the schedule of a job."""


class Workflow(Struct, frozen=True):
    """The nodes of a workflow, each behind those that it comes after."""

    nodes: tuple[WorkflowNode, ...]
    complete: bool = True
    """False where there may be more runs than these: see `Client.workflow`."""

    def to_dict(self) -> dict[str, Any]:
        """The graph for programs: nodes, and edges from each node to those that come after it."""
        return {
            "nodes": [
                {
                    "id": node.id,
                    "job_id": node.job_id,
                    "run_id": node.run_id,
                    "state": node.state,
                    "detail": node.detail,
                }
                for node in self.nodes
            ],
            "edges": [{"from": name, "to": node.id} for node in self.nodes for name in node.after],
            "complete": self.complete,
        }

    def text(self) -> str:
        """The graph as a tree. A node that comes after several others is drawn under the first of
        them and names the others. Runs of one job that differ in nothing but their outcome share a
        line."""
        return "\n".join(_draw(self._groups()))

    def _groups(self) -> list[_Group]:
        """Nodes that share a line: of the same job, after the same nodes, before the same nodes."""
        before: dict[str, list[str]] = {}
        for node in self.nodes:
            for name in node.after:
                before.setdefault(name, []).append(node.id)
        groups: dict[tuple[Any, ...], list[WorkflowNode]] = {}
        for node in self.nodes:
            key = (node.job_id, node.after, tuple(before.get(node.id, ())))
            groups.setdefault(key, []).append(node)
        return [_Group(tuple(nodes)) for nodes in groups.values()]


class _Group(Struct, frozen=True):
    nodes: tuple[WorkflowNode, ...]

    @property
    def ids(self) -> set[str]:
        return {node.id for node in self.nodes}

    @property
    def after(self) -> set[str]:
        return set(self.nodes[0].after)

    @property
    def name(self) -> str:
        return self.nodes[0].job_id

    def label(self) -> str:
        first = self.nodes[0]
        if len(self.nodes) == 1:
            parts = [first.job_id, first.state, f"({first.detail})" if first.detail else None]
            return "  ".join(str(part) for part in parts if part is not None)
        states = Counter(str(node.state) for node in self.nodes if node.state is not None)
        shown = ", ".join(f"{count:,} {state}" for state, count in states.most_common())
        return f"{first.job_id} × {len(self.nodes):,}  {shown}".rstrip()


def _draw(groups: Sequence[_Group]) -> Iterator[str]:
    known = set().union(*(group.ids for group in groups))
    roots = [group for group in groups if not group.after & known]
    drawn: set[int] = set()
    for root in roots:
        yield root.label()
        yield from _draw_followers(root, groups, drawn, "")


def _draw_followers(
    group: _Group, groups: Sequence[_Group], drawn: set[int], indent: str
) -> Iterator[str]:
    followers = [
        follower for follower in groups if follower.after & group.ids and id(follower) not in drawn
    ]
    drawn.update(id(follower) for follower in followers)
    for at, follower in enumerate(followers):
        last = at == len(followers) - 1
        others = [
            other.name for other in groups if other is not group and follower.after & other.ids
        ]
        also = f"  [also after {', '.join(sorted(others))}]" if others else ""
        yield f"{indent}{'└─ ' if last else '├─ '}{follower.label()}{also}"
        yield from _draw_followers(follower, groups, drawn, indent + ("   " if last else "│  "))


MOST_RUNS = 2000
"""The most runs of a workflow that are read; a larger graph is not readable."""

SEARCHED_RUNS = 10_000
"""How many of the newest runs are searched for those that were enqueued with `after`."""

PAGE = 1000


async def read_workflow(engine: Engine, name: str, searched: int = SEARCHED_RUNS) -> Workflow:
    """The workflow of a run with this id, or else of a job with this id. `searched`: as in
    `Client.workflow`."""
    if (run := (await read_runs(engine.store, [name])).get(name)) is not None:
        return await _workflow_of_run(engine, run, searched)
    return await _workflow_of_job(engine, name)


async def _workflow_of_job(engine: Engine, name: str) -> Workflow:
    """Everything that starts with the same root. Only the jobs that come after others are read, and
    those that they come after."""
    followers = {job.id: job for job in await _jobs(engine, follows=True)}
    order = {job.id: job.policy.after for job in followers.values()}
    upstream = {job_id: upstream_of(job_id, order) for job_id in order}
    roots = {upstream_id for upstream_id in upstream.get(name, ()) if upstream_id not in order} or {
        name
    }
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
            after=tuple(
                upstream_id for upstream_id in order.get(job_id, ()) if upstream_id in members
            ),
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
    roots = [member for member in runs.values() if not any(name in runs for name in member.after)]
    followers = await engine.context.jobs.followers()
    now = engine.time.now()
    expected = {member.id for root in roots for member in with_followers([root], followers, now)}
    runs |= await _runs_by_id(engine, expected - runs.keys())
    complete = len(runs) < MOST_RUNS
    if complete:
        enqueued, complete = await _enqueued_after(engine, runs, searched)
        runs |= {member.id: member for member in enqueued[: MOST_RUNS - len(runs)]}
    nodes = [
        WorkflowNode(
            id=member.id,
            job_id=member.job_id,
            after=tuple(name for name in member.after if name in runs),
            run_id=member.id,
            state=member.state,
            detail=member.error or member.reason,
        )
        for member in runs.values()
    ]
    return Workflow(_in_order(nodes), complete)


async def _upstream_runs(engine: Engine, run: Run) -> dict[str, Run]:
    """The run and all that come before it, directly or not."""
    runs = {run.id: run}
    missing = set(run.after)
    while missing and len(runs) < MOST_RUNS:
        upstream = await _runs_by_id(engine, missing)
        runs |= upstream
        missing = {
            name for upstream_run in upstream.values() for name in upstream_run.after
        } - runs.keys()
    return runs


async def _runs_by_id(engine: Engine, ids: Iterable[str]) -> dict[str, Run]:
    return await read_runs(engine.store, sorted(ids)[:MOST_RUNS])


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
