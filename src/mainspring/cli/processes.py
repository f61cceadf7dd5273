"""The processes of `mainspring worker` and `mainspring serve`: several are kept running; one that
reached a limit is replaced; their log and their garbage collector are set up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any, NoReturn

from mainspring.cli.errors import BAD_INPUT, OK, Stopped
from mainspring.cli.output import json_text, printable
from mainspring.core.clock import Clock, SystemClock
from mainspring.core.plurals import plural

supervisor_log = logging.getLogger("mainspring.supervisor")
worker_log = logging.getLogger("mainspring.worker")

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STABLE_AFTER = 60.0
"""A process that worked this many seconds is restarted or replaced after the shortest pause."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

PLACE = "MAINSPRING_PLACE"
QUICK_REPLACEMENT_PAUSE = 10.0

YOUNG_THRESHOLD = 10_000
"""New objects before the collector scans the youngest generation (Python's default is 700)."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a process among those that a supervisor keeps, counted from 1."""

    supervisor: int
    number: int

    @classmethod
    def take(cls) -> Place | None:
        """The place that the supervisor gave this process; None for one that was started by hand.
        The variable is removed: what a handler starts has no place."""
        given = os.environ.pop(PLACE, None)
        return None if given is None else cls(*map(int, given.split(":")))

    def variables(self) -> dict[str, str]:
        return {PLACE: f"{self.supervisor}:{self.number}"}


def supervise(count: int) -> int:
    """Keep `count` processes with this command line running until a signal. Returns the exit
    code."""
    return asyncio.run(Supervisor(count).run())


def _same_command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]


class Supervisor:
    """Passes the first signal on to the children, which finish their work; a second kills them.

    A child that ends is started again, after a pause that grows while it keeps ending. If one ends
    with the exit code for bad input, all stop, because a new one would end in the same way.
    """

    def __init__(self, count: int) -> None:
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
        supervisor_log.info("process %d supervises %s", os.getpid(), plural(self._count, "worker"))
        await asyncio.gather(*(self._keep(index + 1) for index in range(self._count)))
        return self._code

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            supervisor_log.warning("killing all processes; other workers rescue what was running")
            self._code = 128 + number
            self._signal_all(signal.SIGKILL)
            return
        what = plural(len(self._children), "process", "processes")
        supervisor_log.info("stopping %s (signal again to kill)", what)
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
            supervisor_log.warning(
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
            *_same_command(),
            env={**os.environ, **Place(os.getpid(), process_number).variables()},
            stdin=DEVNULL,
            process_group=0,
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


class Replacements:
    """Made when a process starts to work. `pause()` is for the moment when it has reached its limit
    and has drained: no run may grow on during the pause.

    A limit a little above what a process holds when it starts is reached again by each new process,
    within seconds."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic()

    def pause(self) -> float:
        """Seconds to wait before this process is replaced, if it lasted less than a minute."""
        lasted = self._clock.monotonic() - self._began
        if lasted >= STABLE_AFTER:
            worker_log.warning("this process has reached its memory limit: it is replaced")
            return 0.0
        worker_log.error(
            "this process has reached its memory limit %.0f s after its start: it is replaced in"
            " %.0f s. Processes that reach it so soon do little work. Give it a higher limit"
            " (--memory-limit, MEMORY_LIMIT, or memory_limit= in the code), or find the job that"
            " takes so much memory",
            lasted,
            QUICK_REPLACEMENT_PAUSE,
        )
        return QUICK_REPLACEMENT_PAUSE


def replace_process(
    folder: str, place: Place | None = None, command: Sequence[str] | None = None
) -> NoReturn:
    """Replace this process by one with the same command line: same pid, same supervisor, no
    threads.

    Signals are blocked meanwhile; the new process gets them when it can handle them, within
    `end_quietly_on_signals`.
    """
    command = command or _same_command()
    variables = {} if place is None else place.variables()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(folder)
    os.execve(command[0], list(command), {**os.environ, **variables})


@contextlib.contextmanager
def end_quietly_on_signals() -> Iterator[None]:
    """Exit on a signal until the scheduler handles signals itself: there is no work to finish.
    Also lets signals through that the process before this one has blocked."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Stopped(0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tune_garbage_collector() -> None:
    """Exempt what is loaded from collections, and collect less often.

    Modules live as long as the process. Scanning them took 20 ms and more of every full collection,
    and stopped handlers, calls and renewals meanwhile. Runs form no cycles, so scanning them again
    and again freed nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD)


def share_the_interpreter() -> None:
    """Let the engine's thread have the interpreter after 1 ms when requests keep it busy. With
    Python's 5 ms, of 20 jobs that share each second the 99th percentile began 118 to 338 ms late
    under requests for lists, and now 77 ms, with as many requests a second or more."""
    sys.setswitchinterval(0.001)


# Their log: coloured on a terminal, plain or JSON lines elsewhere

_OF_JOB = "mainspring.run."
"""The logger of a handler's own lines, `ctx.log`, is named by this and the job's id."""


def set_up_log(
    *, verbose: bool, quiet: bool, as_json: bool, several_processes: bool = False
) -> None:
    """Log to stderr, unless the program has set logging up by itself. `several_processes`: others
    log to the same terminal, so each line names its process."""
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    logging.getLogger("mainspring").setLevel(level)
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(_log_handler(as_json=as_json, several_processes=several_processes))
    root.setLevel(logging.WARNING if quiet else logging.INFO)


def _log_handler(*, as_json: bool, several_processes: bool = False) -> logging.Handler:
    if sys.stderr.isatty() and not as_json:
        from rich.console import Console
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(
            console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S"
        )
        handler.setFormatter(
            _ForTerminal("[%(process)d] %(message)s" if several_processes else "%(message)s")
        )
        return handler
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(_JsonLines())
    else:
        lines = _Printable(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s [%(process)d] %(name)s: %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S",
        )
        lines.converter = time.gmtime
        handler.setFormatter(lines)
    return handler


class _Printable(logging.Formatter):
    """Escapes what a terminal would obey: messages quote errors of handlers and answers of
    endpoints."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _ForTerminal(_Printable):
    """Leaves out the name of the logger. A line that a handler logs has its job only there."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if record.name.startswith(_OF_JOB):
            record.message = f"job {record.name.removeprefix(_OF_JOB)}: {record.message}"
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        for fact in ("job_id", "run_id", "attempt"):
            if hasattr(record, fact):
                document[fact] = getattr(record, fact)
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json_text(document, indent=None)
