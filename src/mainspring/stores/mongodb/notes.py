"""Notes: small named values with a version and, perhaps, an end.

Whether one has expired is read by a `find`; the write that follows is guarded by the version
seen, never by time (times.py says why).
"""

from __future__ import annotations

import json
from typing import Any

from pymongo.errors import DuplicateKeyError

from mainspring.core import codec
from mainspring.core.model import Note, Page
from mainspring.stores.mongodb.codec import to_us
from mainspring.stores.mongodb.collections import Database, Document
from mainspring.stores.mongodb.server_clock import read_moment
from mainspring.stores.protocol import NoteQuery

__all__ = ["drop", "find", "kinds", "put"]


async def find(db: Database, query: NoteQuery) -> Page[Note]:
    if query.limit <= 0:
        return Page([])
    name: Document = {}
    if query.names is not None:
        name["$in"] = list(query.names)
    if query.cursor is not None:
        name["$gt"] = query.cursor
    where: Document = {"kind": {"$eq": query.kind}, "$expr": {"$not": [_over(db)]}}
    if name:
        where["name"] = name
    found = await db.notes.find(where).sort("name", 1).limit(query.limit).to_list(query.limit)
    notes = [
        Note(
            kind=kept["kind"],
            name=kept["name"],
            value=codec.decode(kept["value"]),
            version=kept["version"],
            expires_at=read_moment(kept.get("expires_at")),
        )
        for kept in found
    ]
    full = len(notes) == query.limit
    return Page(notes, notes[-1].name if full else None)


async def kinds(db: Database) -> list[str]:
    found: list[str] = await db.notes.distinct("kind")
    return sorted(found)


async def put(db: Database, note: Note) -> int | None:
    made: Document = {
        "_id": _id(note.kind, note.name),
        "kind": note.kind,
        "name": note.name,
        "value": codec.encode(note.value, what="note"),
    }
    if note.expires_at is not None:
        made["expires_at"] = to_us(note.expires_at)
    shown = {"version": 1, "over": _over(db)}
    seen = await db.notes.find_one({"_id": made["_id"]}, shown)
    if seen is None:
        return await _insert(db, made) if note.version == 0 else None
    if (0 if seen["over"] else seen["version"]) != note.version:
        return None
    same = {"_id": made["_id"], "version": seen["version"]}
    version = int(seen["version"]) + 1
    done = await db.notes.replace_one(same, {**made, "version": version})
    return version if done.matched_count else None


async def _insert(db: Database, made: Document) -> int | None:
    try:
        await db.notes.insert_one({**made, "version": 1})
    except DuplicateKeyError:
        return None
    return 1


async def drop(db: Database, kind: str, name: str) -> bool:
    return (await db.notes.delete_one({"_id": _id(kind, name)})).deleted_count > 0


def _id(kind: str, name: str) -> str:
    return json.dumps([kind, name])


def _over(db: Database) -> Any:
    ends = {"$ifNull": ["$expires_at", None]}
    return {"$and": [{"$ne": [ends, None]}, {"$lte": [ends, db.time.now]}]}
