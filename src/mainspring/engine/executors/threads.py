"""Runs sync handlers in daemon threads.

Daemon threads, unlike those of `concurrent.futures`: a handler that never returns must not
keep the program from ending.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable

__all__ = ["ThreadExecutor"]

IDLE_SECONDS = 30.0


class ThreadExecutor:
    """Runs calls in threads; a thread is made when none is idle and ends when long idle."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._alive = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run the call soon. It must not raise."""
        context = contextvars.copy_context()
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._alive += 1
                threading.Thread(target=self._work, name="mainspring-handler", daemon=True).start()
        self._calls.put(lambda: context.run(call))

    def close(self) -> None:
        """Let idle threads end; busy ones end with their call."""
        with self._lock:
            for _ in range(self._alive):
                self._calls.put(None)

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._idle:  # counted as idle: nobody has a call on the way for us
                        self._idle -= 1
                        self._alive -= 1
                        return
                continue
            if call is None:
                with self._lock:
                    self._alive -= 1
                return
            call()
            del call  # or the last call's objects would live until the next one
            with self._lock:
                self._idle += 1
