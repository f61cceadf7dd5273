"""Starts several worker processes, restarts those that end, and stops them together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from asyncio.subprocess import DEVNULL, Process

from mainspring.cli.errors import BAD_INPUT, OK
from mainspring.cli.worker_command import WorkerCommand
from mainspring.core.clock import SystemClock
from mainspring.core.plurals import plural

__all__ = ["supervise"]

log = logging.getLogger("mainspring.supervisor")

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STABLE_AFTER = 60.0
"""A process that ran this many seconds is started again after the shortest pause."""


def supervise(command: WorkerCommand, count: int) -> int:
    """Keep `count` processes of the command running until a signal. Returns the exit code."""
    from mainspring.cli import log_format

    log_format.set_up(
        verbose=command.verbose,
        quiet=command.quiet,
        as_json=command.as_json,
        several_processes=True,
    )
    return asyncio.run(Supervisor(command, count).run())


class Supervisor:
    """Passes the first signal on to the children, which finish their work; a second kills them.

    A child that ends is started again, after a pause that grows while it keeps ending. If one ends
    with the exit code for bad input, all stop, because a new one would end in the same way.
    """

    def __init__(self, command: WorkerCommand, count: int) -> None:
        self._command = command
        self._count = count
        self._clock = SystemClock()
        self._children: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._signal = signal.SIGTERM
        self._code = OK

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        log.info("process %d supervises %s", os.getpid(), plural(self._count, "worker"))
        await asyncio.gather(*(self._keep(index + 1) for index in range(self._count)))
        return self._code

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("killing all processes; other workers rescue what was running")
            self._code = 128 + number
            self._signal_all(signal.SIGKILL)
            return
        what = plural(len(self._children), "process", "processes")
        log.info("stopping %s (signal again to kill)", what)
        self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
        self._signal = number
        self._stopping.set()
        self._signal_all(number)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children.values():
            _send_signal(child, number)

    async def _keep(self, process_number: int) -> None:
        """Keep one process running until all stop."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            code = await self._run_child(process_number)
            if self._stopping.is_set():
                return
            if code == BAD_INPUT:
                self._code = BAD_INPUT
                self._stop(signal.SIGTERM)
                return
            if code == OK or self._clock.monotonic() - began > STABLE_AFTER:
                pause = FIRST_PAUSE
            log.warning(
                "process %d of %d ended %s; another starts in %.1f s",
                process_number,
                self._count,
                _describe_exit(code),
                pause,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _run_child(self, process_number: int) -> int:
        # In its own process group: Ctrl+C on the terminal then reaches only the supervisor, which
        # passes it on once. A second signal would end the child at once.
        child = await asyncio.create_subprocess_exec(
            *self._command.under(os.getpid(), process_number).line(), stdin=DEVNULL, process_group=0
        )
        self._children[process_number] = child
        if self._stopping.is_set():
            _send_signal(child, self._signal)
        try:
            return await child.wait()
        finally:
            del self._children[process_number]


def _send_signal(child: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-code).name}"
    return f"by signal {-code}"
