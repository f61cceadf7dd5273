"""Formats tracebacks of handlers without the frames of the engine that called them."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

__all__ = ["trace_of", "without_engine_frames"]

_PACKAGE = str(Path(__file__).parent.parent)


def trace_of(error: BaseException, most: int) -> str:
    """The newest `most` characters of a traceback, without the frames that led to the handler."""
    shown = without_engine_frames(error)
    return "".join(traceback.format_exception(type(error), error, shown))[-most:]


def without_engine_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the handler's first frame on; all of it where it has no such frame."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    return frames or error.__traceback__
