"""Detects that the program's event loop is blocked, for example by `time.sleep` in async code."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable

from mainspring.engine.executors.loop import LoopExecutor
from mainspring.engine.loop_thread import call_soon

BLOCKED_AFTER = 1.0
"""Seconds without an answer after which a loop counts as blocked."""

CHECK_INTERVAL = 0.25

_LIBRARY = os.path.dirname(os.__file__)


class LoopWatch:
    """Used on the engine's loop. `blocked()` is called when the program's loop does not answer,
    `freed()` when it answers again. A loop without attempts is not checked."""

    def __init__(
        self, executor: LoopExecutor, *, blocked: Callable[[], None], freed: Callable[[], None]
    ) -> None:
        self._executor = executor
        self._blocked = blocked
        self._freed = freed

    async def watch_periodically(self) -> None:
        engine = asyncio.get_running_loop()
        if self._executor.loop is engine:  # inline: this task would be blocked as well
            return
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            if not self._executor.unended:
                continue
            answered = asyncio.Event()
            call_soon(self._executor.loop, call_soon, engine, answered.set)
            try:
                async with asyncio.timeout(BLOCKED_AFTER):
                    await answered.wait()
            except TimeoutError:
                self._blocked()
                await answered.wait()
                self._freed()

    def where(self) -> str:
        """Return the line of code that the loop's thread is at."""
        thread = getattr(self._executor.loop, "_thread_id", None)
        frame = sys._current_frames().get(thread) if thread is not None else None
        if frame is None:
            return "at an unknown line"
        lines = traceback.extract_stack(frame)
        own = [line for line in lines if not line.filename.startswith(_LIBRARY)]
        line = (own or lines)[-1]
        return f"at {line.filename}:{line.lineno}"
