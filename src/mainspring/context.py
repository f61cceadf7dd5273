"""What a handler is given: facts of its run, its log, its progress, the program's resources."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mainspring.model import Progress, Run

__all__ = ["MAX_LOG_BYTES", "RunContext"]

MAX_LOG_BYTES = 64 * 1024


class RunContext:
    """One attempt, seen from inside its handler.

    `results` holds the results of the runs this one came after, by job id. `cancelled` turns
    true when somebody asks for the run to stop; a sync handler in a thread looks at it, an
    async one is cancelled anyway.
    """

    __slots__ = (
        "_lines",
        "_log",
        "attempt",
        "cancelled",
        "job_id",
        "latest_progress",
        "payload",
        "resources",
        "result",
        "results",
        "run_id",
        "scheduled_at",
        "token",
        "will_retry",
    )

    def __init__(
        self,
        run: Run,
        resources: Mapping[str, Any] | None = None,
        results: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id: str = run.id
        self.job_id: str = run.job_id
        self.attempt: int = run.attempt
        self.scheduled_at: datetime = run.scheduled_at
        self.token: int = run.token
        self.payload: Any = run.payload
        self.resources: Mapping[str, Any] = resources if resources is not None else {}
        self.results: Mapping[str, Any] = results if results is not None else {}
        self.result: Any = None
        self.cancelled: bool = False
        self.will_retry: bool = False
        self.latest_progress: Progress | None = None
        self._log: logging.Logger | None = None
        self._lines: _Lines | None = None

    @property
    def log(self) -> logging.Logger:
        """A logger whose lines stay with the attempt (and reach the program's own logging)."""
        if self._log is None:
            # A logger of its own, outside logging's registry, which would keep it for ever.
            self._log = logging.Logger(f"mainspring.run.{self.job_id}")
            self._log.parent = logging.getLogger("mainspring.run")
            self._lines = _Lines()
            self._log.addHandler(self._lines)
        return self._log

    @property
    def log_lines(self) -> tuple[str, ...]:
        return self._lines.taken() if self._lines is not None else ()

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the work has come; kept with the run at its next renewal."""
        self.latest_progress = Progress(done, total, message)


class _Lines(logging.Handler):
    """Keeps the newest lines of an attempt, up to `MAX_LOG_BYTES`."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._kept: deque[str] = deque()
        self._size = 0
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)[:MAX_LOG_BYTES]
        self._kept.append(line)
        self._size += len(line.encode(errors="replace")) + 1
        while self._size > MAX_LOG_BYTES:
            self._size -= len(self._kept.popleft().encode(errors="replace")) + 1
            self._dropped += 1

    def taken(self) -> tuple[str, ...]:
        if not self._dropped:
            return tuple(self._kept)
        return (f"… {self._dropped} earlier lines dropped", *self._kept)
