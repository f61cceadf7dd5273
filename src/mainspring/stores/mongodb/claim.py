"""Claim: selects due runs and takes them.

A lane is a priority, a job, a queue, a handler and one of a few parts. The index keeps the pending
runs of a lane together, by time, and lanes in the order in which claims take from them. A claim has
these steps:

1. It reads which lanes have due runs, one key each, beginning behind the job that had the last turn
   if there are many, and keeps those that it may take from. While other clients claim too, it keeps
   its own part of them (claim_partition.py). At the same time it reads the limits of the jobs that
   it expects to find there.
2. It reads the first due runs of the jobs, as many as each gives when they take turns
   (`stores/turns.py`).
3. It takes the runs in one update, which writes the nonce of the claim, and reads the runs that
   have this nonce. If it wants only a few runs, it has read them whole before, and they are not
   read again. If runs of limited jobs are among them, this step is a transaction that counts again
   (limits.py).

The cost depends on the number of lanes passed and of runs taken, not on the backlog. A million
pending runs, runs of next year with a high priority, runs of a handler that this worker lacks and
runs of a job at its limit cost one key for each lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import UpdateMany
from pymongo.errors import PyMongoError

from mainspring.core.model import Run, replace
from mainspring.stores.codec import to_us
from mainspring.stores.mongodb.claim_partition import ClaimPartition
from mainspring.stores.mongodb.codec import (
    LANE_PARTS,
    RUN_FIELDS,
    SET_ASIDE,
    has_numbers,
    is_lane,
    is_moment,
    lane_of,
    lane_priority,
    lanes_from_turn,
    read_run,
)
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.errors import ambiguous
from mainspring.stores.mongodb.limits import FreeCapacity, count_starts, read_limits
from mainspring.stores.mongodb.server_clock import read_moment, span_us
from mainspring.stores.mongodb.transaction import WriteConflict, run_once
from mainspring.stores.protocol import Claim
from mainspring.stores.turns import ClaimLimits, ConcurrencyLimit, Turns, first_round, turn_order

TRIES = 40
MOST_MERGED_LANES = 100
"""Lanes in one find: MongoDB merges up to 200 walks, and sorts all it finds beyond that."""
FIRST_LANES = 200
"""So many lanes more than it might need a claim reads at first."""
MOST_EXPECTED_JOBS = 500
READ_WHOLE_LIMIT = 100
"""Up to so many runs are read whole at once, which saves a read. Of more runs, other clients may
take most first."""
_KEY_FIELDS = dict.fromkeys(("lane", "job_id", "priority", "run_at", "token", "attempt"), 1)
_ALL_FIELDS = dict.fromkeys(RUN_FIELDS, 1)
ORDER = [("run_at", 1), ("created_at", 1)]


class UnansweredClaims:
    """Claims of this client that ended with an error and may have taken runs: the ids that they
    wanted, by nonce. The next claim of the same worker looks these runs up first. Otherwise runs
    taken during a failover would wait until their leases lapse."""

    def __init__(self) -> None:
        self._open: dict[ObjectId, tuple[str, list[str]]] = {}

    def add(self, worker: str, nonce: ObjectId, ids: list[str]) -> None:
        self._open[nonce] = (worker, ids)

    def discard(self, nonce: ObjectId) -> None:
        self._open.pop(nonce, None)

    def of(self, worker: str) -> list[tuple[ObjectId, list[str]]]:
        return [(nonce, ids) for nonce, (owner, ids) in self._open.items() if owner == worker]


class Taken(NamedTuple):
    """What a claim has taken."""

    runs: list[Run]
    more: bool
    """Whether there may be more: left to other clients, or taken by them after this one saw it."""
    since: int = 0
    """A time by the server's clock, before the claim looked for due runs."""


async def claim_runs(
    db: Database, claim: Claim, partition: ClaimPartition, unanswered: UnansweredClaims
) -> Taken:
    if claim.limit <= 0 or not claim.handlers:
        return Taken([], more=False, since=to_us(await db.now()))
    if again := await _readable(db, await _find_unanswered(db, claim.worker, unanswered)):
        return Taken(again, more=True)
    nonce, since = ObjectId(), 0
    partition.record_claim()
    for tries in range(TRIES):
        if tries:
            await partition.pause(tries)
        since, (chosen, capacity, left) = await _select(db, claim, partition)
        if not chosen and not left:
            return Taken([], more=False, since=since)
        if not chosen:  # other clients took all of them meanwhile
            partition.record_contention(True)
            continue
        taking = _RunTaker(db, claim, nonce, unanswered)
        if capacity.limited.isdisjoint(run["job_id"] for run in chosen):
            taken = await taking.take(chosen)
        else:
            taken = await taking.take_under_limits(chosen, capacity)
        missed = len(taken) < len(chosen)
        partition.record_contention(missed)
        if readable := await _readable(db, taken):
            return Taken(readable, more=missed or left)
    return Taken([], more=True, since=since)


