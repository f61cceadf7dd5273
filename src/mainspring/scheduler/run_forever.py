"""Says what runs where, runs a scheduler until SIGTERM or SIGINT, then drains it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from types import FrameType
from typing import Any, Protocol

from mainspring.core.durations import humanize
from mainspring.core.plurals import plural
from mainspring.engine.loop_thread import call_soon
from mainspring.stores.url import without_password

log = logging.getLogger("mainspring")

HOW_TO_STOP = "Press Ctrl+C to stop after running jobs finish, or twice to stop immediately."

MOST_NAMED = 5
"""Jobs that the line names; of more it gives the number."""


def show(line: str) -> None:
    """Log the line, or print it on stderr where the program has not set up logging."""
    if log.hasHandlers():
        log.info("%s", line)
    else:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def summary(
    jobs: list[str],
    store: str,
    workers: int,
    queues: frozenset[str] | None,
    *,
    enabled: bool = True,
) -> str:
    """What runs where: `Mainspring runs daily_report, send_email from sqlite:///jobs.db, …`.
    `store` is a URL or a name. Without `enabled` it fires no slots."""
    named = ", ".join(jobs[:MOST_NAMED])
    if len(jobs) > MOST_NAMED:
        more = len(jobs) - MOST_NAMED
        named += f" and {plural(more, 'more job')}"
    taken = "" if queues is None else f" of the queues {', '.join(sorted(queues))}"
    return (
        f"Mainspring runs {named or 'what is enqueued'} from {without_password(store)},"
        f" at most {workers} at once{taken}, in process {os.getpid()}."
        + ("" if enabled else " It fires no slots (enabled=False).")
    )


START_GRACE = 1.0
"""Seconds that a start may take after a signal before it is cancelled."""

FORCED_END = 60.0
"""Seconds after the drain timeout until the process is ended, whatever it waits for."""

BLOCKED_LOOP_END = 3.0
"""Seconds after the drain until the process is ended if a handler blocks the program's loop."""


class Stop(Protocol):
    """Drains for at most `timeout`, then closes the store."""

    def __call__(self, *, timeout: timedelta) -> Awaitable[None]: ...


async def run_until_signal(
    start: Callable[[], Coroutine[Any, Any, object]],
    stop: Stop,
    drain_soon: Callable[[float], Future[None] | None],
    memory_drained: Callable[[], Future[None]],
    *,
    watch: Callable[[], Awaitable[None]] | None = None,
    started: Callable[[], None] | None = None,
    drain_timeout: timedelta = timedelta(seconds=30),
) -> bool:
    """Run until SIGTERM or SIGINT, then drain for at most `drain_timeout`. A second signal ends the
    process at once, also while a handler blocks the loop: another worker rescues what was running
    when its lease lapses.

    `started` is called once the scheduler runs. `watch` runs meanwhile; when it returns, the
    scheduler drains too. If a handler still blocks the loop after a drain, also after that of the
    memory limit (`memory_drained`), the process ends. Returns whether a signal came, also during
    that drain.
    """
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    signals: list[int] = []
    timers: list[threading.Timer] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            sys.stderr.flush()
            os._exit(128 + number)
        loop.call_soon_threadsafe(asked.set)
        seconds = drain_timeout.total_seconds()
        end_after(seconds + FORCED_END, "could not stop in time")
        # The program's loop may be blocked, so this tells the engine to stop firing and claiming.
        drained = drain_soon(seconds)
        if drained is not None:
            drained.add_done_callback(end_if_blocked)

    def end_after(seconds: float, why: str) -> threading.Timer:
        timer = threading.Timer(seconds, end_anyway, [why])
        timer.daemon = True
        timer.start()
        timers.append(timer)
        return timer

    def end_if_blocked(drained: object) -> None:
        timer = end_after(BLOCKED_LOOP_END, "a handler blocks the event loop and does not stop")
        call_soon(loop, timer.cancel)

    def end_anyway(why: str) -> None:
        log.error("%s; the process ends now", why)
        logging.shutdown()
        os._exit(128 + signals[0] if signals else 1)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, on_signal)
    try:
        if await _start_unless(asked, start):
            try:
                if started is not None:
                    started()
                memory_drained().add_done_callback(end_if_blocked)
                await _first(asked, watch)
                show(drain_notice(drain_timeout))
            finally:
                await stop(timeout=drain_timeout)
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    return bool(signals)


def drain_notice(timeout: timedelta) -> str:
    return (
        f"stopping: waiting up to {humanize(timeout)} for running work; send the signal again to"
        " end at once"
    )


async def _start_unless(
    asked: asyncio.Event, start: Callable[[], Coroutine[Any, Any, object]]
) -> bool:
    """Start, unless a signal comes while the store cannot be reached. A start that is nearly done
    may finish, because runs may have begun; they are drained like all others. Returns whether it
    started."""
    starting = asyncio.ensure_future(start())
    stopping = asyncio.ensure_future(asked.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await asyncio.wait({starting}, timeout=START_GRACE)
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


async def _first(asked: asyncio.Event, watch: Callable[[], Awaitable[None]] | None) -> None:
    if watch is None:
        await asked.wait()
        return
    tasks = {asyncio.ensure_future(asked.wait()), asyncio.ensure_future(watch())}
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()
