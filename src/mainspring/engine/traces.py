"""Tracebacks as their readers want them: from their own code on."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["trace_of"]

_HERE = str(Path(__file__).parent)
_HANDLERS = str(Path(__file__).parent.parent / "handlers.py")


def trace_of(error: BaseException, most: int) -> str:
    """The newest `most` characters of a traceback, without the frames that led to the handler."""
    frames = error.__traceback__
    while frames is not None and _ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    shown = frames or error.__traceback__
    return "".join(traceback.format_exception(type(error), error, shown))[-most:]


def _ours(name: str) -> bool:
    return name.startswith(_HERE) or name == _HANDLERS
