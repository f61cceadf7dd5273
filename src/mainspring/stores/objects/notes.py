"""Notes: small values with a version and a time to live."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from mainspring.stores import evaluation
from mainspring.stores.codec import note_to_record, to_us
from mainspring.stores.objects.state import note_key
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.protocol import TTL_NOTE_KEPT, NoteWrite


def put_notes(work: Workspace, writes: Iterable[NoteWrite]) -> list[int | None]:
    return [_put_note(work, write) for write in writes]


def _put_note(work: Workspace, write: NoteWrite) -> int | None:
    key = note_key(write.kind, write.name)
    stored = work.state.note(key)
    live = 0 if stored is None or evaluation.has_expired(stored, work.now) else stored.version
    if write.expected_version not in (None, live):
        return None
    if write.note is None:
        work.state.put("notes", key, None)
        return None if stored is None else 0
    version = (stored.version if stored else 0) + 1  # grows on after the note has expired
    record = {**note_to_record(write.note), "version": version}
    if write.ttl is not None:
        record |= {"expires_at": to_us(work.latest + write.ttl), "ttl": True}
    work.state.put("notes", key, record)
    return version


def prune_notes(work: Workspace) -> None:
    """Delete notes that have expired."""
    for key, record in list(work.state.table("notes").items()):
        note = work.state.note(key)
        kept = TTL_NOTE_KEPT if "ttl" in record else timedelta()
        if note is not None and evaluation.has_expired(note, work.now - kept):
            work.state.put("notes", key, None)
