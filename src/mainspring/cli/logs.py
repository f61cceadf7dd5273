"""What a worker says while it works: coloured on a terminal, plain lines or JSON elsewhere."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mainspring.cli.times import span

if TYPE_CHECKING:
    from mainspring.events import Event
    from mainspring.scheduler import Scheduler

__all__ = ["set_up", "tell_events"]

log = logging.getLogger("mainspring.worker")


def set_up(*, verbose: bool, quiet: bool, as_json: bool) -> None:
    """Log to stderr, unless the program has set logging up by itself."""
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    logging.getLogger("mainspring").setLevel(level)
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(_handler(as_json=as_json))
    root.setLevel(logging.WARNING if quiet else logging.INFO)


def _handler(*, as_json: bool) -> logging.Handler:
    if sys.stderr.isatty() and not as_json:
        from rich.console import Console
        from rich.logging import RichHandler

        return RichHandler(
            console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S"
        )
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(_JsonLines())
    else:
        lines = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s [%(process)d] %(name)s: %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S",
        )
        lines.converter = time.gmtime
        handler.setFormatter(lines)
    return handler


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def tell_events(scheduler: Scheduler, *, each_run: bool) -> None:
    """Log what becomes of runs. Successes are told one by one only where somebody looks on:
    a worker that does thousands a second has better things to do."""
    scheduler.on("run.failed", lambda e: _say(logging.ERROR, e, "failed"))
    scheduler.on("run.retrying", lambda e: _say(logging.WARNING, e, "failed, will be retried"))
    scheduler.on("run.rescued", lambda e: _say(logging.WARNING, e, "was rescued"))
    scheduler.on("breaker.opened", lambda e: _say(logging.WARNING, e, "opened its breaker"))
    scheduler.on("schedule.missed", _say_missed)
    if each_run:
        scheduler.on("run.started", lambda e: _say(logging.DEBUG, e, "started"))
        scheduler.on("run.succeeded", lambda e: _say(logging.INFO, e, "succeeded"))
        scheduler.on("run.cancelled", lambda e: _say(logging.INFO, e, "was cancelled"))
        scheduler.on("run.skipped", lambda e: _say(logging.INFO, e, "was skipped"))


def _say(level: int, event: Event, what: str) -> None:
    run = event.run
    if run is None:
        return
    took = f" in {span(run.duration)}" if what == "succeeded" and run.duration is not None else ""
    why = event.error if event.error is not None else run.error or run.reason
    if isinstance(why, BaseException):
        why = f"{type(why).__name__}: {why}"
    log.log(level, "%s %s%s%s (run %s)", run.job_id, what, took, f": {why}" if why else "", run.id)


def _say_missed(event: Event) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in event.data.items())
    log.warning("%s missed slots: %s", event.job_id, facts)