class _Selected(NamedTuple):
    """The runs to take, in order, the capacity under their limits, and whether there may be more:
    left to other clients, or taken by them meanwhile."""

    runs: list[Document]
    capacity: FreeCapacity
    left: bool


async def _select(db: Database, claim: Claim, partition: ClaimPartition) -> tuple[int, _Selected]:
    """The server's time before the search, and what was found.

    The time is read beside the lanes, so it costs no round trip.
    """
    expected = db.time.expected_now() or to_us(await db.now())
    width = claim.limit * LANE_PARTS + FIRST_LANES
    while True:
        guess = partition.jobs
        (lanes, complete), capacity, moment = await asyncio.gather(
            _due_lanes(db, claim, expected, width), read_limits(db, guess), db.now()
        )
        now = to_us(moment)
        jobs = {lane["g"] for lane in lanes}
        if not jobs <= guess:
            capacity = await read_limits(db, jobs)
        partition.jobs = jobs if len(jobs) <= MOST_EXPECTED_JOBS else frozenset()
        await capacity.count(db)
        own = partition.own_lanes(lanes)
        runs = await _take_turns(db, claim, own, capacity, now)
        wants_more = len(runs) < claim.limit and len(own) < len(lanes)
        if wants_more and not (runs and partition.knows_others):
            own = lanes
            runs = await _take_turns(db, claim, own, capacity, now)
        if complete or len(runs) >= claim.limit:
            left = len(own) < len(lanes) and len(runs) < claim.limit
            whole = await _read_whole(db, runs)
            left = left or len(whole) < len(runs)
            return min(expected, now), _Selected(whole, capacity, left)
        width *= 4


async def _due_lanes(
    db: Database, claim: Claim, now: int, width: int
) -> tuple[list[Document], bool]:
    """The lanes that the claim may take from, in the order of the turns: those among the first
    `width` that have due runs; and whether these are all."""
    lanes = await _read_due_lanes(db, {"$gt": {}}, now, width)
    complete = len(lanes) < width or db.sharded
    if claim.turns and not complete:
        lanes = []
        for between in lanes_from_turn(claim.turns):
            lanes += await _read_due_lanes(db, between, now, width - len(lanes))
            if len(lanes) >= width:
                break
        complete = len(lanes) < width
    lanes = [lane for lane in lanes if _may_take_from(claim, lane)]
    lanes.sort(key=lambda lane: turn_order(claim, lane_priority(lane), lane["g"]))
    return lanes, complete


async def _read_due_lanes(db: Database, between: Document, now: int, count: int) -> list[Document]:
    """The first lanes that have due runs. The server steps from lane to lane in the index. A router
    merges what it gets from the shards, in any order, so it has to read all lanes."""
    pipeline = due_lanes(between, now)
    if not db.sharded:
        pipeline.append({"$limit": count})
    walk = await db.runs.aggregate(pipeline, hint="due", batchSize=count + 1)
    return [group["_id"] async for group in walk]


def due_lanes(between: Document, now: int) -> list[Document]:
    due = {"state": "pending", "lane": between, "run_at": {"$lte": now}}
    return [{"$match": due}, {"$group": {"_id": "$lane"}}]


async def _take_turns(
    db: Database, claim: Claim, lanes: Sequence[Document], capacity: FreeCapacity, now: int
) -> list[Document]:
    """The runs that the jobs of these lanes give."""
    if capacity.rate_limits:  # so few are read whole, with the moment at which they start
        most = min(claim.limit, READ_WHOLE_LIMIT)
        limited = claim.limit - claim.ahead
        claim = replace(claim, limit=most, ahead=max(0, most - limited))
    concurrency = {
        job_id: ConcurrencyLimit(key, most) for job_id, (most, key) in capacity.limits.items()
    }
    limits = ClaimLimits(claim, concurrency, capacity.used, capacity.rates.copy())
    chosen: list[Document] = []
    for _, level in groupby(lanes, key=itemgetter("r")):
        by_job = first_round(((lane["g"], lane) for lane in level), limits)
        turns = Turns[Document](list(by_job), limits)
        while missing := turns.missing():
            wanted = {job_id: (by_job[job_id], count) for job_id, count in missing.items()}
            found = await _first_due_runs(db, wanted, now)
            for job_id, count in missing.items():
                turns.add(job_id, count, found.get(job_id, ()))
        chosen += turns.chosen()
        if limits.full:
            break
    return chosen


