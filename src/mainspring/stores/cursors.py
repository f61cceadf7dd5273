"""Cursors of pages of runs, as clients send them back."""

from __future__ import annotations

import re

from mainspring.errors import InvalidInput

__all__ = ["cursor_error", "cursor_number"]

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_LARGEST = 2**63 - 1
"""What databases keep as an integer."""


def cursor_number(part: object, cursor: object) -> int:
    """The number in a cursor, or in a part of one. `InvalidInput` for what no page has given."""
    if not isinstance(part, str) or _NUMBER.fullmatch(part) is None or abs(int(part)) > _LARGEST:
        raise cursor_error(cursor)
    return int(part)


def cursor_error(cursor: object) -> InvalidInput:
    return InvalidInput(f"{str(cursor)[:100]!r} is no cursor that a page of runs gave")
