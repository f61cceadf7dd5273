"""A claimed run on its way through this process, and how its attempt may end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from msgspec import Struct

from mainspring.core.context import RunContext
from mainspring.core.handlers import Handler
from mainspring.core.model import Job, Progress, Run
from mainspring.core.policy import Isolation, error_names
from mainspring.core.transitions import Change
from mainspring.engine.executors.process_pool import RemoteError
from mainspring.engine.tracebacks import trace_of
from mainspring.errors import ArgumentsRefused, GiveUp, RemoteFailure, Retry, Snooze, WebhookFailed

__all__ = ["Problem", "Stop", "Work"]

LONGEST_ERROR = 8_000
"""Characters of an error that are kept; its traceback keeps more."""


class Stop(Enum):
    """Why a handler was told to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    DRAIN = "drain"
    LATE = "late"
    """Not to begin at all: its lease may have lapsed while it waited its turn."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error of a handler, wherever it ran, as the policy and the record need it."""

    error: str
    names: tuple[str, ...]
    traceback: str | None = None
    retry_after: Any = None
    asks_retry: bool = False
    gives_up: bool = False
    snoozes: bool = False
    exception: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException, *, plain: bool = False) -> Problem:
        """`plain`: where it is one of ours, its words say all, and no traceback is kept.

        It never raises, whatever the error's own methods do: an attempt that could not be ended
        would keep its worker from stopping.
        """
        try:
            return cls._of(error, plain)
        except BaseException:
            return cls(error=_in_words(error), names=(type(error).__name__,), exception=error)

    @classmethod
    def _of(cls, error: BaseException, plain: bool) -> Problem:
        plain = plain and isinstance(error, WebhookFailed | Retry | GiveUp)
        plain = plain or isinstance(error, ArgumentsRefused)  # raised before the handler was called
        return cls(
            error=_in_words(error),
            names=error_names(error),
            traceback=None if plain else trace_of(error, 16_000),
            retry_after=error.after if isinstance(error, Retry | Snooze) else None,
            asks_retry=isinstance(error, Retry),
            gives_up=isinstance(error, GiveUp),
            snoozes=isinstance(error, Snooze),
            exception=error,
        )

    @classmethod
    def remote(cls, error: RemoteError) -> Problem:
        return cls(
            error=error.message,
            names=error.names,
            traceback=error.traceback or None,
            retry_after=error.retry_after,
            asks_retry=error.kind == "retry",
            gives_up=error.kind == "give_up",
            snoozes=error.kind == "snooze",
            exception=RemoteFailure(error.message),
        )


class Work(Struct, eq=False):
    """A claimed run on its way through this process. Mutable: it lives for one attempt."""

    run: Run
    job: Job
    handler: Handler
    context: RunContext
    held_since: float
    began_at: datetime | None = None
    took: float | None = None
    """Seconds on the program's loop."""
    result: Any = None
    problem: Problem | None = None
    stop: Stop | None = None
    ended: bool = False
    lingering: bool = False
    """The attempt is over, but its thread is not."""
    told_progress: Progress | None = None
    completion: Change | None = None
    """What its transaction commits; None again where that was refused."""
    committed: bool = False
    waited: bool = False
    """The handler gave way to others on its loop."""
    task: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    """Cancels the task once more."""
    span: Any = None
    """Of OpenTelemetry, where the program uses it."""

    @property
    def isolation(self) -> Isolation:
        asked = self.job.policy.isolation
        if asked is Isolation.AUTO and not self.handler.is_async:
            return Isolation.THREAD
        return asked

    def unless_stopped(self) -> None:
        """A task that is cancelled before its first step ends without a word, so it is not: it
        looks itself whether it was stopped by then."""
        if self.stop is not None:
            raise asyncio.CancelledError


def _in_words(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}"[:LONGEST_ERROR] if text else type(error).__name__
