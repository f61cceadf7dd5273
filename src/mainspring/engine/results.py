"""Makes the result of a handler, or its error, storable.

A handler that returns has done its part. A result that is not JSON, or too large, must not fail the
run: the run would be retried, and the handler called again. Such a result is kept as marked text.

Tracebacks have no frames of the engine that called the handler.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from mainspring.core import codec
from mainspring.core.context import RunContext
from mainspring.errors import GiveUp, Retry, Snooze

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
            _describe(error),
        )
        return codec.kept_as_text(result)
    return result


def _describe(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return type(error).__name__


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
