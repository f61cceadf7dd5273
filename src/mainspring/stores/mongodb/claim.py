"""Claim: selects due runs and takes them. Renew: extends their leases.

A lane is a priority, a job, a queue, a handler and one of a few parts. The index keeps the pending
runs of a lane together, by time, and lanes in the order in which claims take from them. A claim has
these steps:

1. It reads which lanes have due runs, one key each, beginning behind the job that had the last turn
   if there are many, and keeps those that it may take from. While other clients claim too, it keeps
   its own part of them (`ClaimPartition`). At the same time it reads the limits of the jobs that it
   expects to find there, and the server's time.
2. It reads the first due runs of the jobs, as many as each gives when they take turns
   (`stores/limits.py`).
3. It takes the runs in one update, which writes the nonce of the claim. If other clients took some
   of the runs first, it reads the runs that have this nonce. If runs of limited jobs are among
   them, this step is a transaction that counts again (limits.py).

The cost depends on the number of lanes passed and of runs taken, not on the backlog. A million
pending runs, runs of next year with a high priority, runs of a handler that this worker lacks and
runs of a job at its limit cost one key for each lane.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import UpdateMany
from pymongo.errors import PyMongoError

from mainspring.core.model import Run
from mainspring.errors import StoreUnavailable
from mainspring.stores.codec import progress_text
from mainspring.stores.limits import ClaimLimits, Turns, first_round, turn_order
from mainspring.stores.mongodb.codec import (
    LANE_PARTS,
    SET_ASIDE,
    has_numbers,
    is_lane,
    is_moment,
    lane_of,
    lane_priority,
    lanes_from_turn,
    read_run,
)
from mainspring.stores.mongodb.database import (
    BY_ID,
    MAJORITY,
    Database,
    Document,
    chunks,
    read_moment,
    span_us,
)
from mainspring.stores.mongodb.limits import (
    FreeCapacity,
    count_starts,
    job_of,
    lapsed_condition,
    read_limits,
)
from mainspring.stores.mongodb.transaction import WriteConflict, in_transaction, run_once
from mainspring.stores.protocol import Claim, Held, Renewed

TRIES = 40
MOST_MERGED_LANES = 100
"""Lanes in one find: MongoDB merges up to 200 walks, and sorts all it finds beyond that."""
FIRST_LANES = 200
"""So many lanes more than it might need a claim reads at first."""
MOST_EXPECTED_JOBS = 500
ORDER = {"run_at": 1, "created_at": 1}
_LEASE_FIELDS = dict.fromkeys(
    ("job_id", "token", "leased_at", "evicted", "cancel_requested", "reason"), 1
)

UnansweredClaims = dict[ObjectId, tuple[str, list[str]]]
"""Claims of this client that ended with an error and may have taken runs: the worker and the ids
that it wanted, by nonce. The next claim of the worker looks these runs up first. Otherwise runs
taken during a failover would wait until their leases lapse."""


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
        return Taken([], more=False, since=await db.now())
    if again := await _readable(db, await _find_unanswered(db, claim.worker, unanswered)):
        return Taken(again, more=True)
    nonce, since = ObjectId(), 0
    partition.record_claim()
    for tries in range(TRIES):
        if tries:
            await partition.pause(tries)
        since, selected = await _select(db, claim, partition)
        if not selected.runs:
            return Taken([], more=False, since=since)
        try:
            taken = await _take(db, claim, selected, nonce)
        except PyMongoError:
            unanswered[nonce] = claim.worker, _ids(selected.runs)
            raise
        missed = len(taken) < len(selected.runs)
        partition.record_contention(missed)
        if readable := await _readable(db, taken):
            return Taken(readable, more=missed or selected.left)
    return Taken([], more=True, since=since)


class _Selected(NamedTuple):
    """The runs to take, in order, the capacity under their limits, whether more were left to other
    clients, and the server's time."""

    runs: list[Document]
    capacity: FreeCapacity
    left: bool
    now: int