async def _read_whole(db: Database, runs: list[Document]) -> list[Document]:
    """The runs with all their fields and the moment of the read, if they are few."""
    if len(runs) > READ_WHOLE_LIMIT or all("now" in run for run in runs):
        return runs
    where = {"_id": {"$in": _ids(runs)}, "state": "pending"}
    walk = db.runs.find(where, {**_ALL_FIELDS, "now": db.time.now}, hint=BY_ID)
    found = {run["_id"]: run async for run in walk}
    whole = [found[run["_id"]] for run in runs if run["_id"] in found]
    return [run for run in whole if _can_be_taken(run)]


async def _lanes(db: Database, claim: Claim) -> list[Document]:
    """The lanes that have pending runs and that the claim may take from."""
    lanes = await db.runs.distinct("lane", {"state": "pending"})
    return [lane for lane in lanes if _may_take_from(claim, lane)]


def _may_take_from(claim: Claim, lane: Document) -> bool:
    if not is_lane(lane) or lane["p"] == SET_ASIDE:
        return False
    return (
        lane["h"] in claim.handlers
        and (claim.queues is None or lane["q"] in claim.queues)
        and claim.most.get(lane["g"], 1) > 0
    )


_Wanted = Mapping[str, tuple[Sequence[Document], int]]
"""Of some jobs, the lanes to read and how many runs."""


async def _first_due_runs(db: Database, wanted: _Wanted, now: int) -> dict[str, list[Document]]:
    """The first due runs of each job, in order.

    Runs whose numbers are damaged are set aside, because the write of their whole batch would fail.
    """
    for _ in range(TRIES):
        found = await _read_first_due_runs(db, wanted, now)
        damaged = [run["_id"] for run in found if not _can_be_taken(run)]
        if not damaged:
            break
        where = {"_id": {"$in": damaged}, "state": "pending"}
        await db.runs.update_many(where, {"$set": {"lane.p": SET_ASIDE}}, hint=BY_ID)
        found = [run for run in found if run["_id"] not in damaged]
    by_job: dict[str, list[Document]] = {}
    for run in found:
        by_job.setdefault(run["lane"]["g"], []).append(run)
    return by_job


def _can_be_taken(run: Document) -> bool:
    return has_numbers(run) and run["lane"]["g"] == run.get("job_id")


async def _read_first_due_runs(db: Database, wanted: _Wanted, now: int) -> list[Document]:
    """Few runs are read whole. Those of several jobs are read with one command, which takes a tenth
    of the time of a command for each. There a router would give its own time, so through a router
    runs of several jobs are not read whole."""
    count = sum(count for _, count in wanted.values())
    whole = count <= READ_WHOLE_LIMIT and not (db.sharded and len(wanted) > 1)
    shown = {**_ALL_FIELDS, "now": db.time.now} if whole else _KEY_FIELDS
    if len(wanted) == 1:
        [(lanes, count)] = wanted.values()
        walk = db.runs.find(due_runs(db, lanes), shown).sort(ORDER).limit(count).batch_size(count)
        return await walk.to_list(count)
    found: list[Document] = []
    for part in chunks(wanted.values(), MOST_MERGED_LANES):
        first, *rest = (_first_of_job(lanes, most, now, shown) for lanes, most in part)
        others = [{"$unionWith": {"coll": db.runs.name, "pipeline": other}} for other in rest]
        found += await (await db.runs.aggregate([*first, *others], batchSize=count + 1)).to_list()
    return found


def _first_of_job(
    lanes: Sequence[Document], count: int, now: int, shown: Document
) -> list[Document]:
    due = {"state": "pending", "lane": {"$in": list(lanes)}, "run_at": {"$lte": now}}
    return [{"$match": due}, {"$sort": dict(ORDER)}, {"$limit": count}, {"$project": shown}]


