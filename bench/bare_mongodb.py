"""What MongoDB itself can do: the loops a careful engineer would write with pymongo alone.

They work on the store's own collections, with its documents and indexes, at `w: majority`, and
leave the same documents behind: token, attempt, nonce and lease written at the claim, result and
attempt record at the end, payloads decoded. They know what the store has to find out: that there
is one queue, one handler and no limit, that no other client claims, and that all runs of a batch
end alike, so that one plain update ends them.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, CursorType, MongoClient, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from mainspring.stores.mongodb.codec import LANE_PARTS
from mainspring.stores.mongodb.url import DEFAULT_PREFIX

__all__ = ["Document", "connect", "drain", "drain_under_limit", "listen", "ping", "runs_of"]

Document = dict[str, Any]

BY_ID = [("_id", ASCENDING)]
ORDER = [("run_at", 1), ("created_at", 1)]
CLAIM_FIELDS = dict.fromkeys(
    ("lane", "job_id", "priority", "run_at", "created_at", "token", "fence"), 1
)
NOW = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
LEASE = 30_000_000
RENEW_SECONDS = 1.0
CHECK = 50
"""Claims between two looks whether anything is left: one in vain may have met the others."""


def connect(url: str) -> MongoClient[Document]:
    return MongoClient(url, w="majority", timeoutMS=5_000, tz_aware=True)


def runs_of(client: MongoClient[Document], database: str) -> Collection[Document]:
    return client[database][f"{DEFAULT_PREFIX}runs"]


def lanes(job: str) -> Document:
    return {"$in": [lane(job, part) for part in range(LANE_PARTS)]}


def lane(job: str, part: int = 0) -> Document:
    return {"r": 4, "g": job, "q": "default", "h": job, "p": part}


def claim(
    runs: Collection[Document],
    where: Document,
    batch: int,
    *,
    among: int = 1,
    more: Document | None = None,
) -> list[Document]:
    """Find, update many, find by nonce. `among`: choose from so many times as many."""
    due = {"state": "pending", "lane": where, "$expr": {"$lte": ["$run_at", NOW]}}
    walk = runs.find(due, CLAIM_FIELDS).sort(ORDER).limit(batch * among).batch_size(batch * among)
    found = [run["_id"] for run in walk]
    ids = found if among == 1 else random.sample(found, min(batch, len(found)))
    if not ids:
        return []
    nonce = ObjectId()
    put = {"state": "running", "worker": "bare", "lease": LEASE, "nonce": nonce, **(more or {})}
    stamped = (
        {"started_at": True} if "leased_at" in put else {"started_at": True, "leased_at": True}
    )
    change = {"$set": put, "$inc": {"token": 1, "attempt": 1}, "$currentDate": stamped}
    runs.update_many({"_id": {"$in": ids}, "state": "pending", "token": 0}, change, hint=BY_ID)
    mine = {"_id": {"$in": ids}, "nonce": nonce, "state": "running"}
    taken = list(runs.find(mine, hint=BY_ID).batch_size(len(ids) + 1))
    for run in taken:
        json.loads(run["payload"])
    return taken


def complete(runs: Collection[Document], taken: Sequence[Document]) -> None:
    now = time.time_ns() // 1000
    started = taken[0]["started_at"]
    attempt = {
        "number": 1,
        "worker": "bare",
        "started_at": started.isoformat(),
        "finished_at": started.isoformat(),
        "outcome": "succeeded",
        "error": None,
        "traceback": None,
        "log": [],
    }
    put = {
        "state": "succeeded",
        "started_at": int(started.timestamp() * 1e6),
        "finished_at": now,
        "leased_at": None,
        "lease": None,
        "progress": None,
        "result": None,
        "error": None,
        "attempts": json.dumps([attempt]),
    }
    mine = {
        "_id": {"$in": [run["_id"] for run in taken]},
        "state": "running",
        "token": 1,
        "cancel_requested": False,
    }
    assert runs.update_many(mine, {"$set": put}, hint=BY_ID).matched_count == len(taken)


def drain(url: str, database: str, job: str, batch: int) -> int:
    """Claim, do nothing, complete, until there is nothing left; how many that were."""
    done = 0
    with connect(url) as client:
        runs = runs_of(client, database)
        while taken := claim(runs, lanes(job), batch):
            complete(runs, taken)
            done += len(taken)
    return done


# -- a limit, with slots held over many runs ------------------------------------------------


def drain_under_limit(url: str, database: str, job: str, slots: int, part: int) -> int:
    """The same under a limit of `slots`: have up to `part` of them, by documents with leases that
    are renewed every second, and claim so many runs of 1 ms at a time."""
    me = ObjectId()
    done = 0
    with connect(url) as client:
        runs, held = runs_of(client, database), client[database]["bare_slots"]
        mine: list[int] = []
        while len(mine) < part:
            for number in range(slots):
                if len(mine) < part and number not in mine and acquire_slot(held, number, me):
                    mine.append(number)
        renewed, stamp = renew(held, me)
        where = lanes(job)
        while runs.find_one({"state": "pending", "lane": where}, {"_id": 1}):
            for _ in range(CHECK):
                more = {"slot": me, "leased_at": stamp}
                taken = claim(runs, where, part, among=4, more=more)
                if taken:
                    time.sleep(0.001)
                    complete(runs, taken)
                    done += len(taken)
                if time.monotonic() - renewed > RENEW_SECONDS:
                    renewed, stamp = renew(held, me)
    return done


def acquire_slot(held: Collection[Document], number: int, me: ObjectId) -> bool:
    try:
        held.update_one({"_id": number, "by": me}, {"$currentDate": {"at": True}}, upsert=True)
    except DuplicateKeyError:
        return False
    return True


def renew(held: Collection[Document], me: ObjectId) -> tuple[float, Any]:
    sent = time.monotonic()
    held.update_many({"by": me}, {"$currentDate": {"at": True}})
    kept = held.find_one({"by": me})
    assert kept is not None
    return sent, kept["at"]


# -- latency --------------------------------------------------------------------------------


def ping(url: str, database: str, gaps: Sequence[float], job: str) -> None:
    """Insert a run and a hint, after each of these pauses."""
    with connect(url) as client:
        runs, hints = runs_of(client, database), client[database]["bare_hints"]
        unheard = hints.with_options(write_concern=hints.write_concern.__class__(w=0))
        for gap in gaps:
            time.sleep(gap)
            sent = time.time()
            now = int(sent * 1e6)
            times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), now)
            counts = dict.fromkeys(("attempt", "failures", "lapses", "token"), 0)
            runs.insert_one({
                "_id": str(ObjectId()), "lane": lane(job), "job_id": job, "priority": 5,
                "source": "enqueue", "state": "pending", "cancel_requested": False,
                "payload": json.dumps({"sent": sent}), **times, **counts,
            })  # fmt: skip
            unheard.insert_one({"at": now})


def listen(url: str, database: str, count: int, job: str) -> list[float]:
    """Follow the hints with a tailable cursor, claim what is due; seconds from insert to claim."""
    taken: list[float] = []
    due = {"state": "pending", "lane": lane(job), "$expr": {"$lte": ["$run_at", NOW]}}
    put = {"state": "running", "worker": "bare", "lease": LEASE, "nonce": ObjectId()}
    change = {
        "$set": put,
        "$inc": {"token": 1, "attempt": 1},
        "$currentDate": {"started_at": True, "leased_at": True},
    }
    with MongoClient[Document](url, w="majority", tz_aware=True) as client:
        runs, hints = runs_of(client, database), client[database]["bare_hints"]
        while len(taken) < count:
            cursor = hints.find({}, cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(1000)
            while cursor.alive and len(taken) < count:
                for _ in cursor:
                    while run := runs.find_one_and_update(
                        due, change, sort=ORDER, return_document=ReturnDocument.AFTER
                    ):
                        taken.append(time.time() - json.loads(run["payload"])["sent"])
                    if len(taken) >= count:
                        break
    return taken
