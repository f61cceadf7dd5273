"""One line that says what runs where, for programs that start a scheduler by themselves."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from mainspring.stores.url_redaction import without_password

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler

__all__ = ["HOW_TO_STOP", "announce", "summary"]

log = logging.getLogger("mainspring")

HOW_TO_STOP = "Press Ctrl+C to stop after running jobs finish, or twice to stop immediately."

MOST_NAMED = 5


def announce(scheduler: Scheduler, *, stops_on_signal: bool = False) -> None:
    """Show the line on stderr where the program has not set up logging; else it is logged."""
    if scheduler.workers == 0:  # it runs nothing: a script that enqueues stays quiet
        return
    line = summary(scheduler)
    if stops_on_signal:
        line += f" {HOW_TO_STOP}"
    if log.hasHandlers():
        log.info("%s", line)
    else:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def summary(scheduler: Scheduler) -> str:
    """What runs where: `Mainspring runs daily_report, send_email from sqlite:///jobs.db, …`."""
    jobs = scheduler.decorated
    named = ", ".join(jobs[:MOST_NAMED])
    if len(jobs) > MOST_NAMED:
        more = len(jobs) - MOST_NAMED
        named += f" and {more} more {'job' if more == 1 else 'jobs'}"
    url = scheduler.url
    store = type(scheduler.store).__name__ if url is None else without_password(url)
    queues = scheduler.queues
    taken = "" if queues is None else f" of the queues {', '.join(sorted(queues))}"
    return (
        f"Mainspring runs {named or 'what is enqueued'} from {store},"
        f" at most {scheduler.workers} at once{taken}, in process {os.getpid()}."
    )
