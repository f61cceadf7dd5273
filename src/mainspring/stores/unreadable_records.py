"""Logs each record that this version cannot read: damaged, or written by a newer version.

A store returns such a run or job with `unreadable` set and with every field that it can still read
(`stores/codec.py` reads it). No worker starts the run, and no store overwrites or deletes the
record. All other records are used as before.
"""

from __future__ import annotations

import logging
from threading import Lock

from mainspring.core.model import Job, Run

log = logging.getLogger("mainspring")

MOST_REPORTED = 1000
"""How many records one process names in its log."""

_reported: set[tuple[str, str]] = set()
_guard = Lock()


def log_unreadable(record: Run | Job) -> None:
    """Log a record that cannot be read. A process logs each record once."""
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