async def _select(db: Database, claim: Claim, partition: ClaimPartition) -> tuple[int, _Selected]:
    """The server's time before the search, and what was found.

    The time is read beside the lanes, so it costs no round trip.
    """
    expected = db.time.expected_now() or await db.now()
    width = claim.limit * LANE_PARTS + FIRST_LANES
    while True:
        guess = partition.jobs
        (lanes, complete), capacity, now = await asyncio.gather(
            _due_lanes(db, claim, expected, width), read_limits(db, guess), db.now()
        )
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
            return min(expected, now), _Selected(runs, capacity, left, now)
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
    limits = ClaimLimits(claim, capacity.limits, capacity.used, capacity.rates.copy())
    chosen: list[Document] = []
    for _, level in groupby(lanes, key=itemgetter("r")):
        by_job = first_round(((lane["g"], lane) for lane in level), limits)
        turns = Turns[Document](list(by_job), limits)
        while missing := turns.missing():
            wanted = {job_id: (by_job[job_id], count) for job_id, count in missing.items()}
            runs = await _first_due_runs(db, wanted, now)
            for job_id, count in missing.items():
                turns.add(job_id, count, runs.get(job_id, ()))
        chosen += turns.chosen()
        if limits.full:
            break
    return chosen


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
        runs = await _read_first_due_runs(db, wanted, now)
        damaged = [run["_id"] for run in runs if not _can_be_taken(run)]
        if not damaged:
            break
        where = {"_id": {"$in": damaged}, "state": "pending"}
        await db.runs.update_many(where, {"$set": {"lane.p": SET_ASIDE}}, hint=BY_ID)
        runs = [run for run in runs if run["_id"] not in damaged]
    by_job: dict[str, list[Document]] = {}
    for run in runs:
        by_job.setdefault(run["lane"]["g"], []).append(run)
    return by_job


def _can_be_taken(run: Document) -> bool:
    return has_numbers(run) and run["lane"]["g"] == run.get("job_id")


async def _read_first_due_runs(db: Database, wanted: _Wanted, now: int) -> list[Document]:
    """Runs of several jobs are read with one command, which takes a tenth of the time of a command
    for each."""
    runs: list[Document] = []
    size = sum(count for _, count in wanted.values()) + 1  # one response, no second call
    for part in chunks(wanted.values(), MOST_MERGED_LANES):
        first, *rest = (_first_of_job(lanes, count, now) for lanes, count in part)
        others = [{"$unionWith": {"coll": db.runs.name, "pipeline": other}} for other in rest]
        runs += await (await db.runs.aggregate([*first, *others], batchSize=size)).to_list()
    return runs


def _first_of_job(lanes: Sequence[Document], count: int, now: int) -> list[Document]:
    return [{"$match": due_runs(lanes, now)}, {"$sort": ORDER}, {"$limit": count}]


def due_runs(lanes: Sequence[Document], now: int) -> Document:
    return {"state": "pending", "lane": {"$in": list(lanes)}, "run_at": {"$lte": now}}


async def _take(db: Database, claim: Claim, selected: _Selected, nonce: ObjectId) -> list[Run]:
    """Take those of the runs that no other client took first, in order.

    Under limits: as many as there is capacity for, and nothing if another client took one of them
    first, or claims under the same limits at the same time.
    """
    put = {
        "began": False,
        "state": "running",
        "worker": claim.worker,
        "lease": span_us(claim.lease),
        "nonce": nonce,
    }
    runs = selected.runs
    now = None if db.sharded else selected.now  # each shard has its own clock
    if not selected.capacity.limited.isdisjoint(run["job_id"] for run in runs):
        try:
            return await run_once(db, lambda db: _take_within_limits(db, selected, put, now))
        except WriteConflict:
            return []
    matched = await _send(db, runs, put, now)
    if not matched:
        return []
    return await _read_taken(db, runs, put, None if matched < len(runs) else now)


