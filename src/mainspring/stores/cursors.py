"""Makes the cursors of pages of runs and notes, and checks cursors that clients send."""

from __future__ import annotations

import json
import re

from mainspring.core.model import Note
from mainspring.errors import InvalidCursor

__all__ = ["cursor_number", "note_cursor", "read_note_cursor"]

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_LARGEST = 2**63 - 1
"""What databases keep as an integer."""


def cursor_number(part: object, cursor: object) -> int:
    """The number in a cursor, or in a part of one. Raises `InvalidCursor` where it is no number."""
    if not isinstance(part, str) or _NUMBER.fullmatch(part) is None or abs(int(part)) > _LARGEST:
        raise InvalidCursor(cursor)
    return int(part)


def note_cursor(note: Note) -> str:
    """The cursor of a page whose last note is this one."""
    return json.dumps([note.kind, note.name])


def read_note_cursor(cursor: str) -> list[str]:
    """The kind and the name of the last note of the page before. Raises `InvalidCursor`."""
    try:
        found = json.loads(cursor)
    except ValueError:
        found = None
    if not isinstance(found, list) or [type(part) for part in found] != [str, str]:
        raise InvalidCursor(cursor)
    return found
