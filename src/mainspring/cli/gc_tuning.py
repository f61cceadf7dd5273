"""Sets the garbage collector for a process that runs only Mainspring."""

from __future__ import annotations

import gc

__all__ = ["calm_collector"]

YOUNG = 10_000
"""So many objects more than were freed, and the young ones are walked (Python's own: 700)."""


def calm_collector() -> None:
    """Modules live as long as the process. Walking them took 20 ms and more of every full
    collection, in which no handler, call or renewal moved. Runs live until they are recorded, and
    were walked over and over for nothing: their objects form no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
