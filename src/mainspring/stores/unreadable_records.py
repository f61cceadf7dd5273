"""The log of records that this version cannot read: damaged ones, or written by a newer version.

A store gives such a run or job with `unreadable` set and with every field that can still be read
(`stores/codec.py` reads it). No worker starts it, no store overwrites or deletes it, and all other
records are used as before.
"""

from __future__ import annotations

import logging
from threading import Lock

from mainspring.core.model import Job, Run

__all__ = ["report"]

log = logging.getLogger("mainspring")

MOST_REPORTED = 1000
"""Records that are named in the log, in one process."""

_reported: set[tuple[str, str]] = set()
_guard = Lock()


def report(record: Run | Job) -> None:
    """Log a record that cannot be read, once in a process."""
    kind = "run" if isinstance(record, Run) else "job"
    with _guard:
        if (kind, record.id) in _reported or len(_reported) >= MOST_REPORTED:
            return
        _reported.add((kind, record.id))
    log.error(
        "%s %s cannot be read (%s). It is set aside and left as it is; everything else goes on."
        " A newer version may have written it: upgrade this program. `mainspring doctor` looks"
        " for others like it, among all jobs and the newest 1,000 runs of each state",
        kind,
        record.id,
        record.unreadable,
    )
