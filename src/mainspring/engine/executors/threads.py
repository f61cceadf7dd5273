"""Threads for sync handlers."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable

THREAD_IDLE_SECONDS = 30.0


class ThreadExecutor:
    """Runs each call in a daemon thread. It starts one when none is idle; idle ones end after a
    while. The threads of `concurrent.futures` are no daemons: a handler that never returns would
    keep the program from ending.

    Each call has its own copy of the context in which the executor was made. The context of
    `submit` may be the one of another handler, whose end made capacity free.
    """

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._alive = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run the call soon. It must not raise. RuntimeError: the system starts no more threads,
        and the call is not made."""
        context = self._context.copy()
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(
                    target=self._run_calls, name="mainspring-handler", daemon=True
                ).start()
                self._alive += 1
        self._calls.put(lambda: context.run(call))

    def close(self) -> None:
        """End idle threads now, and busy ones after their call."""
        with self._lock:
            for _ in range(self._alive):
                self._calls.put(None)

    def _run_calls(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=THREAD_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._idle:  # counted as idle: no call is on its way to this thread
                        self._idle -= 1
                        self._alive -= 1
                        return
                continue
            if call is None:
                with self._lock:
                    self._alive -= 1
                return
            call()
            del call  # otherwise its objects would live until the next call
            with self._lock:
                self._idle += 1
