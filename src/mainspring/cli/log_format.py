"""Sets up a worker's log: coloured on a terminal, plain or JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from mainspring.cli.output import json_text, printable

__all__ = ["set_up"]


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

        handler: logging.Handler = RichHandler(
            console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S"
        )
        handler.setFormatter(_Printable("%(message)s"))
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
