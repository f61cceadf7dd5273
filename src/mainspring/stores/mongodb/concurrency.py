"""Concurrency: how many runs of a job, or of jobs that share a key, may be running.

What counts are running runs with a valid lease, wherever they were claimed: a query tells. What
the query cannot tell is what others are about to claim. So each limit has a document:

    {_id: "job:mail", mark: ObjectId, reserved: [{run, token, fence, by}]}

A claim (or the renewal of a lapsed lease) counts, and then writes its reservations there by
compare-and-set on the mark. Only one of two that counted at the same time gets through; the
other counts again. Then the run itself is written, guarded by the token and fence reserved. One
such round serves a whole batch, and the place stays taken as long as the run runs.

Two things could make the count wrong, and are fenced off before it is used:

- A lapsed lease does not count, yet its owner might renew it at this moment. So the run is marked
  `evicted` first, guarded by the lease seen; a renewal of an evicted run needs a place anew.
- A client that reserved and then died holds a place for nothing. Ten seconds after another has
  seen the reservation, that one raises the run's `fence`: the write that was to come finds it
  changed and fails, and the reservation is void. Where the run has ended meanwhile (somebody
  cancelled it), it does so at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError

from mainspring.stores.mongodb.collections import Database, Document
from mainspring.stores.mongodb.server_clock import until

__all__ = ["Room", "can_be_fenced", "job_of", "lapsed", "room_under"]

VOID_AFTER = 10.0
"""Seconds from the first sight of a reservation to its end: longer than any time-out."""


@dataclass(slots=True)
class Room:
    """How many more runs each limited job may have, as far as one client can see: all that its
    limit allows, until `count` has seen what is running."""

    by: ObjectId
    """Who asks, and whose own reservations do not stand in its way."""
    limits: dict[str, tuple[int, str]] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    marks: dict[str, ObjectId | None] = field(default_factory=dict)
    """What was read there. A number would do, but for two primaries that both count on."""
    standing: dict[str, list[Document]] = field(default_factory=dict)
    sharing: dict[str, str] = field(default_factory=dict)
    reserved: list[tuple[Document, str, float]] = field(default_factory=list)

    def limited(self, job_id: str) -> bool:
        return job_id in self.limits

    def left(self, job_id: str) -> bool:
        most, key = self.limits.get(job_id, (1, ""))
        return not key or self.used[key] < most

    def most(self, job_ids: Iterable[str]) -> int | None:
        """How many runs of these jobs could be taken in all; None where one has no limit."""
        jobs = list(job_ids)
        if not all(job_id in self.limits for job_id in jobs):
            return None
        return sum(max(0, m - self.used[key]) for m, key in {self.limits[j] for j in jobs})

    def take(self, job_id: str) -> None:
        if job_id in self.limits:
            self.used[self.limits[job_id][1]] += 1

    async def count(self, db: Database) -> bool:
        """Fill in what is taken. False: something moved meanwhile, begin anew."""
        if not self.limits:
            return True
        sharing = self.sharing
        runs = await _seen(db, sharing, [one["run"] for one, _, _ in self.reserved])
        if not await _evict(db, [run for run in runs.values() if _to_evict(run, sharing)]):
            return False
        taken = {(sharing[r["job_id"]], r["_id"]) for r in runs.values() if _counts(r, sharing)}
        void = []
        for one, key, age in self.reserved:
            run = runs.get(one["run"])
            if run is None or _moved_on(one, run):
                continue  # decided: if it runs, it is counted
            if age > VOID_AFTER or run.get("state") not in _TO_COME:
                void.append(one)
                continue
            self.standing.setdefault(key, []).append(one)
            taken.add((key, one["run"]))
        if not await _void(db, void):
            return False
        self.used = Counter(key for key, _ in taken)
        return True

    async def reserve(self, db: Database, runs: Sequence[Document]) -> bool:
        """Reserve places for runs of limited jobs. False: another came first, count again."""
        wanted: dict[str, list[Document]] = {}
        for run in runs:
            if run["job_id"] in self.limits:
                wanted.setdefault(self.limits[run["job_id"]][1], []).append(run)
        for key, mine in wanted.items():
            if not await self._write(db, key, mine):
                return False
        return True

    async def _write(self, db: Database, key: str, runs: Sequence[Document]) -> bool:
        mine = [
            {"run": r["_id"], "token": r["token"], "fence": r.get("fence", 0), "by": self.by}
            for r in runs
        ]
        put = {"mark": ObjectId(), "reserved": [*self.standing.get(key, ()), *mine]}
        if key not in self.marks:
            try:
                await db.limits.insert_one({"_id": key, **put})
            except DuplicateKeyError:
                return False
            return True
        read = {"_id": key, "mark": self.marks[key]}
        result = await db.limits.update_one(read, {"$set": put})
        return result.matched_count == 1


def lapsed(db: Database) -> Any:
    """In a `find`: whether a running run's lease is over."""
    over = {"$lte": [until("leased_at", "lease"), db.time.now]}
    return {"$and": [{"$gt": ["$leased_at", None]}, over]}


