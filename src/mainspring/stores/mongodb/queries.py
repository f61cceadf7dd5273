"""Reads: find, counts, jobs."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import floor
from typing import Any

import pymongo

from mainspring.core.clock import to_us
from mainspring.core.model import Job, Page, Run, State, replace
from mainspring.core.policy import Policy
from mainspring.core.transitions import UPSTREAM_FAILED
from mainspring.errors import InvalidCursor
from mainspring.stores.evaluation import FOLLOWING, has_cursor, live_counts
from mainspring.stores.mongodb.codec import (
    BRIEF,
    LIVE_STATES,
    SET_ASIDE,
    STATE_OF,
    STATES,
    is_lane,
    read_job,
    read_run,
)
from mainspring.stores.mongodb.database import (
    BY_ID,
    MAJORITY,
    SNAPSHOT,
    Collection,
    Database,
    Document,
    chunks,
    read_moment,
)
from mainspring.stores.mongodb.limits import lapsed_condition
from mainspring.stores.mongodb.schema import UNTRIED, comes_after
from mainspring.stores.paging import cursor_number
from mainspring.stores.protocol import Counts, JobQuery, RunQuery

_NEWEST = [("created_at", -1), ("_id", -1)]
_UNTRIED = frozenset(map(State, UNTRIED))
MOST_JOBS_READ = 100
"""Jobs whose newest runs one command reads. A pipeline has at most 1,000 stages."""

COUNTING = 60.0
"""Seconds for `counts`, which reads an index of all unfinished runs: an index of a million took
half a second (bench/sizing.py)."""


async def get(db: Database, ids: Iterable[str], *, brief: bool = False) -> list[Run]:
    """The runs of these ids that exist.

    A run that has ended, or is to be cancelled, is read again as a majority has it. A caller that
    reads the end of a run does not read it again, so a failover must not roll the end back.

    A run that is missing is read again in a snapshot, because callers take it for one that ended
    long ago. On a cluster a transaction becomes visible on one shard a moment before the other, and
    only a snapshot waits for all of it.
    """
    wanted = sorted(ids)
    runs = await _find_by_ids(db.runs, wanted, brief)
    missing = [run_id for run_id in wanted if run_id not in runs]
    runs |= await _find_by_ids(db.runs.with_options(read_concern=SNAPSHOT), missing, brief)
    ended = [
        run_id
        for run_id, run in runs.items()
        if run.get("state") not in LIVE_STATES or run.get("cancel_requested")
    ]
    runs |= await _find_by_ids(db.runs.with_options(read_concern=MAJORITY), ended, brief)
    return [read_run(run, brief=brief) for run in runs.values()]


async def _find_by_ids(
    collection: Collection, ids: Sequence[str], brief: bool
) -> dict[str, Document]:
    runs: dict[str, Document] = {}
    for part in chunks(ids):
        walk = collection.find({"_id": {"$in": part}}, BRIEF if brief else None, hint=BY_ID)
        runs |= {run["_id"]: run async for run in walk}
    return runs


async def find(db: Database, query: RunQuery) -> Page[Run]:
    """A page of runs, newest first: by `created_at`, then id. The server reads each state along the
    index and merges them."""
    if query.ids is not None:
        return Page(await get(db, query.ids, brief=query.brief))
    if query.limit <= 0 or (query.states is not None and not query.states):
        return Page([])
    if query.jobs is not None:
        return Page(await _newest_of_each(db, query, query.jobs))
    if query.lapsed:
        scans = await _scans_of_lapsed(db, query)
    elif query.set_aside:
        scans = await _scans_of_set_aside(db, query)
    else:
        scans = index_scans(query)
    runs: list[Document] = []
    for where, hint in scans:
        shown = BRIEF if query.brief else None
        walk = db.runs.find(where, shown, hint=hint).sort(_NEWEST).limit(query.limit)
        runs += await walk.to_list(query.limit)
    runs.sort(key=_age, reverse=True)
    del runs[query.limit :]
    cursor = _cursor_behind(runs[-1]) if len(runs) == query.limit else None
    return Page([read_run(run, brief=query.brief) for run in runs], cursor)


async def _newest_of_each(db: Database, query: RunQuery, jobs: Iterable[str]) -> list[Run]:
    """A command or two for many jobs, which take a tenth of the time of a command for each."""
    runs: list[Document] = []
    for part in chunks(jobs, MOST_JOBS_READ):
        if query.limit == 1 and not db.sharded:
            runs += await _newest_by_steps(db, query, part)
        else:
            runs += await _run_pipelines(db, query, _newest_by_job(query, part))
    by_job: dict[Any, list[Document]] = defaultdict(list)
    for run in sorted(runs, key=_age, reverse=True):
        by_job[run["job_id"]].append(run)
    return [
        read_run(run, brief=query.brief)
        for of_job in by_job.values()
        for run in of_job[: query.limit]
    ]


async def _newest_by_steps(db: Database, query: RunQuery, jobs: Sequence[str]) -> list[Document]:
    """The newest run of each job in each state. The server steps from job to job in the index: with
    a pipeline for each of 20 jobs this took ten times as long. (A router would read all runs.)

    Of runs that were tried in a state where most were not, there are mostly few."""
    states = frozenset(State) if query.states is None else query.states
    untried = states & _UNTRIED if query.tried else frozenset[State]()
    order = {"job_id": 1, "state": 1, **dict(_NEWEST)}
    pipelines: list[list[Document]] = [
        [
            {"$match": {"job_id": {"$in": jobs}, "state": str(state)}},
            {"$sort": order},
            {"$group": {"_id": "$job_id", "newest": {"$first": "$$ROOT"}}},
            {"$replaceRoot": {"newRoot": "$newest"}},
        ]
        for state in sorted(states - untried)
    ]
    if not untried:
        return await _run_pipelines(db, query, pipelines)
    where = {"job_id": {"$in": jobs}, **listed(replace(query, jobs=None, states=untried))}
    walk = db.runs.find(where, BRIEF if query.brief else None, hint="tried")
    runs, few = await asyncio.gather(
        _run_pipelines(db, query, pipelines), walk.limit(len(jobs) + 1).to_list()
    )
    if len(few) > len(jobs):
        others = _newest_by_job(replace(query, states=untried), jobs)
        few = await _run_pipelines(db, query, others)
    return runs + few


def _newest_by_job(query: RunQuery, jobs: Iterable[str]) -> list[list[Document]]:
    return [
        [{"$match": where}, {"$sort": dict(_NEWEST)}, {"$limit": query.limit}]
        for job in jobs
        for where, _ in index_scans(replace(query, job=job, jobs=None))
    ]


async def _run_pipelines(
    db: Database, query: RunQuery, pipelines: Sequence[list[Document]]
) -> list[Document]:
    """What all of them give, by one command."""
    if not pipelines:
        return []
    shown = [{"$project": BRIEF}] if query.brief else []
    first, *rest = ([*stages, *shown] for stages in pipelines)
    others = [{"$unionWith": {"coll": db.runs.name, "pipeline": stages}} for stages in rest]
    return await (await db.runs.aggregate([*first, *others])).to_list()


def _age(run: Document) -> tuple[int, float, str]:
    """The order of the server, also for runs whose `created_at` is damaged: if it is missing they
    are the oldest, if it is not a number the newest."""
    created = run.get("created_at")
    if isinstance(created, int | float):
        return 1, created, run["_id"]
    return 0 if created is None else 2, 0, run["_id"]


_Scans = list[tuple[Document, str | None]]
"""Conditions to search for, each with the index to use, or None if the server chooses."""


def index_scans(query: RunQuery) -> _Scans:
    """The runs of a job that were tried need two: the states that a run may have untried have their
    own index."""
    if query.upstream is not None:
        return [
            ({"$and": [_following(query.upstream, query.states), _after(query.cursor)]}, "upstream")
        ]
    if query.failing:
        return [(listed(query), "failing")]
    if not query.tried or query.job is None:
        return [(listed(query), None)]
    states = frozenset(State) if query.states is None else query.states
    parts = [(states - _UNTRIED, "newest_of_job"), (states & _UNTRIED, "tried")]
    return [(listed(replace(query, states=part)), index) for part, index in parts if part]


def _following(upstream: Iterable[str], states: frozenset[State] | None) -> Document:
    wanted = FOLLOWING if states is None else FOLLOWING & states
    return {
        **comes_after(upstream),
        "$nor": [
            {"state": {"$nin": sorted(map(str, wanted))}},
            {"state": "skipped", "reason": {"$ne": UPSTREAM_FAILED}},
        ],
    }


def listed(query: RunQuery) -> Document:
    """The condition of a list. After a cursor each state has two ranges: runs of the same time as
    the cursor, and older ones. With one range for both, each page would read all pages before it
    again if many runs were enqueued at the same time."""
    states = list(STATES if query.states is None else sorted(map(str, query.states)))
    alike: Document = {}
    if query.job is not None:
        alike["job_id"] = query.job
    if query.tried:
        alike["attempt"] = {"$gt": 0}
    if query.failing:  # it has its own index, which is in order for all states
        alike |= {"failures": {"$gt": 0}, "state": {"$in": states}}
        return alike | _either(_ranges(query))
    if query.cursor is None:
        return {"state": {"$in": states}, **alike, **_either(_ranges(query))}
    return _either([{"state": s, **alike, **r} for s in states for r in _ranges(query)])


def _either(ways: list[Document]) -> Document:
    return ways[0] if len(ways) == 1 else {"$or": ways}


def _ranges(query: RunQuery) -> list[Document]:
    """The ranges of `created_at` and id after the cursor, within `since` and `until`."""
    since = {} if query.since is None else {"$gte": to_us(query.since)}
    until = {} if query.until is None else {"$lt": to_us(query.until)}
    if query.cursor is None:
        return [{"created_at": since | until} if since or until else {}]
    created, run_id = _read_cursor(query.cursor)
    older = min(created, until.get("$lt", created))
    return [
        {"created_at": {"$eq": created, **since, **until}, "_id": {"$lt": run_id}},
        {"created_at": {"$lt": older, **since}},
    ]


async def _scans_of_lapsed(db: Database, query: RunQuery) -> _Scans:
    """One range of the index for each length of lease that is in use."""
    if query.states is not None and State.RUNNING not in query.states:
        return []
    kept = await db.runs.distinct("lease", {"state": "running"})
    ranges = [
        {
            "state": "running",
            "lease": int(length),
            "$expr": {"$lte": ["$leased_at", db.time.ago(int(length))]},
        }
        for length in kept
        if isinstance(length, int | float)
    ]
    if not ranges:
        return []
    where: Document = {"$and": [{"$or": ranges}, {"$expr": lapsed_condition(db)}]}
    if query.job is not None:
        where["job_id"] = query.job
    return [(where | _after(query.cursor), None)]


async def _scans_of_set_aside(db: Database, query: RunQuery) -> _Scans:
    """The lanes of runs that were set aside, and of runs whose lane is damaged, which no claim
    finds either."""
    lanes = await db.runs.distinct("lane", {"state": "pending"})
    aside = [lane for lane in lanes if not is_lane(lane) or lane["p"] == SET_ASIDE]
    if not aside:
        return []
    return [({"state": "pending", "lane": {"$in": aside}} | _after(query.cursor), "due")]


def _cursor_behind(run: Document) -> str | None:
    """The cursor after this run. Runs whose time is not a number are listed first, and runs without
    a time last. Those without a time are all damaged, so no page follows them."""
    kind, created, run_id = _age(run)
    return None if kind == 0 else f"{floor(created) if kind == 1 else 2**62}:{run_id}"


def _after(cursor: str | None) -> Document:
    if cursor is None:
        return {}
    created, run_id = _read_cursor(cursor)
    seen = {"created_at": created, "_id": {"$gte": run_id}}
    return {"created_at": {"$lte": created}, "$nor": [seen]}


def _read_cursor(cursor: str) -> tuple[int, str]:
    moment, colon, run_id = str(cursor).partition(":")
    if not colon:
        raise InvalidCursor(cursor)
    return cursor_number(moment, cursor), run_id


async def counts(db: Database) -> Counts:
    """Count unfinished runs and due runs, from indexes alone, without reading documents."""
    now = await db.now()  # it also raises within the usual time if no server answers
    with pymongo.timeout(COUNTING):
        return await _counts(db, now)


async def _counts(db: Database, now: int) -> Counts:
    runs: dict[str, dict[State, int]] = defaultdict(dict)
    async for group in await db.runs.aggregate(counted_live(), hint="newest_of_job"):
        runs[group["_id"]["job"]][STATE_OF[group["_id"]["state"]]] = group["count"]
    due: list[tuple[str, str, int, datetime]] = []
    async for group in await db.runs.aggregate(counted_due(now), hint="due"):
        lane = group["_id"]
        if not is_lane(lane) or lane["p"] == SET_ASIDE:
            continue
        oldest = read_moment(group["oldest"])
        assert oldest is not None
        due.append((lane["h"], lane["q"], group["count"], oldest))
    return live_counts(runs, due)


def counted_live() -> list[Document]:
    """The bound for the job makes the server seek from job to job in the index, past all runs that
    have ended. Without it the server would read every document."""
    live = {"job_id": {"$gte": ""}, "state": {"$in": sorted(LIVE_STATES)}}
    by = {"job": "$job_id", "state": "$state"}
    return [{"$match": live}, {"$group": {"_id": by, "count": {"$sum": 1}}}]


def counted_due(now: int) -> list[Document]:
    """`now` is an argument, because `$$NOW` of an aggregate is the clock of the router."""
    each: Any = {"_id": "$lane", "count": {"$sum": 1}, "oldest": {"$min": "$run_at"}}
    return [{"$match": {"state": "pending", "run_at": {"$lte": now}}}, {"$group": each}]


async def jobs(db: Database, query: JobQuery) -> Page[Job]:
    if query.limit <= 0:
        return Page([])
    listed_all = where = listed_jobs(query)
    if query.cursor is not None and has_cursor(query):
        where = {"$and": [where, {"_id": {"$gt": query.cursor}}]}
    stages = [{"$match": where}, *_in_order(query), {"$skip": query.offset}]
    total, walk = await asyncio.gather(
        _total(db, listed_all, wanted=query.with_total),
        db.jobs.aggregate([*stages, {"$limit": query.limit}]),
    )
    page = [read_job(job) async for job in walk]
    full = has_cursor(query) and len(page) == query.limit
    return Page(page, page[-1].id if full else None, total)


def _in_order(query: JobQuery) -> list[Document]:
    """The server sorts a missing value before all others; an added field puts it last."""
    way = -1 if query.descending else 1
    if query.due is not None:
        return [{"$sort": {"next_run_at": 1, "_id": 1}}]
    if query.order == "id":
        return [{"$sort": {"_id": way}}]
    is_none = {"$lte": [f"${query.order}", None]}
    return [{"$set": {"none": is_none}}, {"$sort": {"none": 1, query.order: way, "_id": 1}}]


async def _total(db: Database, where: Document, *, wanted: bool) -> int | None:
    """Count jobs. To count all of them the hint is needed; without it the server reads every
    document."""
    if not wanted:
        return None
    if where:
        return await db.jobs.count_documents(where)
    return await db.jobs.count_documents({}, hint=BY_ID)


def listed_jobs(query: JobQuery) -> Document:
    where: list[Document] = []
    if query.ids is not None:
        where.append({"_id": {"$in": list(query.ids)}})
    if query.tag is not None:
        where.append({"tags": {"$eq": query.tag}})
    if query.queue is not None:
        where.append(_in_queue(query.queue))
    if query.follows:
        where.append({"follows": True})
    if query.due is not None:
        where.append({"enabled": True, "next_run_at": {"$lte": to_us(query.due)}})
    if query.enabled is not None:
        where.append({"enabled": query.enabled})
    if query.text is not None:
        words = re.escape(query.text).replace("\0", r"\x00")  # no pattern may hold a NUL as it is
        part = {"$regex": words, "$options": "i"}
        where.append({"$or": [{"_id": part}, {"description": part}]})
    return {"$and": where} if where else {}


def _in_queue(queue: str) -> Document:
    """Jobs whose policy names this queue. A policy is kept as JSON text, and it names its queue if
    that is not the default one. Quotes inside other strings are escaped, so this pattern matches
    only the queue itself."""
    if queue == Policy().queue:
        return {"policy": {"$not": {"$regex": '"queue": '}}}
    return {"policy": {"$regex": re.escape(f'"queue": {json.dumps(queue)}')}}