def due_runs(db: Database, lanes: Sequence[Document]) -> Document:
    due = {"$lte": ["$run_at", db.time.now]}
    return {"state": "pending", "lane": {"$in": list(lanes)}, "$expr": due}


class _RunTaker:
    """Takes the selected runs. If the answer to the write is lost, it finds out what was taken."""

    def __init__(
        self, db: Database, claim: Claim, nonce: ObjectId, unanswered: UnansweredClaims
    ) -> None:
        self._db = db
        self._worker = claim.worker
        self._nonce = nonce
        self._unanswered = unanswered
        self._put = {
            "began": False,
            "state": "running",
            "worker": claim.worker,
            "lease": span_us(claim.lease),
            "nonce": nonce,
        }

    async def take(self, chosen: Sequence[Document]) -> list[Run]:
        """Take those of the runs that no other client took first; in order."""
        try:
            matched = await _send(self._db, chosen, self._put)
        except PyMongoError as error:
            return await self._look_up(chosen, error)
        if matched == 0:
            return []
        if matched == len(chosen) and all("now" in run for run in chosen):
            return [read_run(_as_taken(self._db, run, self._put)) for run in chosen]
        try:
            return await _read_taken(self._db, self._nonce, _ids(chosen), settled=False)
        except PyMongoError:
            self._unanswered.add(self._worker, self._nonce, _ids(chosen))
            raise

    async def take_under_limits(
        self, chosen: Sequence[Document], capacity: FreeCapacity
    ) -> list[Run]:
        """Take as many of the runs as there is capacity for, in order. Takes nothing if another
        client took one of them first, or claims under the same limits at the same time."""
        try:
            return await run_once(
                self._db, lambda db: self._take_in_transaction(db, chosen, capacity)
            )
        except WriteConflict:
            return []
        except PyMongoError as error:
            return await self._look_up(chosen, error)

    async def _take_in_transaction(
        self, db: Database, chosen: Sequence[Document], seen: FreeCapacity
    ) -> list[Run]:
        jobs = {run["job_id"] for run in chosen}
        await seen.lock(db, jobs)
        first = min((run["now"] for run in chosen if "now" in run), default=None)
        capacity = await read_limits(db, jobs, first)
        if any(seen.limits.get(job_id) != capacity.limits.get(job_id) for job_id in jobs):
            raise WriteConflict  # otherwise it might have locked the documents of other limits
        await capacity.count(db)
        fitting = []
        for run in chosen:
            if capacity.left(run["job_id"]):
                capacity.take(run["job_id"])
                fitting.append(run)
        if not fitting:
            return []
        await count_starts(db, capacity.rates)
        if await _send(db, fitting, self._put) < len(fitting):
            raise WriteConflict
        if all("now" in run for run in fitting):
            return [read_run(_as_taken(db, run, self._put)) for run in fitting]
        return await _read_taken(db, self._nonce, _ids(fitting), settled=False)

    async def _look_up(self, chosen: Sequence[Document], error: PyMongoError) -> list[Run]:
        """The runs that a write took whose answer was lost."""
        if not ambiguous(error):
            raise error
        try:
            return await _read_taken(self._db, self._nonce, _ids(chosen), settled=True)
        except PyMongoError:
            self._unanswered.add(self._worker, self._nonce, _ids(chosen))
            raise


def _ids(runs: Sequence[Document]) -> list[str]:
    return [run["_id"] for run in runs]


def _as_taken(db: Database, run: Document, put: Document) -> Document:
    """A run that was read whole, as `_send` changes it."""
    now = db.time.stamp(run["now"])
    grown = {"token": run["token"] + 1, "attempt": run["attempt"] + 1}
    return {**run, **put, **grown, "started_at": now, "leased_at": now, "progress": None}


async def _read_taken(
    db: Database, nonce: ObjectId, ids: Sequence[str], *, settled: bool
) -> list[Run]:
    """Those of the runs that the claim with this nonce took, in order."""
    if settled:
        found = await db.settled(db.runs, ids)
    else:
        where = {"_id": {"$in": list(ids)}, "nonce": nonce}
        walk = db.runs.find(where, hint=BY_ID, session=db.session)
        walk = walk.batch_size(len(ids) + 1)  # one answer, no second call
        found = {run["_id"]: run async for run in walk}
    taken = [found[run_id] for run_id in ids if run_id in found]
    return [read_run(run) for run in taken if _is_mine(run, nonce)]


def _is_mine(run: Document, nonce: ObjectId) -> bool:
    return run.get("nonce") == nonce and run.get("state") == "running"


