"""Runs that are half made, and how anyone makes them whole.

MongoDB changes one document at a time. Where a run must come to life together with another
document (a dedupe key that points at it, a job that advances past its slot), it is first
written down with its `intent`: what it will become. A new run has the state `reserved`
meanwhile, which no query sees. The other document then decides, in one write; and after that
whoever meets the run carries the intent out, be it another client after a crash. Nobody waits
for anybody, and it does not matter who finishes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from bson import ObjectId
from pymongo import ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError

from mainspring.core.clock import to_us
from mainspring.stores.mongodb.codec import RESERVED
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.errors import duplicates_only

__all__ = [
    "carry_out",
    "discard",
    "fill",
    "half_made",
    "insert",
    "intent",
    "reserve",
    "reserved",
    "sweep",
]

Decided = Callable[[Database, Sequence[Document]], Awaitable[set[str]]]

JUNK_AFTER = 600 * 1_000_000
"""Microseconds after which a reserved run that nothing points at is swept away."""
PAGE = 1000
_SHOWN = dict.fromkeys(("state", "intent", "job_id", "dedupe_key", "created_at"), 1)


def half_made(run: Mapping[str, Any]) -> bool:
    return run.get("intent") is not None


def intent(put: Document) -> Document:
    return {"by": ObjectId(), "put": put}


async def insert(db: Database, documents: Sequence[Document]) -> set[str]:
    """Insert those whose id is new; give the ids that were there already."""
    there: set[str] = set()
    for part in chunks(documents):
        try:
            await db.runs.insert_many(part, ordered=False)
        except BulkWriteError as error:
            if not duplicates_only(error):
                raise
            there |= {part[one["index"]]["_id"] for one in error.details["writeErrors"]}
    return there


async def reserve(
    db: Database, documents: Sequence[Document], by: ObjectId | None = None
) -> set[str]:
    """Insert new runs as reserved; give the ids that were there already, half made or whole. `by`
    marks the intents of a whole batch, so that its maker can carry them out in one write."""
    more = {} if by is None else {"by": by}
    return await insert(db, [reserved(run, **more) for run in documents])


def reserved(run: Document, **more: Any) -> Document:
    """The run as it is written down half made; `more` is about its intent."""
    return {**run, "state": RESERVED, "intent": {**intent({"state": run["state"]}), **more}}


async def carry_out(db: Database, runs: Iterable[Document]) -> int:
    """Make these runs what their intents say; say how many that was. Whose intent is carried out
    already stays."""
    count = 0
    plain: dict[str, list[str]] = {}
    others = []
    for run in runs:
        put = run["intent"]["put"]
        if run["state"] == RESERVED and put.keys() == {"state"}:
            plain.setdefault(put["state"], []).append(run["_id"])
        else:
            where = {"_id": run["_id"], "intent.by": run["intent"]["by"]}
            others.append(UpdateOne(where, {"$set": put, "$unset": {"intent": ""}}))
    for state, ids in plain.items():
        where = {"_id": {"$in": ids}, "state": RESERVED, "intent.put.state": state}
        change = {"$set": {"state": state}, "$unset": {"intent": ""}}
        count += (await db.runs.update_many(where, change, hint=BY_ID)).matched_count
    if others:
        count += (await db.runs.bulk_write(others, ordered=False)).matched_count
    return count


async def fill(db: Database, documents: Sequence[Document]) -> None:
    """Put these runs in the places reserved for them, in order: none is to be seen before what it
    waits for. Whose place is filled already stays."""
    if documents:
        places = [ReplaceOne({"_id": run["_id"], "state": RESERVED}, run) for run in documents]
        await db.runs.bulk_write(places)


async def discard(db: Database, ids: Sequence[str]) -> None:
    """Delete reserved runs that came to nothing."""
    if ids:
        await db.runs.delete_many({"_id": {"$in": list(ids)}, "state": RESERVED}, hint=BY_ID)


async def sweep(db: Database, decided: Decided) -> None:
    """Have those who know carry out what a crash left half made; delete what nothing points at.

    `decided` gives the ids of those runs that are decided, and sees to them. To delete one that is
    still in the making is harmless: its maker notices and begins again.
    """
    async with db.runs.find({"state": RESERVED}, _SHOWN).batch_size(PAGE) as walk:
        while found := await walk.to_list(PAGE):
            kept = await decided(db, found)
            old = to_us(await db.now()) - JUNK_AFTER
            junk = [r["_id"] for r in found if r["_id"] not in kept and r["created_at"] < old]
            await discard(db, junk)