async def _take_within_limits(
    db: Database, selected: _Selected, put: Document, now: int | None
) -> list[Run]:
    """Called in a transaction."""
    seen = selected.capacity
    jobs = {run["job_id"] for run in selected.runs}
    await seen.lock(db, jobs)
    capacity = await read_limits(db, jobs, now)
    if any(seen.limits.get(job_id) != capacity.limits.get(job_id) for job_id in jobs):
        raise WriteConflict  # otherwise it might have locked the documents of other limits
    await capacity.count(db)
    fitting = []
    for run in selected.runs:
        if capacity.left(run["job_id"]):
            capacity.take(run["job_id"])
            fitting.append(run)
    if not fitting:
        return []
    await count_starts(db, capacity.rates)
    if await _send(db, fitting, put, now) < len(fitting):
        raise WriteConflict
    return await _read_taken(db, fitting, put, now)


async def _send(db: Database, runs: Sequence[Document], put: Document, now: int | None) -> int:
    """Take the runs whose token is still the one that was read. Gives how many these are. Most runs
    have the same token, so this is mostly one update."""
    alike: dict[int, list[str]] = {}
    for run in runs:
        alike.setdefault(run["token"], []).append(run["_id"])
    change = _change(db, put, now)
    operations = [
        UpdateMany({"_id": {"$in": ids}, "state": "pending", "token": token}, change, hint=BY_ID)
        for token, ids in alike.items()
    ]
    result = await db.runs.bulk_write(operations, ordered=False, session=db.session)
    return result.matched_count


def _change(db: Database, put: Document, now: int | None) -> Document:
    """What takes a run. `now`: the time of its start; None: the time of the server that holds the
    run."""
    change = {
        "$set": put,
        "$inc": {"token": 1, "attempt": 1},
        "$unset": {"progress": "", "evicted": ""},
    }
    if now is None:
        return db.time.stamped(change, "started_at", "leased_at")
    moment = db.time.stamp(now)
    return {**change, "$set": {**put, "started_at": moment, "leased_at": moment}}


async def _read_taken(
    db: Database, runs: Sequence[Document], put: Document, now: int | None
) -> list[Run]:
    """Those of the runs that this claim took, in order: all, if the time of their start is given.
    Then they need not be read again."""
    if now is None:
        return await _find_taken(db, put["nonce"], _ids(runs))
    moment = db.time.stamp(now)
    common = {**put, "started_at": moment, "leased_at": moment, "progress": None}
    return [
        read_run({**run, **common, "token": run["token"] + 1, "attempt": run["attempt"] + 1})
        for run in runs
    ]


async def _find_taken(db: Database, nonce: ObjectId, ids: Sequence[str]) -> list[Run]:
    where = {"_id": {"$in": list(ids)}, "nonce": nonce, "state": "running"}
    walk = db.runs.find(where, hint=BY_ID, session=db.session, batch_size=len(ids) + 1)
    taken = {run["_id"]: run async for run in walk}
    return [read_run(taken[run_id]) for run_id in ids if run_id in taken]


async def _find_unanswered(db: Database, worker: str, unanswered: UnansweredClaims) -> list[Run]:
    """The runs that an earlier claim of this worker took, though its caller got an error.

    They are read as a majority has them, after every earlier write to them. An update that changes
    nothing waits until a majority has it, and so all writes before it. The read that follows is no
    older, even if the primary changes meanwhile.
    """
    for nonce, (owner, ids) in list(unanswered.items()):
        if owner != worker:
            continue
        async with db.client.start_session() as session:
            nothing = {"_id": {"$in": ids}, "nonce": ObjectId()}
            put = {"$set": {"nonce": None}}
            await db.runs.update_many(nothing, put, hint=BY_ID, session=session)
            where = {"_id": {"$in": ids}, "nonce": nonce, "state": "running"}
            majority = db.runs.with_options(read_concern=MAJORITY)
            runs = await majority.find(where, hint=BY_ID, session=session).to_list()
        del unanswered[nonce]
        if runs:
            return [read_run(run) for run in runs]
    return []


