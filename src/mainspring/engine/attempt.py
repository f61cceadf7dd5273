"""`LocalAttempt`: one attempt of a claimed run in this process, from the claim until its outcome is
committed; why it was stopped; and what of its result or its error is stored.

A handler that returns has done its part. A result that is not JSON, or too large, must not fail the
run: the run would be retried, and the handler called again. Such a result is kept as marked text.

Tracebacks have no frames of the engine that called the handler.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from msgspec import Struct

from mainspring.core import codec
from mainspring.core.clock import Clock
from mainspring.core.context import RunContext
from mainspring.core.handlers import Handler
from mainspring.core.model import Job, Progress, Run
from mainspring.core.policy import Isolation, error_names
from mainspring.core.transitions import Change
from mainspring.errors import ArgumentsRefused, GiveUp, InvalidPayload, Retry, Snooze, WebhookFailed

ErrorKind = Literal["error", "retry", "give_up", "snooze"]
"""What an error asks for: `error` leaves it to the policy of the job."""


def storable_result(result: Any, context: RunContext) -> Any:
    """The result itself where it can be stored, else `{"kept_as": "text", "repr": "…"}`.

    A marked result comes with a warning in the attempt's log, which names the job. Called where
    the handler runs: a `__repr__` of the program must not block the engine's loop.
    """
    if result is None:
        return None
    try:
        codec.encode(result, what="result")
    except BaseException as error:  # the result's own methods may raise anything
        context.log.warning(
            "job %s returned a result that is kept as text only: %s",
            context.job_id,
            error if isinstance(error, InvalidPayload) else error_text(error),
        )
        return codec.kept_as_text(result)
    return result


LONGEST_ERROR = 8_000
"""Characters of an error that are kept; its traceback keeps more."""

LONGEST_TRACEBACK = 16_000

_PACKAGE = str(Path(__file__).parent.parent)


def error_text(error: BaseException) -> str:
    """The type of an error and what it says. Never raises, even if its `__str__` does."""
    try:
        text = str(error)
    except BaseException:
        text = "(str() of the exception raised)"
    return f"{type(error).__name__}: {text}"[:LONGEST_ERROR] if text else type(error).__name__


def kind_of(error: BaseException) -> ErrorKind:
    if isinstance(error, GiveUp):
        return "give_up"
    if isinstance(error, Snooze):
        return "snooze"
    return "retry" if isinstance(error, Retry) else "error"


def trace_of(error: BaseException) -> str:
    """The newest part of a traceback, without the frames that led to the handler."""
    shown = without_engine_frames(error)
    return "".join(traceback.format_exception(type(error), error, shown))[-LONGEST_TRACEBACK:]


def without_engine_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the handler's first frame on; all of it where it has no such frame."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    return frames or error.__traceback__


class StopReason(Enum):
    """Why a handler was stopped."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    DRAIN = "drain"
    MEMORY = "memory"
    """It ran when its process reached the memory limit, and did not end in time."""
    LATE = "late"
    """It never began: while it waited for capacity its lease may have lapsed, or its breaker
    opened."""
    NO_THREAD = "no thread"
    """It never began: the system started no thread for it."""


@dataclass(frozen=True, slots=True)
class AttemptError:
    """An error that a handler raised, in this process or another: what the retry policy and the
    stored attempt need of it."""

    message: str
    names: tuple[str, ...]
    traceback: str | None = None
    kind: ErrorKind = "error"
    retry_after: Any = None
    exception: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException, *, plain: bool = False) -> AttemptError:
        """`plain`: an error of Mainspring's own handlers says all in its message, so that no
        traceback is kept.

        Never raises, even if the error's `__str__` does: otherwise the attempt could not end and
        the worker could not stop.
        """
        try:
            return cls._of(error, plain)
        except BaseException:
            return cls(message=error_text(error), names=(type(error).__name__,), exception=error)

    @classmethod
    def _of(cls, error: BaseException, plain: bool) -> AttemptError:
        plain = plain and isinstance(error, WebhookFailed | Retry | GiveUp)
        plain = plain or isinstance(error, ArgumentsRefused)  # raised before the handler was called
        return cls(
            message=error_text(error),
            names=error_names(error),
            traceback=None if plain else trace_of(error),
            kind=kind_of(error),
            retry_after=error.after if isinstance(error, Retry | Snooze) else None,
            exception=error,
        )


class LocalAttempt(Struct, eq=False):
    """An attempt of a run that this process has claimed, from the claim until its outcome is
    committed. Mutable. `core.model.Attempt` is the record of it that stays with the run."""

    run: Run
    job: Job
    handler: Handler
    context: RunContext
    held_since: float
    """When its lease was confirmed last, by the monotonic clock."""
    admitted_at: float = 0.0
    """Since when it waits for capacity here, by the monotonic clock."""
    began_at: datetime | None = None
    took: float | None = None
    """Seconds on the program's loop."""
    cpu_seconds: float | None = None
    peak_memory: int | None = None
    result: Any = None
    error: AttemptError | None = None
    stop_reason: StopReason | None = None
    ended: bool = False
    lingering: bool = False
    """The attempt is over, but its thread is not."""
    emitted_progress: Progress | None = None
    completion: Change | None = None
    """The change that its transaction commits; None again if the store refused it."""
    committed: bool = False
    waited: bool = False
    """The handler has waited for something, so that others ran on its loop."""
    task: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    """Cancels the task once more."""
    times_out_at: float = float("inf")
    """When its timeout is over, by the monotonic clock."""
    timeout_timer: asyncio.TimerHandle | None = None
    span: Any = None
    """The span of OpenTelemetry, if the program uses it."""

    @property
    def isolation(self) -> Isolation:
        asked = self.job.policy.isolation
        if asked is Isolation.AUTO and not self.handler.is_async:
            return Isolation.THREAD
        return asked

    def raise_if_stopped(self) -> None:
        """Raise CancelledError if the attempt was stopped before its handler began. A task that is
        cancelled before its first step would end without running any of its code."""
        if self.stop_reason is not None:
            raise asyncio.CancelledError

    def start_timeout(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        expire: Callable[[LocalAttempt], None],
    ) -> None:
        """Let this loop call `expire(attempt)` when the timeout is over, unless `stop_timeout` is
        called before. Called on the loop."""
        if (timeout := self.job.policy.timeout) is not None:
            seconds = timeout.total_seconds()
            self.times_out_at = clock.monotonic() + seconds
            self.timeout_timer = loop.call_later(seconds, expire, self)

    def stop_timeout(self) -> None:
        if self.timeout_timer is not None:
            self.timeout_timer.cancel()


def end_if_forked(pid: int, error: AttemptError | None) -> None:
    """End this process if it is a fork that came back from its handler.

    A handler called `os.fork()`, and this is the child. Only one process may go on as the worker:
    the child shares the worker's event loop, sockets and locks, and would never end.
    """
    if os.getpid() == pid:
        return
    code = 0
    if error is not None:
        raised = error.exception
        code = raised.code if isinstance(raised, SystemExit) and isinstance(raised.code, int) else 1
        if raised is not None and not isinstance(raised, SystemExit):
            traceback.print_exception(raised)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
    os._exit(code)
