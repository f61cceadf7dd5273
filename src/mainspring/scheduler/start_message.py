"""The line that says what runs where when a program starts a scheduler."""

from __future__ import annotations

import logging
import os
import sys

from mainspring.core.plurals import plural
from mainspring.stores.url_redaction import without_password

log = logging.getLogger("mainspring")

HOW_TO_STOP = "Press Ctrl+C to stop after running jobs finish, or twice to stop immediately."

MOST_NAMED = 5
"""Jobs that the line names; of more it gives the number."""


def show(line: str) -> None:
    """Log the line, or print it on stderr where the program has not set up logging."""
    if log.hasHandlers():
        log.info("%s", line)
    else:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def summary(
    jobs: list[str],
    store: str,
    workers: int,
    queues: frozenset[str] | None,
    *,
    enabled: bool = True,
) -> str:
    """What runs where: `Mainspring runs daily_report, send_email from sqlite:///jobs.db, …`.
    `store` is a URL or a name. Without `enabled` it fires no slots."""
    named = ", ".join(jobs[:MOST_NAMED])
    if len(jobs) > MOST_NAMED:
        more = len(jobs) - MOST_NAMED
        named += f" and {plural(more, 'more job')}"
    taken = "" if queues is None else f" of the queues {', '.join(sorted(queues))}"
    return (
        f"Mainspring runs {named or 'what is enqueued'} from {without_password(store)},"
        f" at most {workers} at once{taken}, in process {os.getpid()}."
        + ("" if enabled else " It fires no slots (enabled=False).")
    )
