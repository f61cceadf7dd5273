"""Sets the garbage collector for a process that runs only Mainspring."""

from __future__ import annotations

import gc

__all__ = ["tune_garbage_collector"]

YOUNG_THRESHOLD = 10_000
"""New objects before the collector scans the youngest generation (Python's default is 700)."""


def tune_garbage_collector() -> None:
    """Exempt what is loaded from collections, and collect less often.

    Modules live as long as the process. Scanning them took 20 ms and more of every full collection,
    and stopped handlers, calls and renewals meanwhile. Runs form no cycles, so scanning them again
    and again freed nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD)
