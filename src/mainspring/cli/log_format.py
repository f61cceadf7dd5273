"""Sets up a worker's log: coloured on a terminal, plain or JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from mainspring.cli.output import json_text, printable

_OF_JOB = "mainspring.run."
"""The logger of a handler's own lines, `ctx.log`, is named by this and the job's id."""


def set_up(*, verbose: bool, quiet: bool, as_json: bool, several_processes: bool = False) -> None:
    """Log to stderr, unless the program has set logging up by itself. `several_processes`: others
    log to the same terminal, so each line names its process."""
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    logging.getLogger("mainspring").setLevel(level)
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(_handler(as_json=as_json, several_processes=several_processes))
    root.setLevel(logging.WARNING if quiet else logging.INFO)


def _handler(*, as_json: bool, several_processes: bool = False) -> logging.Handler:
    if sys.stderr.isatty() and not as_json:
        from rich.console import Console
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(
            console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S"
        )
        handler.setFormatter(
            _ForTerminal("[%(process)d] %(message)s" if several_processes else "%(message)s")
        )
        return handler
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(_JsonLines())
    else:
        lines = _Printable(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s [%(process)d] %(name)s: %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S",
        )
        lines.converter = time.gmtime
        handler.setFormatter(lines)
    return handler


class _Printable(logging.Formatter):
    """Escapes what a terminal would obey: messages quote errors of handlers and answers of
    endpoints."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _ForTerminal(_Printable):
    """Leaves out the name of the logger. A line that a handler logs has its job only there."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if record.name.startswith(_OF_JOB):
            record.message = f"job {record.name.removeprefix(_OF_JOB)}: {record.message}"
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        for fact in ("job_id", "run_id", "attempt"):
            if hasattr(record, fact):
                document[fact] = getattr(record, fact)
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json_text(document, indent=None)
