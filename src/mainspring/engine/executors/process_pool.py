"""A pool of child processes that run handlers with `isolation="process"`.

Each child leads its own session, so that a run's processes can be ended together: with SIGTERM, so
that the handler can clean up, and a second later with SIGKILL. A child serves one run after another
until it is idle for too long, or until a run leaves something behind in it. `Child` is the parent's
handle of one child, `child_main.py` the code that runs in it.
docs/decisions/0003-process-isolation.md says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from msgspec import structs

from mainspring.core.codec import decode, encode
from mainspring.core.context import RunContext
from mainspring.core.model import Run
from mainspring.core.resources import Resources, not_for_process
from mainspring.core.trace_context import current_trace
from mainspring.engine.attempt import AttemptError
from mainspring.engine.executors.child_main import HEADER, make_frame, refuse_while_loading
from mainspring.engine.memory import memory_of_tree
from mainspring.errors import (
    InvalidInput,
    InvalidPayload,
    MainspringError,
    MemoryExceeded,
    NotStarted,
    ProcessDied,
    RemoteFailure,
    RunCancelled,
)

GRACE: Final = 1.0  # seconds between SIGTERM and SIGKILL, and for what should end by itself
SAMPLE: Final = 0.05  # seconds between two looks at the memory in use
_POLL: Final = 0.01
_MAX_FRAME: Final = 4 * 2**20  # from a child: larger than any escaped result or traceback
# The parent's own `sys.path` comes first, so that the child finds the very same modules.
_BOOT: Final = (
    "import json, sys; fd, parent, path, sys.argv[:] = json.loads(sys.argv[1]);"
    " sys.path[:] = path; from mainspring.engine.executors.child_main import main; main(fd, parent)"
)

_RUN_FIELDS: Final = (
    *("id", "job_id", "handler", "attempt", "token"),
    *("created_at", "scheduled_at", "run_at", "started_at"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a child finds a handler's function.

    Functions of the script that was started have `module="__main__"`, its path, and its package
    where it was started by `python -m`. `layers` is how many `__wrapped__` lie between the name
    in the module and the function itself.
    """

    module: str
    qualname: str
    main_path: str | None = None
    package: str | None = None
    layers: int = 0

    @classmethod
    def check(cls, function: Callable[..., Any]) -> None:
        """Refuse a function that another process cannot find by its name, also while decorating."""
        name = getattr(function, "__qualname__", None)
        if name is None or getattr(function, "__module__", None) is None:
            raise _unfit(function, "it is an object without a name")
        if "<lambda>" in name:
            raise _unfit(function, "a lambda has no name")
        if "<locals>" in name:
            raise _unfit(function, "it is made inside another function")
        owner = getattr(function, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            raise _unfit(function, "it is a method bound to an object, which stays behind")
        if function.__module__ == "__main__" and _main_path() is None:
            raise _unfit(function, "it is made in an interactive session, not in a file")

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Target:
        """The target of a function whose module has been loaded; InvalidInput if it has none."""
        cls.check(function)
        module, qualname = function.__module__, function.__qualname__
        layers = _layers(function, module, qualname)
        if module != "__main__":
            return cls(module, qualname, layers=layers)
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return cls(module, qualname, _main_path(), spec.parent if spec else None, layers)


def resources_of_process(resources: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a process needs to make its own `ctx.resources`: values as JSON, where it finds the
    factories, and of the other resources why it has none."""
    factories = resources.factories if isinstance(resources, Resources) else {}
    given = resources.values_of_program if isinstance(resources, Resources) else resources
    values: dict[str, str] = {}
    withheld: dict[str, str] = {}
    opened: dict[str, Any] = {}
    on_loop = resources.on_loop if isinstance(resources, Resources) else ()
    for name in dict.fromkeys((*given, *factories)):  # in their order: one may use another
        try:
            if name in factories:
                factory = factories[name]
                opened[name] = {
                    "target": asdict(Target.of(factory.function)),
                    # A loop of its process lasts for one run.
                    "per_run": factory.per_run or name in on_loop,
                }
            else:
                values[name] = encode(given[name], what="value")
        except InvalidPayload as error:
            withheld[name] = not_for_process(name, error.reason)
        except InvalidInput as error:
            withheld[name] = f"the resource {name!r} is not open in this process: {error}"
    return {"values": values, "withheld": withheld, "factories": opened}


def _main_path() -> str | None:
    """The file of the program that was started; None in an interactive session."""
    path = os.path.abspath(getattr(sys.modules["__main__"], "__file__", None) or "")
    return path if os.path.isfile(path) else None


def _layers(function: Callable[..., Any], module: str, qualname: str) -> int:
    target: Any = sys.modules.get(module)
    for name in qualname.split("."):
        target = getattr(target, name, None)
    layers = 0
    while target is not None and target is not function:
        target, layers = getattr(target, "__wrapped__", None), layers + 1
    if target is None:
        raise _unfit(function, f"{module}.{qualname} is not there, or is something else")
    return layers


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{function.__module__}.{name}"


def _unfit(function: Callable[..., Any], why: str) -> InvalidInput:
    return InvalidInput(
        f"{_name(function)} cannot run in a process of its own: {why}. Use a function that is"
        ' defined at the top of a module, or isolation="thread"',
        field="isolation",
    )


class ProcessPool:
    """At most `size` processes at once; each ends after `idle` seconds without a run.

    Belongs to the event loop that it is used on.
    """

    def __init__(self, *, size: int, idle: float = 60.0) -> None:
        self._size = size
        self._idle_seconds = idle
        self._free = asyncio.Semaphore(size)
        self._children: set[Child] = set()
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._endings: dict[Child, asyncio.Task[None]] = {}
        self._closed = False

    async def run(
        self,
        target: Target,
        run: Run,
        *,
        takes_context: bool,
        arguments: Mapping[str, Any],
        context: RunContext,
        memory_limit: int | None = None,
        around: Target | None = None,
    ) -> Reply:
        """Run the handler in a process; log lines and progress go to `context` as they come.

        Raises ProcessDied and MemoryExceeded. When cancelled, it ends the run's whole process
        group, waits until it is gone, and raises CancelledError.
        """
        refuse_while_loading()
        needs_resources = takes_context or around is not None
        resources = resources_of_process(context.resources if needs_resources else {})
        request = make_frame(
            {
                "target": asdict(target),
                "around": None if around is None else asdict(around),
                "run": {name: getattr(run, name) for name in _RUN_FIELDS},
                "payload": encode(run.payload),
                "arguments": encode(dict(arguments), what="arguments"),
                "upstream": encode(
                    [structs.asdict(run) for run in context.results.runs],
                    what="upstream runs",
                    limit=sys.maxsize,
                ),
                "resources": resources,
                "takes_context": takes_context,
                "memory_limit": memory_limit,
                "log_level": context.log.getEffectiveLevel(),
                "trace": current_trace(),
            }
        )
        async with self._free:
            while True:
                child = await self._take(memory_limit)
                try:
                    return await self._serve(child, request, context, memory_limit)
                except ProcessDied:
                    # It died while it was idle, or before its handler began: another one serves it.
                    if child.began or not child.served:
                        raise

    async def close(self) -> None:
        """End every child and wait until none is left; current runs get RunCancelled."""
        self._closed = True
        for child in list(self._children):
            child.closing = True
            self._end(child)
        while self._endings:
            await asyncio.wait(list(self._endings.values()))

    async def _serve(
        self, child: Child, request: bytes, context: RunContext, memory_limit: int | None
    ) -> Reply:
        """Return the reply of the child. Afterwards the child is idle, or it ends."""
        try:
            reply = await child.serve(request, context, memory_limit)
        except BaseException:
            await self._ended(child)
            raise
        if child.spent or self._closed:
            await self._ended(child)
        else:
            self._make_idle(child)
        return reply

    async def _take(self, memory_limit: int | None) -> Child:
        while self._idle:
            child, timer = self._idle.popitem()  # the newest, so that the others can end
            timer.cancel()
            if child.fits(memory_limit):
                return child
            self._end(child)
        # Those that are ending still count, or there would be more than `size`.
        while len(self._children) >= self._size:
            await asyncio.wait(list(self._endings.values()), return_when=asyncio.FIRST_COMPLETED)
        if self._closed:
            raise NotStarted("the process pool is closed: it takes no more runs")
        child = Child.start()
        self._children.add(child)
        return child

    def _make_idle(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        self._idle[child] = loop.call_later(self._idle_seconds, self._end, child)

    def _end(self, child: Child) -> asyncio.Task[None]:
        if timer := self._idle.pop(child, None):
            timer.cancel()
        if child not in self._endings:
            self._endings[child] = asyncio.get_running_loop().create_task(child.end())
            self._endings[child].add_done_callback(lambda _: self._forget(child))
        return self._endings[child]

    def _forget(self, child: Child) -> None:
        self._children.discard(child)
        self._endings.pop(child, None)

    async def _ended(self, child: Child) -> None:
        """Wait until the child is gone, whatever is cancelled meanwhile; then raise that."""
        ending, cancelled = self._end(child), None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


@dataclass(frozen=True, slots=True)
class Reply:
    """How a handler ended: with a result, or with an error; and what it used."""

    result: Any = None
    error: AttemptError | None = None
    cpu_seconds: float | None = None
    peak_memory: int | None = None


class Child:
    """One child process. It serves one run after another."""

    def __init__(self, process: subprocess.Popen[bytes], wire: socket.socket) -> None:
        self.pid = process.pid
        self.spent = False  # the last run may have left something behind: it serves no other
        self.closing = False
        self.began = False  # whether the handler of the current run has begun
        self.served = 0  # runs before the current one
        self._memory_used: int | None = None
        self._process = process
        self._wire = wire
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._not_serving = asyncio.Event()
        self._not_serving.set()
        self._watch_exit()

    @classmethod
    def start(cls) -> Child:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _no_start(error) from error
        try:
            ours.setblocking(False)
            path = [str(entry) for entry in sys.path]
            boot = json.dumps([theirs.fileno(), os.getpid(), path, sys.argv])
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, boot],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            ours.close()
            raise _no_start(error) from error
        finally:
            theirs.close()
        return cls(process, ours)

    def fits(self, memory_limit: int | None) -> bool:
        """Whether the process lives, and uses at most half of the next run's memory limit."""
        if self._exited.is_set():
            return False
        used = None if memory_limit is None else memory_of_tree(self.pid)
        return memory_limit is None or used is None or used <= memory_limit / 2

    async def serve(self, request: bytes, context: RunContext, memory_limit: int | None) -> Reply:
        guard = None
        self._not_serving.clear()
        self.began = False
        if memory_limit is not None:
            guard = self._loop.create_task(self._guard_memory(memory_limit))
        try:
            with contextlib.suppress(ConnectionError):  # reading tells how it died
                await self._loop.sock_sendall(self._wire, request)
            while True:
                message = await self._message()
                reply = self._handle(message, context)
                if reply is not None:
                    break
            self.served += 1
            if memory_limit is not None and message.get("memory"):
                raise _no_memory(reply, memory_limit)
            return reply
        except EOFError:
            raise await self._death_cause(memory_limit) from None
        finally:
            self._not_serving.set()
            if guard is not None:
                guard.cancel()

    async def end(self) -> None:
        """Send SIGTERM to the whole group, SIGKILL to what is left, and wait until all are gone."""
        self._signal(signal.SIGTERM)
        if not await self._exits(GRACE):
            self._signal(signal.SIGKILL)
            await self._exited.wait()
        await self._group_gone()
        self._close_connection()
        await self._not_serving.wait()  # a reader must see the end of file, not a closed descriptor
        self._wire.close()

    def _watch_exit(self) -> None:
        """Watch for the exit without a signal handler or a thread."""
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or a sandbox without it
            self._poller = self._loop.create_task(self._poll_exit())
        else:
            self._loop.add_reader(self._pidfd, self._on_pidfd)

    def _on_pidfd(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Before the process is reaped: until then no other group can get its number.
        self._kill(signal.SIGKILL)
        self._on_exit()

    async def _poll_exit(self) -> None:
        while self._process.poll() is None:
            await asyncio.sleep(_POLL)
        self._kill(signal.SIGKILL)
        self._on_exit()

    def _on_exit(self) -> None:
        self._process.wait()
        self._exited.set()
        # The connection ends with the group, unless a fork that left the group keeps it open.
        self._loop.call_later(GRACE, self._close_connection)

    def _close_connection(self) -> None:
        with contextlib.suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    async def _exits(self, within: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._exited.wait()
        return self._exited.is_set()

    def _signal(self, number: signal.Signals) -> None:
        if not self._exited.is_set():
            self._kill(number)

    def _kill(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _group_gone(self) -> None:
        """Wait for the rest of the group, which SIGKILL was sent to."""
        with contextlib.suppress(TimeoutError, ProcessLookupError, PermissionError):
            async with asyncio.timeout(GRACE):
                while True:
                    os.killpg(self.pid, 0)
                    if not _any_alive(self.pid):
                        return
                    await asyncio.sleep(_POLL)

    async def _message(self) -> dict[str, Any]:
        (size,) = HEADER.unpack(await self._exactly(HEADER.size))
        if size > _MAX_FRAME:
            raise _invalid_message(f"a frame of {size:,} bytes")
        try:
            message = decode((await self._exactly(size)).decode())
        except (ValueError, ArithmeticError, TypeError, RecursionError) as error:
            raise _invalid_message(f"no JSON ({error})") from error
        if not isinstance(message, dict):
            raise _invalid_message(f"a {type(message).__name__}")
        return message

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                chunk = await self._loop.sock_recv(self._wire, 2**16)
            except ConnectionResetError:
                continue  # it died before it read the request: what it sent before comes next
            if not chunk:
                raise EOFError
            self._buffer += chunk
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _handle(self, message: dict[str, Any], context: RunContext) -> Reply | None:
        """Apply a message of the child to the context; return the reply if it is the last one."""
        try:
            match message["type"]:
                case "started":
                    self.began = True
                    return None
                case "log":
                    context.log.handle(_log_record(message, context))
                    return None
                case "progress":
                    context.progress(message["done"], message["total"], message["message"])
                    return None
                case "detail":
                    context.detail = message["value"]
                    return None
                case "done":
                    reply = Reply(result=decode(message["result"]), **_usage(message))
                case "failed":
                    reply = Reply(error=_remote_error(message), **_usage(message))
                case other:
                    raise _invalid_message(f"a message of type {other!r}")
            self.spent = self.spent or bool(message["spent"])
        except (KeyError, ValueError, ArithmeticError, TypeError) as error:
            raise _invalid_message(f"a message that lacks something ({error!r})") from error
        return reply

    async def _death_cause(self, memory_limit: int | None) -> MainspringError:
        """Return the error that says why the connection ended before a reply."""
        exited = await self._exits(GRACE)
        if self._memory_used is not None and memory_limit is not None:
            return MemoryExceeded(
                f"the run's processes used {_mib(self._memory_used)} of memory;"
                f" its limit is {_mib(memory_limit)}"
            )
        if self.closing:
            return RunCancelled("the process pool was closed while the handler ran")
        if not exited:
            return ProcessDied("the process closed its connection to the worker")
        return ProcessDied(_cause(self._process.returncode, self.began))

    async def _guard_memory(self, limit: int) -> None:
        """Kill the group as soon as it exceeds the limit, before the machine runs out of memory."""
        while (used := memory_of_tree(self.pid, limit)) is not None:
            if used > limit:
                self._memory_used = used
                self.spent = True
                self._signal(signal.SIGKILL)
                return
            await asyncio.sleep(SAMPLE)


def _any_alive(group: int) -> bool:
    """Whether a group has processes other than zombies, which an init process may keep for long."""
    if not os.path.isdir("/proc/self/task"):
        return True
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in b"ZX":
                return True
    return False


def _log_record(message: dict[str, Any], context: RunContext) -> logging.LogRecord:
    """The log record of the child, with its time; its text is already formatted."""
    record = logging.LogRecord(
        context.log.name, message["level"], "", 0, str(message["text"]), None, None
    )
    record.created = message["time"]
    record.msecs = int(record.created % 1 * 1000)
    return record


def _remote_error(message: dict[str, Any]) -> AttemptError:
    return AttemptError(
        message=message["message"],
        names=tuple(message["names"]),
        traceback=message["traceback"] or None,
        kind=message["kind"],
        retry_after=message["retry_after"],
        exception=RemoteFailure(message["message"]),
    )


def _usage(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("cpu_seconds", "peak_memory")}


def _no_memory(reply: Reply, limit: int) -> MemoryExceeded:
    error = MemoryExceeded(f"the handler needed more memory than its limit of {_mib(limit)}")
    if reply.error is not None and reply.error.traceback is not None:
        error.add_note(reply.error.traceback)
    return error


def _no_start(error: OSError) -> ProcessDied:
    return ProcessDied(f"no process could be started: {error}")


def _invalid_message(what: str) -> ProcessDied:
    return ProcessDied(f"the process sent an invalid message: {what}; it was ended")


def _cause(code: int, began: bool) -> str:
    when = "under its handler" if began else "before its handler began"
    if code >= 0:
        return f"the process ended with exit code {code} {when}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (sent from outside, or by the kernel when memory ran out)" if code == -9 else ""
    return f"the process was ended by {name} {when}{hint}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
