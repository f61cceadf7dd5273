"""Copies notes: API keys, idempotency records, and notes that programs keep.

The versions of copied notes start at 1, and another copy raises a version only where the note has
changed in the source. So a note that differs and whose version in the target is not lower was
changed in the target. The copy is refused then: an API key that was revoked in the target must not
become valid again. Notes that expire may differ, because each store expires them by its own clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.core.model import Note, replace
from mainspring.errors import CopyRefused
from mainspring.stores.copy.reader import find_same_notes, note_pages, retry_while_unavailable
from mainspring.stores.protocol import NoteWrite, Store

__all__ = ["copy_notes", "refuse_foreign_notes", "verify_notes"]


async def copy_notes(source: Store, target: Store) -> int:
    """Write the notes that the target lacks; return how many the source has."""
    count = 0
    async for notes in note_pages(source):
        there = await find_same_notes(target, notes)
        for note in notes:
            kept = there.get(note.name)
            if _same(note, kept):
                continue
            if kept is not None and note.expires_at is None and kept.version >= note.version:
                raise CopyRefused(
                    f"{note.kind} {note.name} was changed in the target: something has worked"
                    " there. Name an empty target"
                )
            version = kept.version if kept else 0
            write = NoteWrite.put(replace(note, version=version))
            await retry_while_unavailable(target.put_notes, [write])
        count += len(notes)
    return count


async def refuse_foreign_notes(source: Store, target: Store) -> None:
    async for notes in note_pages(target):
        known = await find_same_notes(source, notes)
        for note in _without_expiry(notes):
            if note.name not in known:
                raise CopyRefused(
                    f"the target is not empty: {note.kind} {note.name} is there, and not in the"
                    " source. Name an empty target, and make API keys for it when the copy is done"
                )


async def verify_notes(source: Store, target: Store) -> None:
    async for notes in note_pages(source):
        there = await find_same_notes(target, notes)
        for note in _without_expiry(notes):
            if not _same(note, there.get(note.name)):
                raise CopyRefused(
                    f"{note.kind} {note.name} has changed while it was copied. Stop what uses the"
                    " source and copy again: that completes the copy"
                )


def _same(note: Note, kept: Note | None) -> bool:
    return kept is not None and replace(kept, version=note.version) == note


def _without_expiry(notes: Sequence[Note]) -> list[Note]:
    return [note for note in notes if note.expires_at is None]
