"""Counters of ended runs: a document for the totals of each job, and one for each of its periods.

The servers add up (`$inc`, `$max`), so any number of clients may count at once. Counts are written
after the runs that they count, not with them: in one transaction, clients that end runs of one job
would wait for each other. A client that dies in between loses the counts of one call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from pymongo import UpdateOne, WriteConcern
from pymongo.errors import PyMongoError

from mainspring.core.model import State
from mainspring.core.statistics import (
    PERIODS_KEPT,
    WHOLE_STORE,
    Distribution,
    Ending,
    LastRun,
    Period,
    Totals,
)
from mainspring.stores.codec import from_us, json_text, to_us
from mainspring.stores.counters import Counted, Key, added_by, counts_of, first_start, known_states
from mainspring.stores.mongodb.database import Database, Document, chunks, span_us
from mainspring.stores.protocol import Counts

log = logging.getLogger("mainspring")

_read_last = msgspec.json.Decoder(LastRun).decode


async def count(db: Database, endings: Iterable[Ending | None]) -> None:
    """Count ends that are stored. If that fails, they are not counted: the runs themselves are
    stored, and a repeat could count them twice."""
    updates = count_updates(endings)
    # Counts need not wait for the majority: a failover may lose what a crash may lose.
    quick = db.counters.with_options(write_concern=WriteConcern(w=1))
    try:
        for part in chunks(updates):
            await quick.bulk_write(part, ordered=False)
    except PyMongoError as error:
        log.warning("some ended runs are not counted in the statistics: %s", error)


def count_updates(endings: Iterable[Ending | None]) -> list[UpdateOne]:
    ends = [ending for ending in endings if ending is not None]
    if not ends:
        return []
    now = max(ending.finished_at for ending in ends)  # to ask the server would cost as much
    return [
        UpdateOne({"_id": _document_id(key)}, _update(key, counted), upsert=True)
        for key, counted in added_by(ends, now).items()
    ]


def _document_id(key: Key) -> str:
    job_id, start = key
    return f"{job_id}@{to_us(start)}"


def _update(key: Key, counted: Counted) -> Document:
    job_id, start = key
    added: Document = {f"ended.{state}": count for state, count in counted.ended.items()}
    update: Document = {"$setOnInsert": {"job": job_id, "start": to_us(start)}, "$inc": added}
    if isinstance(counted, Totals):
        put: Document = {}
        if counted.last is not None:
            put["last"] = json_text(counted.last)
        if State.SUCCEEDED in counted.ended:
            put["failures"] = counted.consecutive_failures
        elif counted.consecutive_failures:
            added["failures"] = counted.consecutive_failures
        return {**update, "$set": put} if put else update
    most: Document = {}
    for name, spread in (("duration", counted.duration), ("lateness", counted.lateness)):
        if spread.count:
            added[f"{name}.count"] = spread.count
            added[f"{name}.sum"] = spread.sum
            added |= {f"{name}.buckets.{at}": count for at, count in spread.buckets.items()}
            most[f"{name}.max"] = spread.max
    return {**update, "$max": most} if most else update


async def read(db: Database, since: datetime | None, jobs: frozenset[str]) -> Counts:
    wanted: list[Document] = [{"job": {"$in": list(jobs)}, "start": 0}]
    if since is not None:
        starts: dict[int, list[str]] = {}
        for job_id in jobs:
            starts.setdefault(to_us(first_start(job_id, since)), []).append(job_id)
        wanted += [{"job": {"$in": ids}, "start": {"$gte": at}} for at, ids in starts.items()]
    counted: dict[Key, Counted] = {}
    for where in wanted:
        async for document in db.counters.find(where, hint="of_job"):
            with suppress(ValueError, TypeError, KeyError, AttributeError):  # damaged
                key = document["job"], from_us(document["start"])
                counted[key] = _counted(key, document)
    return counts_of(counted)


def _counted(key: Key, document: Document) -> Counted:
    ended = known_states(document.get("ended", {}))
    if document["start"] == 0:
        last = document.get("last")
        return Totals(
            ended, document.get("failures", 0), None if last is None else _read_last(last)
        )
    return Period(
        key[1],
        ended,
        _read_distribution(document.get("duration")),
        _read_distribution(document.get("lateness")),
    )


def _read_distribution(kept: Mapping[str, Any] | None) -> Distribution:
    if kept is None:
        return Distribution()
    buckets = {int(at): count for at, count in kept.get("buckets", {}).items()}
    return Distribution(kept["count"], kept["sum"], kept["max"], buckets)


async def drop(db: Database, job_ids: Sequence[str]) -> None:
    for part in chunks(job_ids):
        await db.counters.delete_many({"job": {"$in": list(part)}})


async def prune(db: Database) -> None:
    """Delete the totals of jobs that are gone, and periods that are over for long."""
    oldest = await db.now() - span_us(PERIODS_KEPT)
    await db.counters.delete_many({"start": {"$gt": 0, "$lt": oldest}})
    walk = db.counters.find({"start": 0}, {"job": 1})
    counted = [total["job"] async for total in walk if total["job"] != WHOLE_STORE]
    for part in chunks(counted):
        there = {job["_id"] async for job in db.jobs.find({"_id": {"$in": list(part)}}, {"_id": 1})}
        gone = [job_id for job_id in part if job_id not in there]
        if gone:
            await db.counters.delete_many({"job": {"$in": gone}, "start": 0})