def _ids(runs: Sequence[Document]) -> list[str]:
    return [run["_id"] for run in runs]


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
        if await db.runs.find_one(due_runs(own, since), {"_id": 1}) is not None:
            due.append(job_id)
    return capacity.rates.next_start(due)


def coming_runs(lanes: Sequence[Document], since: int) -> Document:
    return {"state": "pending", "lane": {"$in": list(lanes)}, "run_at": {"$gt": since}}


# -- renewals -------------------------------------------------------------------------------
#
# A valid lease is extended at once. If a lease has lapsed, another run may have taken the capacity
# of the job's limit, so a transaction counts first (limits.py).


async def renew_leases(db: Database, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
    kept: dict[str, Renewed] = {}
    for part in chunks(held):
        kept |= await _renew(db, {item.id: item for item in part}, span_us(lease))
    return [kept[item.id] for item in held if item.id in kept]


async def _renew(db: Database, held: Mapping[str, Held], lease: int) -> dict[str, Renewed]:
    """If an update matches fewer runs than were read, some were taken away since, or a chunk that
    moves hid them for a moment: then all are read again."""
    for _ in range(TRIES):
        runs = await _still_held(db, held)
        lapsed_jobs = {job_of(run) for run in runs.values() if _has_lapsed(run)}
        if (await read_limits(db, lapsed_jobs)).limits:
            runs = await in_transaction(db, partial(_extend_within_limits, held, lease))
        elif runs and await _extend(db, held, runs, lease) < len(runs):
            continue
        return {
            run_id: Renewed(run_id, bool(run.get("cancel_requested")), run.get("reason"))
            for run_id, run in runs.items()
        }
    raise StoreUnavailable(f"{len(held)} leases changed each time that they were renewed")


async def _still_held(db: Database, held: Mapping[str, Held]) -> dict[str, Document]:
    """Those that are running under the token held."""
    where = {"_id": {"$in": list(held)}, "state": "running"}
    shown = {**_LEASE_FIELDS, "lapsed": lapsed_condition(db)}
    walk = db.runs.find(where, shown, hint=BY_ID, session=db.session)
    return {run["_id"]: run async for run in walk if run.get("token") == held[run["_id"]].token}


def _has_lapsed(run: Document) -> bool:
    return bool(run["lapsed"] or run.get("evicted"))


async def _extend_within_limits(
    held: Mapping[str, Held], lease: int, db: Database
) -> dict[str, Document]:
    """Extend the leases that are valid, have no limit, or fit under their limit. Gives their runs.
    Called in a transaction."""
    seen = await _still_held(db, held)
    jobs = {job_of(run) for run in seen.values() if _has_lapsed(run)}
    capacity = await read_limits(db, jobs)
    await capacity.lock(db, jobs)
    await capacity.count(db)
    fitting = {}
    for run_id, run in seen.items():
        if _has_lapsed(run):
            if not capacity.left(job_of(run)):
                continue
            capacity.take(job_of(run))
        fitting[run_id] = run
    if fitting and await _extend(db, held, fitting, lease) < len(fitting):
        raise WriteConflict
    return fitting


async def _extend(
    db: Database, held: Mapping[str, Held], runs: Mapping[str, Document], lease: int
) -> int:
    """Extend leases; gives how many. A lapsed one is extended only if nobody has renewed it since
    it was read."""
    groups: dict[Any, list[str]] = {}
    operations: list[UpdateMany] = []
    for run_id, run in runs.items():
        token, progress = held[run_id].token, progress_text(held[run_id].progress)
        if not _has_lapsed(run):
            groups.setdefault((token, progress), []).append(run_id)
            continue
        seen = {"state": "running", "token": token, "leased_at": run["leased_at"]}
        change = {**_extension(db, lease, progress), "$unset": {"evicted": ""}}
        operations.append(UpdateMany({"_id": run_id, **seen}, change, hint=BY_ID))
    for (token, progress), ids in groups.items():
        alike = {"_id": {"$in": ids}, "state": "running", "token": token, "evicted": None}
        operations.append(UpdateMany(alike, _extension(db, lease, progress), hint=BY_ID))
    result = await db.runs.bulk_write(operations, ordered=False, session=db.session)
    return result.matched_count


def _extension(db: Database, lease: int, progress: str | None) -> Document:
    return db.time.stamped({"$set": {"lease": lease, "progress": progress}}, "leased_at")


# -- several clients ------------------------------------------------------------------------

RECENT_SECONDS = 1.0
"""Seconds for which a client counts as one that claims after its last claim or hint."""

LONGEST_PAUSE = 0.1

MOST_OTHERS = 1000
"""How many clients are remembered before those are forgotten that no longer claim."""


class ClaimPartition:
    """Partitions lanes between concurrent clients, so that they rarely compete for the same run.

    A client that loses a run to another one claims from a part of the lanes from then on. The parts
    are divided among the clients that say, with their hints, that they claim. Without this, four
    clients would get two fifths of the runs that they chose, and each would read past what the
    others took. The clients need not agree: where two divide the lanes differently, some of their
    writes fail. A client that finds nothing in its own lanes claims from all of them.

    No run waits much longer because of it. A client never leaves a run to others that has a higher
    priority than those in its own lanes. And once a second it claims from all lanes: otherwise the
    runs in the part of a client that lacks their handler would wait until all others are done.

    `elapsed` gives seconds by a clock that only goes forward.
    """

    def __init__(self, rng: random.Random, elapsed: Callable[[], float]) -> None:
        self.me = ObjectId()
        self.jobs: Set[str] = frozenset()
        """The jobs that had due runs at the last claim. Mostly they still have."""
        self._rng = rng
        self._elapsed = elapsed
        self._met = 0
        self._came = -RECENT_SECONDS
        self._others: dict[ObjectId, float] = {}
        self._claimed_from_all = elapsed()

    @property
    def claims(self) -> bool:
        """Whether this client has claimed in the last second. Its hints tell this to the others."""
        return self._elapsed() - self._came < RECENT_SECONDS

    @property
    def knows_others(self) -> bool:
        """Whether other clients are known to claim, which take the runs that are left to them."""
        return bool(self._others)

    def record_other(self, other: ObjectId) -> None:
        """Another client claims."""
        self._others[other] = self._elapsed()
        if len(self._others) > MOST_OTHERS:
            self._forget_others()

    def _forget_others(self) -> None:
        now = self._elapsed()
        self._others = {by: at for by, at in self._others.items() if now - at < RECENT_SECONDS}

    def record_contention(self, missed: bool) -> None:
        self._met = 20 if missed else max(0, self._met - 1)

    def record_claim(self) -> None:
        """This client claims."""
        self._came = self._elapsed()

    def own_lanes(self, lanes: Sequence[Document]) -> Sequence[Document]:
        """This client's part of the lanes that have due runs. It is all lanes if this client has
        not lost a run to another client lately."""
        if not self._met or self._is_turn_of_all():
            return lanes
        self._forget_others()
        if self._others:
            partition = sorted([self.me, *self._others])
            parts = min(len(partition), LANE_PARTS)
            part = partition.index(self.me) % parts
        else:  # other clients claim, but their hints do not arrive
            parts, part = LANE_PARTS, self._rng.randrange(LANE_PARTS)
        first = min((lane["r"] for lane in lanes if lane["p"] % parts != part), default=0)
        return [lane for lane in lanes if lane["p"] % parts == part and lane["r"] <= first] or lanes

    def _is_turn_of_all(self) -> bool:
        now = self._elapsed()
        if now - self._claimed_from_all < RECENT_SECONDS:
            return False
        self._claimed_from_all = now
        return True

    async def pause(self, tries: int) -> None:
        """Wait before another try, longer each time: the client that came first may need a tenth of
        a second for its transaction, and a busy server needs longer still."""
        await asyncio.sleep(self._rng.uniform(0, min(LONGEST_PAUSE, 0.002 * 2 ** min(tries, 10))))
