"""Ends a scheduler of this process as `kill -9` would end its program."""

from __future__ import annotations

import asyncio

from mainspring import Scheduler


def kill(scheduler: Scheduler) -> None:
    """None of its tasks takes another step: nothing is given back, resigned or written."""
    assert scheduler._engine is not None
    for task in [*scheduler._engine._tasks]:
        if task.get_loop() is asyncio.get_running_loop():
            task.cancel()
        else:  # the engine has a thread
            task.get_loop().call_soon_threadsafe(task.cancel)
