"""Garbage collection in a process that is Mainspring's own."""

from __future__ import annotations

import gc

__all__ = ["spare_what_is_loaded"]


def spare_what_is_loaded() -> None:
    """Modules live as long as the process. Walking them took 20 ms and more of every full
    collection, in which no handler, call or renewal moved."""
    gc.collect()
    gc.freeze()
