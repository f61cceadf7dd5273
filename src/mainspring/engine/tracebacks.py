"""Formats errors of handlers, and their tracebacks without the frames of the engine that called
them."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

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
