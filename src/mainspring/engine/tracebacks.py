"""Formats tracebacks of handlers without the frames of the engine that called them."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from mainspring.core import handlers

__all__ = ["trace_of", "without_engine_frames"]

_HERE = str(Path(__file__).parent)
_HANDLERS = handlers.__file__


def trace_of(error: BaseException, most: int) -> str:
    """The newest `most` characters of a traceback, without the frames that led to the handler."""
    shown = without_engine_frames(error)
    return "".join(traceback.format_exception(type(error), error, shown))[-most:]


def without_engine_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the handler's first frame on; all of it where it has no such frame."""
    frames = error.__traceback__
    while frames is not None and _ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames or error.__traceback__


def _ours(name: str) -> bool:
    return name.startswith(_HERE) or name == _HANDLERS