async def _readable(db: Database, taken: Sequence[Run]) -> list[Run]:
    """Those of the runs that can be read. The others are set aside, so that no claim finds them;
    their other fields stay as they are. If that fails, their leases lapse, and a later claim sets
    them aside."""
    aside = [run for run in taken if run.unreadable is not None]
    put = {"state": "pending", "lane.p": SET_ASIDE}
    gone = dict.fromkeys(("worker", "started_at", "leased_at", "lease", "began"), "")
    change = {"$set": put, "$inc": {"attempt": -1}, "$unset": gone}
    for run in aside:
        where = {"_id": run.id, "state": "running", "token": run.token}
        await db.runs.update_one(where, change)
    return [run for run in taken if run.unreadable is None]


async def release_set_aside(db: Database, runs: Sequence[Run]) -> None:
    """Let claims find these readable runs again, which were set aside or have a damaged lane."""
    for run in runs:
        where = {"_id": run.id, "state": "pending"}
        await db.runs.update_one(where, {"$set": {"lane": lane_of(run)}})


async def _find_unanswered(db: Database, worker: str, unanswered: UnansweredClaims) -> list[Run]:
    """The runs that an earlier claim of this worker took, though its caller got an error."""
    for nonce, ids in unanswered.of(worker):
        taken = await _read_taken(db, nonce, ids, settled=True)
        unanswered.discard(nonce)
        if taken:
            return taken
    return []


async def _send(db: Database, chosen: Sequence[Document], put: Document) -> int:
    """Take the runs whose token is still the one that was read. Most have the same token, so this
    is mostly one update."""
    alike: dict[tuple[int, int | None], list[str]] = {}
    for run in chosen:
        alike.setdefault((run["token"], run.get("now")), []).append(run["_id"])
    updates: list[tuple[Document, Any]] = [
        ({"_id": {"$in": ids}, "state": "pending", "token": token}, _change(db, put, now))
        for (token, now), ids in alike.items()
    ]
    if len(updates) == 1:
        done = await db.runs.update_many(*updates[0], hint=BY_ID, session=db.session)
        return done.matched_count
    operations = [UpdateMany(where, change, hint=BY_ID) for where, change in updates]
    result = await db.runs.bulk_write(operations, ordered=False, session=db.session)
    return result.matched_count


def _change(db: Database, put: Document, now: int | None) -> Document:
    change = {
        "$set": put,
        "$inc": {"token": 1, "attempt": 1},
        "$unset": {"progress": "", "evicted": ""},
    }
    if now is None:
        return db.time.stamped(change, "started_at", "leased_at")
    moment = db.time.stamp(now)
    return {**change, "$set": {**put, "started_at": moment, "leased_at": moment}}


async def next_due(db: Database, claim: Claim, since: int) -> datetime | None:
    """When the first run falls due that was not due yet at `since`, or when its rate limit allows
    it to start. One seek for each lane, and one for each job that is at its rate limit.

    A claim passes the time before its search. So a run that falls due while it searches is named,
    and the worker claims again at once.
    """
    lanes = await _lanes(db, claim)
    earliest = await _next_start(db, lanes, since)
    for part in chunks(lanes, MOST_MERGED_LANES):
        walk = db.runs.find(coming_runs(part, since), {"run_at": 1}).sort("run_at", 1).limit(1)
        for run in await walk.to_list(1):
            if not is_moment(run.get("run_at")):
                continue  # damaged; the server sorts it behind all others
            if earliest is None or run["run_at"] < earliest:
                earliest = run["run_at"]
    return read_moment(earliest)


async def _next_start(db: Database, lanes: Sequence[Document], since: int) -> int | None:
    """When a rate limit lets a run start that is due and that it held back at `since`."""
    capacity = await read_limits(db, {lane["g"] for lane in lanes}, since)
    held_back = [job_id for job_id in capacity.rate_limits if not capacity.rates.allows(job_id)]
    due = []
    for job_id in held_back:
        own = [lane for lane in lanes if lane["g"] == job_id]
        if await db.runs.find_one(due_runs(db, own), {"_id": 1}) is not None:
            due.append(job_id)
    return capacity.rates.next_start(due)


def coming_runs(lanes: Sequence[Document], since: int) -> Document:
    return {
        "state": "pending",
        "lane": {"$in": list(lanes)},
        "run_at": {"$gt": since},
    }
