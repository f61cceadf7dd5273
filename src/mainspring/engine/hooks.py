"""Calls the program's hooks. An error of a hook is logged; it does not change the run."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("mainspring")

Hook = Callable[..., Any]

_STARTED: set[asyncio.Task[None]] = set()  # a loop keeps its tasks by weak references alone


async def call_hook(hook: Hook, *arguments: Any) -> None:
    """Call a hook. Its first argument is the context of the run."""
    try:
        answer = hook(*arguments)
        if inspect.isawaitable(answer):
            await answer
    except BaseException as error:  # SystemExit too: a hook must not end the program
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        context = arguments[0]
        log.exception(
            "job %s: its hook %s failed; the run is not affected (run %s)",
            context.job_id,
            getattr(hook, "__name__", hook),
            context.run_id,
        )


def start_hook(
    loop: asyncio.AbstractEventLoop, context: contextvars.Context, hook: Hook, *arguments: Any
) -> None:
    """Start a hook on that loop and in that context, without waiting for it."""
    task = loop.create_task(call_hook(hook, *arguments), context=context)
    _STARTED.add(task)
    task.add_done_callback(_STARTED.discard)