async def room_under(
    db: Database, job_ids: Iterable[str], by: ObjectId, guess: Collection[str] = ()
) -> Room:
    """The limits of these jobs and what is reserved under them. What is running has to be read
    after it, by `count`: read before, it would miss what was claimed in between.

    `guess`: the keys of their limits as they were the last time, which saves a round.
    """
    room = Room(by)
    asked = list(job_ids)
    if not asked:
        return room
    sharing, reserved = await asyncio.gather(_limits(db, asked, room), _reserved(db, guess))
    keys = {key for _, key in room.limits.values()}
    if not keys <= set(guess):
        reserved = await _reserved(db, keys)
    room.sharing = sharing
    for kept in reserved:
        if (key := kept["_id"]) in keys:
            room.marks[key] = kept.get("mark")
            others = [one for one in kept["reserved"] if one["by"] != by]
            room.reserved += _with_ages(db, key, others)
    return room


async def _limits(db: Database, job_ids: Sequence[str], room: Room) -> dict[str, str]:
    """Fill in the limits of these jobs; give every job that shares one of them, with its key."""
    limited = {"_id": {"$in": job_ids}, "limit": {"$exists": True}}
    async for job in db.jobs.find(limited, {"limit": 1}):
        room.limits[job["_id"]] = _read_limit(job)
    sharing = {job_id: key for job_id, (_, key) in room.limits.items()}
    shared = sorted({key for key in sharing.values() if key.startswith("key:")})
    if shared:
        found = db.jobs.find({"limit.key": {"$in": shared}}, {"limit": 1})
        sharing |= {job["_id"]: job["limit"]["key"] async for job in found}
    return sharing


def _read_limit(job: Document) -> tuple[int, str]:
    """How many, and the key. Of a limit that is damaged nobody knows how many runs it allows: none
    is claimed."""
    limit = job["limit"] if isinstance(job["limit"], dict) else {}
    most, key = limit.get("most"), limit.get("key")
    if isinstance(most, int) and isinstance(key, str) and key:
        return most, key
    return 0, f"job:{job['_id']}"


async def _reserved(db: Database, keys: Collection[str]) -> list[Document]:
    return await db.limits.find({"_id": {"$in": list(keys)}}).to_list() if keys else []


def _with_ages(
    db: Database, key: str, reserved: Sequence[Document]
) -> list[tuple[Document, str, float]]:
    """Reservations of others, with the limit's key and for how long we have seen them there."""
    now = db.time.elapsed()
    before = db.sightings.get(key, {})
    names = [(one["run"], one["by"]) for one in reserved]
    seen = db.sightings[key] = {name: before.get(name, now) for name in names}
    return [(one, key, now - seen[name]) for one, name in zip(reserved, names, strict=True)]


_TO_COME = ("pending", "running")
"""The states of a run that a claim or a renewal may be about to write."""


async def _seen(db: Database, jobs: Iterable[str], reserved: Sequence[str]) -> dict[str, Document]:
    """What runs of these jobs, and what is reserved, in one look."""
    running = {"state": "running", "job_id": {"$in": list(jobs)}}
    where = {"$or": [running, {"_id": {"$in": list(reserved)}}]} if reserved else running
    names = ("state", "job_id", "token", "fence", "leased_at", "evicted")
    shown = {**dict.fromkeys(names, 1), "lapsed": lapsed(db)}
    return {run["_id"]: run async for run in db.runs.find(where, shown)}


def job_of(run: Document) -> str:
    """Its job; none where that is damaged."""
    job_id = run.get("job_id")
    return job_id if isinstance(job_id, str) else ""


def can_be_fenced(run: Document) -> bool:
    """Whether its fence can be raised. One that is damaged is not renewed once its lease is over,
    and so needs no fence."""
    return isinstance(run.get("fence", 0), int | float)


def _counts(run: Document, sharing: dict[str, str]) -> bool:
    return run.get("state") == "running" and not run["lapsed"] and job_of(run) in sharing


def _to_evict(run: Document, sharing: dict[str, str]) -> bool:
    return (
        run.get("state") == "running"
        and job_of(run) in sharing
        and run["lapsed"]
        and not run.get("evicted")
        and can_be_fenced(run)
    )


def _moved_on(one: Document, run: Document) -> bool:
    return (run.get("token"), run.get("fence", 0)) != (one["token"], one["fence"])


async def _evict(db: Database, runs: Sequence[Document]) -> bool:
    """Mark runs whose lease is over; False if an owner was quicker."""
    if not runs:
        return True
    marks = [
        UpdateOne(
            {
                "_id": r["_id"],
                "state": "running",
                "token": r.get("token"),
                "leased_at": r["leased_at"],
            },
            {"$set": {"evicted": True}, "$inc": {"fence": 1}},
        )
        for r in runs
    ]
    return (await db.runs.bulk_write(marks, ordered=False)).matched_count == len(runs)


async def _void(db: Database, reservations: Sequence[Document]) -> bool:
    if not reservations:
        return True
    raises = [
        UpdateOne(
            {"_id": one["run"], "token": one["token"], **_fence(one["fence"])},
            {"$inc": {"fence": 1}},
        )
        for one in reservations
    ]
    return (await db.runs.bulk_write(raises, ordered=False)).matched_count == len(reservations)


def _fence(fence: int) -> Document:
    """A fence of zero is not written down."""
    return {"fence": fence or None}
