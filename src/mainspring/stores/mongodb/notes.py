"""Notes: small named values with a version and, perhaps, a time when they expire.

A `find` reads whether a note has expired. The write that follows is guarded by the version that was
read, never by time (database.py says why).
"""

from __future__ import annotations

import json
from typing import Any

from pymongo.errors import DuplicateKeyError

from mainspring.core.model import Note, Page
from mainspring.stores.codec import NOTE, record_reader, record_writer
from mainspring.stores.mongodb.codec import NUMBERS, TIMES
from mainspring.stores.mongodb.database import Database, Document, span_us
from mainspring.stores.paging import note_cursor, read_note_cursor
from mainspring.stores.protocol import NoteQuery, NoteWrite

TRIES = 10


async def find(db: Database, query: NoteQuery) -> Page[Note]:
    if query.limit <= 0:
        return Page([])
    where: Document = {"$expr": {"$not": [_is_expired(db)]}}
    if query.kind is not None:
        where["kind"] = {"$eq": query.kind}
    if query.names is not None:
        where["name"] = {"$in": list(query.names)}
    if query.cursor is not None:
        kind, name = read_note_cursor(query.cursor)
        behind = {"kind": {"$eq": kind}, "name": {"$gt": name}}
        where["$or"] = [behind, {"kind": {"$gt": kind}}] if query.kind is None else [behind]
    walk = (
        db.notes.find(where, session=db.session).sort([("kind", 1), ("name", 1)]).limit(query.limit)
    )
    notes = [_read_note(note) for note in await walk.to_list(query.limit)]
    return Page(notes, note_cursor(notes[-1]) if len(notes) == query.limit else None)


async def put(db: Database, write: NoteWrite) -> int | None:
    document = None if write.note is None else _document(write.note)
    for _ in range(TRIES if write.expected_version is None else 1):
        version = await _put(db, write, document)
        if version is not None:
            return version
    return None


async def _put(db: Database, write: NoteWrite, document: Document | None) -> int | None:
    expected, by_id = write.expected_version, {"_id": _id(write.kind, write.name)}
    shown = {"version": 1, "over": _is_expired(db), "now": db.time.now}
    seen = await db.notes.find_one(by_id, shown, session=db.session)
    live = 0 if seen is None or seen["over"] else seen["version"]
    if expected not in (None, live):
        return None
    if document is not None and write.ttl is not None:
        now = await db.now() if seen is None else int(seen["now"])
        document = {**document, "expires_at": now + span_us(write.ttl), "ttl": span_us(write.ttl)}
    if seen is None:
        return None if document is None else await _insert(db, document)
    same = {**by_id, "version": seen["version"]}
    if document is None:
        gone = await db.notes.delete_one(same, session=db.session)
        return 0 if gone.deleted_count else None
    # The number of a note that has expired grows on: no writer meets the same version twice.
    version = int(seen["version"]) + 1
    done = await db.notes.replace_one(same, {**document, "version": version}, session=db.session)
    return version if done.matched_count else None


_write_note = record_writer(NOTE, leave_out=("version",))
_NOTE = NOTE.adapted(time=TIMES, number=NUMBERS)
_read_note = record_reader(_NOTE)


def _document(note: Note) -> Document:
    return {"_id": _id(note.kind, note.name), **_write_note(note)}


async def _insert(db: Database, document: Document) -> int | None:
    try:
        await db.notes.insert_one({**document, "version": 1}, session=db.session)
    except DuplicateKeyError:
        return None
    return 1


def _id(kind: str, name: str) -> str:
    return json.dumps([kind, name])


def _is_expired(db: Database) -> Any:
    ends = {"$ifNull": ["$expires_at", None]}
    return {"$and": [{"$ne": [ends, None]}, {"$lte": [ends, db.time.now]}]}
