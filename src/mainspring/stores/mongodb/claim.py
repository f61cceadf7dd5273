"""Claim: selects due runs and takes them.

A lane is a queue, a handler and, if the job is limited, the job; else one of a few parts. The index
keeps the pending runs of a lane together, by priority and time. A claim has three steps:

1. It reads which lanes have pending runs, one key each, and keeps those that it may take from.
   While other clients claim too, it keeps its own part of them (claim_partition.py).
2. It reads the first due runs of these lanes, as many as it wants.
3. It takes the runs in one update, which writes the nonce of the claim, and reads the runs that
   have this nonce. If it wants only a few runs, step 2 has read them whole, and they are not read
   again. If runs of limited jobs are among them, this step is a transaction that counts again
   (concurrency.py).

The cost depends on the number of lanes with pending runs and of runs taken, not on the backlog. A
million pending runs, runs of next year with a high priority, runs of a handler that this worker
lacks and runs of a job at its limit cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import UpdateMany
from pymongo.errors import PyMongoError

from mainspring.core.model import Run, replace
from mainspring.stores.mongodb.claim_partition import ClaimPartition
from mainspring.stores.mongodb.codec import (
    LIVE_STATES,
    RUN_FIELDS,
    SET_ASIDE,
    has_numbers,
    is_lane,
    is_moment,
    lane_part,
    read_run,
    to_us,
)
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.concurrency import FreeCapacity, read_limits
from mainspring.stores.mongodb.errors import ambiguous
from mainspring.stores.mongodb.rates import count_starts
from mainspring.stores.mongodb.server_clock import read_moment, span_us
from mainspring.stores.mongodb.transaction import WriteConflict, run_once
from mainspring.stores.protocol import Claim

__all__ = [
    "Taken",
    "UnansweredClaims",
    "claim_runs",
    "next_due",
    "release_set_aside",
    "stamp_lanes",
]

TRIES = 40
MOST_MERGED_LANES = 100
"""Lanes in one find: MongoDB merges up to 200 walks, and sorts all it finds beyond that."""
PRIORITIES = list(range(10))
READ_WHOLE_LIMIT = 100
"""Up to so many runs are read whole at once, which saves a read. Of more runs, other clients may
take most first."""
_KEY_FIELDS = dict.fromkeys(("job_id", "priority", "run_at", "token", "attempt"), 1)
"""For a claim of many runs whose order one find gives: takes half the time of `_ORDER_FIELDS`."""
_ORDER_FIELDS = {**_KEY_FIELDS, "lane": 1, "created_at": 1}
_ALL_FIELDS = dict.fromkeys(RUN_FIELDS, 1)
ORDER = [("priority", -1), ("run_at", 1), ("created_at", 1)]


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
        since, found = await _select(db, claim, partition)
        if found is None:
            continue
        chosen, capacity, left = found
        if not chosen:
            return Taken([], more=False, since=since)
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


async def _select(
    db: Database, claim: Claim, partition: ClaimPartition
) -> tuple[int, tuple[list[Document], FreeCapacity, bool] | None]:
    """The server's time before the search, and what was found: the runs to take, in order, the
    capacity under their limits, and whether runs are left to other clients. None: search again.

    The time is read beside the lanes, so it costs no round trip.
    """
    guess = partition.limited
    lanes, capacity, now = await asyncio.gather(_lanes(db, claim), read_limits(db, guess), db.now())
    limited = {lane["g"] for lane in lanes if lane["g"]}
    if not limited <= guess:
        capacity = await read_limits(db, limited)
    partition.limited = capacity.limited & limited
    if not limited:
        chosen, left = await _first_of_own_part(db, lanes, claim, partition)
        return to_us(now), None if await _correct_lanes(db, chosen) else (chosen, capacity, left)
    if capacity.rate_limits:  # so few are read whole, with the moment at which they start
        claim = replace(claim, limit=min(claim.limit, READ_WHOLE_LIMIT))
    runs = await _under_limits(db, lanes, capacity, claim)
    return to_us(now), None if runs is None else (runs, capacity, False)


async def _first_of_own_part(
    db: Database, lanes: Sequence[Document], claim: Claim, partition: ClaimPartition
) -> tuple[list[Document], bool]:
    """The first runs of this client's part of the lanes, or of all lanes if the rest may not be
    left to other clients; and whether this client wants more than its part has."""
    own, others = partition.split(lanes)
    excluded = _excluded_jobs(claim)
    found, first = await asyncio.gather(
        _first_due_runs(db, own, claim.limit, excluded, _KEY_FIELDS),
        _first_due_runs(db, others, 1, excluded),
    )
    wants_more = len(found) < claim.limit
    if not first or (found and partition.may_skip(first[0], found[-1], wants_more=wants_more)):
        return found, bool(first) and wants_more
    return await _first_due_runs(db, lanes, claim.limit, excluded, _KEY_FIELDS), False


async def _under_limits(
    db: Database, lanes: Sequence[Document], capacity: FreeCapacity, claim: Claim
) -> list[Document] | None:
    """The first runs that there is capacity for. None: the caller must search again."""
    width = claim.limit
    _, found = await asyncio.gather(capacity.count(db), _first(db, lanes, capacity, claim))
    taken: dict[str, Document] = {}
    while not await _correct_lanes(db, found):
        held_back = False
        for run in found:
            if run["_id"] in taken:
                continue
            if len(taken) == width:
                break
            if capacity.left(run["lane"]["g"]):
                capacity.take(run["lane"]["g"])
                taken[run["_id"]] = run
            else:
                held_back = True
        if len(taken) == width or not held_back:
            return sorted(taken.values(), key=_claim_order)
        found = await _first(db, lanes, capacity, claim, len(taken))
    return None


async def _first(
    db: Database, lanes: Sequence[Document], capacity: FreeCapacity, claim: Claim, known: int = 0
) -> list[Document]:
    """The first runs of the lanes that have capacity left: no more than could be taken."""
    open_lanes = [lane for lane in lanes if capacity.left(lane["g"])]
    most = capacity.most_runs(lane["g"] for lane in open_lanes)
    count = claim.limit if most is None else min(claim.limit, most)
    return await _first_due_runs(
        db, open_lanes, count + known if count else 0, _excluded_jobs(claim)
    )


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


def _excluded_jobs(claim: Claim) -> frozenset[str]:
    return frozenset(job_id for job_id, most in claim.most.items() if most <= 0)


def due_runs(db: Database, lanes: Sequence[Document]) -> Document:
    due = {"$lte": ["$run_at", db.time.now]}
    return {"state": "pending", "lane": {"$in": list(lanes)}, "$expr": due}


async def _first_due_runs(
    db: Database,
    lanes: Sequence[Document],
    count: int,
    excluded: frozenset[str] = frozenset(),
    shown: Document = _ORDER_FIELDS,
) -> list[Document]:
    """The first due runs of these lanes, in the order of the claim. Few runs are read whole.

    Runs whose numbers are damaged are set aside, because the write of their whole batch would fail.
    """
    if not count:
        return []
    if count <= READ_WHOLE_LIMIT:
        shown = {**_ALL_FIELDS, "now": db.time.now}
    elif len(lanes) > MOST_MERGED_LANES:
        shown = _ORDER_FIELDS
    for _ in range(TRIES):
        found = await _read_first_due_runs(db, lanes, count, excluded, shown)
        damaged = [run["_id"] for run in found if not _can_be_taken(run, shown)]
        if not damaged:
            break
        where = {"_id": {"$in": damaged}, "state": "pending"}
        await db.runs.update_many(where, {"$set": {"lane.p": SET_ASIDE}}, hint=BY_ID)
        found = [run for run in found if run["_id"] not in damaged]
    if len(lanes) > MOST_MERGED_LANES:
        found.sort(key=_claim_order)
        found = found[:count]
    return found


def _can_be_taken(run: Document, shown: Document) -> bool:
    return (
        has_numbers(run)
        and isinstance(run.get("job_id"), str)
        and ("created_at" not in shown or is_moment(run.get("created_at")))
    )


async def _read_first_due_runs(
    db: Database,
    lanes: Sequence[Document],
    count: int,
    excluded: frozenset[str],
    shown: Document,
) -> list[Document]:
    found: list[Document] = []
    for part in chunks(lanes, MOST_MERGED_LANES):
        where = due_runs(db, part)
        if excluded:
            where["job_id"] = {"$nin": sorted(excluded)}
        walk = db.runs.find(where, shown)
        walk = walk.sort(ORDER).limit(count).batch_size(count)
        found += await walk.to_list(count)
    return found


def _claim_order(run: Document) -> tuple[int, int, int]:
    return -run["priority"], run["run_at"], run["created_at"]


async def _correct_lanes(db: Database, runs: Iterable[Document]) -> bool:
    """Move runs to the lane of their job if it has a limit by now. Whether any had to move."""
    job_ids = {run["job_id"] for run in runs if "lane" not in run or not run["lane"]["g"]}
    if not job_ids:
        return False
    limited = db.jobs.find({"_id": {"$in": list(job_ids)}, "limit.key": {"$exists": True}})
    found = [job["_id"] async for job in limited]
    for job_id in found:
        await stamp_lanes(db, job_id, limited=True)
    return bool(found)


async def stamp_lanes(db: Database, job_id: str, *, limited: bool) -> None:
    """Move a job's live runs to its own lane, or back to the common ones if it has no limit."""
    where = {"job_id": job_id, "state": {"$in": list(LIVE_STATES)}}
    await db.runs.update_many(where, {"$set": {"lane.g": job_id if limited else ""}})


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
    """Let claims find these readable runs again, which were set aside or have a damaged lane. If
    their job has a limit, the next claim moves them to its lane."""
    is_text = {"$eq": [{"$type": "$lane.g"}, "string"]}
    for run in runs:
        part = {"$cond": [{"$eq": ["$lane.g", ""]}, lane_part(run.id), 0]}
        await db.runs.update_one(
            {"_id": run.id, "state": "pending"},
            [
                {"$set": {"lane.g": {"$cond": [is_text, "$lane.g", ""]}}},
                {"$set": {"lane.p": part}},
            ],
        )


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
    it to start. One seek for each lane and priority, and one for each job that is at its rate
    limit.

    A claim passes the time before its search. So a run that falls due while it searches is named,
    and the worker claims again at once.
    """
    lanes = await _lanes(db, claim)
    earliest = await _next_start(db, lanes, since)
    for part in chunks(lanes, MOST_MERGED_LANES // len(PRIORITIES)):
        walk = db.runs.find(coming_runs(part, since), {"run_at": 1}).sort("run_at", 1).limit(1)
        for run in await walk.to_list(1):
            if not is_moment(run.get("run_at")):
                continue  # damaged; the server sorts it behind all others
            if earliest is None or run["run_at"] < earliest:
                earliest = run["run_at"]
    return read_moment(earliest)


async def _next_start(db: Database, lanes: Sequence[Document], since: int) -> int | None:
    """When a rate limit lets a run start that is due and that it held back at `since`."""
    capacity = await read_limits(db, {lane["g"] for lane in lanes if lane["g"]}, since)
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
        "priority": {"$in": PRIORITIES},
        "run_at": {"$gt": since},
    }
