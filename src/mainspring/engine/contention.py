"""How often a compare-and-set is tried, and the error of one that others always win."""

from __future__ import annotations

from mainspring.errors import Conflict

TRIES = 20
"""How often a compare-and-set is tried before the operation raises Conflict."""


def contended(what: str) -> Conflict:
    return Conflict(f"{what} was changed {TRIES} times while this call tried to write; try again")
