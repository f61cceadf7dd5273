"""Finds the jobs and runs whose records this version cannot read."""

from __future__ import annotations

from mainspring.core.model import Job, Run, State, replace
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import JobQuery, RunQuery, Store

SEARCHED = 1000
"""The newest runs of each state that are searched, and how many records are read at once."""


async def find_unreadable(store: Store, limit: int) -> tuple[list[Job], list[Run]]:
    """Jobs and runs that this version cannot read, at most `limit` of each. All jobs are searched;
    of runs those that were set aside, those that are lapsed, and the newest of each state."""
    stored = all_items(store.jobs, JobQuery(limit=SEARCHED))
    jobs = [job async for job in stored if job.unreadable is not None][:limit]
    searches = [RunQuery(set_aside=True), RunQuery(lapsed=True)]
    searches += [RunQuery(states=frozenset({state})) for state in State]
    runs: dict[str, Run] = {}
    for query in searches:
        page = await store.find(replace(query, limit=SEARCHED))
        runs |= {run.id: run for run in page.items if run.unreadable is not None}
    return jobs, list(runs.values())[:limit]
