"""Notices when the program's event loop is blocked: a `time.sleep` in async code, for example."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Callable

from mainspring.engine.executors.loop import Home
from mainspring.engine.loop_thread import call_soon

__all__ = ["LoopWatch"]

log = logging.getLogger("mainspring")

BLOCKED_AFTER = 1.0
"""Seconds without an answer after which a loop counts as blocked."""

LOOK_EVERY = 0.25

_LIBRARY = os.path.dirname(os.__file__)


class LoopWatch:
    """Used on the engine's loop. `blocked()` is called when the loop stands still, `freed()` when
    it goes on. A loop that has nothing to do is not asked."""

    def __init__(
        self, home: Home, *, blocked: Callable[[], None], freed: Callable[[], None]
    ) -> None:
        self._home = home
        self._blocked = blocked
        self._freed = freed

    async def watching(self) -> None:
        engine = asyncio.get_running_loop()
        if self._home.loop is engine:  # inline: who looks is blocked as well
            return
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if not self._home.dealt:
                continue
            answered = asyncio.Event()
            call_soon(self._home.loop, call_soon, engine, answered.set)
            try:
                async with asyncio.timeout(BLOCKED_AFTER):
                    await answered.wait()
            except TimeoutError:
                self._blocked()
                await answered.wait()
                self._freed()

    def where(self) -> str:
        """The line of code that the loop stands at, as far as it can be seen from here."""
        thread = getattr(self._home.loop, "_thread_id", None)
        frame = sys._current_frames().get(thread) if thread is not None else None
        if frame is None:
            return "at an unknown line"
        lines = traceback.extract_stack(frame)
        own = [line for line in lines if not line.filename.startswith(_LIBRARY)]
        line = (own or lines)[-1]
        return f"at {line.filename}:{line.lineno}"
