"""What runs in a child process: takes runs from the parent, one after another, and calls handlers.

`process_pool.py` starts it as the leader of its own session, with one end of a socket pair.
Requests come in and messages go out as frames: four bytes of length, then JSON
(`mainspring.core.codec`). Nothing is pickled. The parent's code names the function to call; nothing
stored does.

The main thread runs handlers, so that SIGTERM can unwind them. A second thread reads the
socket, and ends the whole process group once the parent is gone, whatever the handler does.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import inspect
import logging
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from mainspring.core.clock import process_cpu
from mainspring.core.codec import decode, encode
from mainspring.core.context import (
    MAX_LOG_BYTES,
    RunContext,
    UpstreamResults,
    UpstreamRun,
)
from mainspring.core.durations import duration
from mainspring.core.handlers import (
    ArgumentMismatch,
    ArgumentTypes,
    Around,
    call_inside,
    is_async_function,
)
from mainspring.core.model import Run, State
from mainspring.core.resources import Factory, Resources, naming
from mainspring.core.trace_context import attach_trace
from mainspring.engine.attempt import AttemptError, error_text, storable_result
from mainspring.errors import ArgumentsRefused, MainspringError

HEADER: Final = struct.Struct("!I")
MAIN: Final = "__mainspring_main__"  # the parent's script in here: no `__main__` guard fires
_NO_LIMIT: Final = 2**32 - 1  # of a frame; what may be kept is checked where it is made
_PARENT_CHECK_MS: Final = 5_000
_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG

_loading: str | None = None


def make_frame(message: Mapping[str, Any]) -> bytes:
    body = encode(message, what="message", limit=_NO_LIMIT).encode()
    return HEADER.pack(len(body)) + body


def refuse_while_loading() -> None:
    """Refuse to start a scheduler in a child that imports the user's module for its handler.

    A module that starts its scheduler when it is imported would make every child a worker.
    """
    if _loading is not None:
        raise MainspringError(
            f"this process only loads {_loading}, and importing it started a scheduler. Put the"
            ' code that starts it under `if __name__ == "__main__":`, or into a function that your'
            " program calls"
        )


def main(fd: int, parent: int) -> None:
    """Serve the parent at the other end of `fd` until it is gone or sends SIGTERM."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent's thread may have blocked some
    _adopt_orphans()
    _end_after_parent(parent)
    channel = _Channel(fd)
    threading.Thread(target=channel.listen, name="mainspring-parent", daemon=True).start()
    _Server(channel).serve()


def _adopt_orphans() -> None:
    """Adopt grandchildren whose parent ends, so that none is overlooked (Linux)."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _end_after_parent(parent: int) -> None:
    """End this process a second after its parent, also while a handler's C code (a regular
    expression, say) holds the interpreter, so that the listening thread cannot run (Linux).

    When the parent dies, the kernel sends SIGHUP. Its handler must be C code then, and should give
    the thread time to end the whole group, with the commands that the handler has started. The
    function `alarm` of the C library does just that: it gets the number of the signal, which is 1,
    and after so many seconds SIGALRM ends the process. A SIGKILL by the kernel would come at once,
    and leave those commands behind.

    The kernel means the thread that started this process: that is the loop of the process pool,
    which ends its children before it ends.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(Exception):
        import ctypes

        library = ctypes.CDLL(None)
        library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        library.signal.restype = ctypes.c_void_p
        library.signal(signal.SIGHUP, ctypes.cast(library.alarm, ctypes.c_void_p))
        library.prctl(_DEATH_SIGNAL, int(signal.SIGHUP), 0, 0, 0)
    if os.getppid() != parent:  # it died before
        _end_group()


def _end_group() -> None:
    """End this process and all that its handler started, because the parent is gone. There is
    nobody to report to; the next worker that claims the run repeats it."""
    os.killpg(0, signal.SIGKILL)


class _Channel:
    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        # Commands that a handler starts must not hold the channel open.
        self._socket.set_inheritable(False)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.current: RunContext | None = None

    def set_context(self, context: RunContext | None) -> None:
        with self._lock:
            self.current = context

    def send(self, message: Mapping[str, Any], sender: RunContext | None = None) -> None:
        """Send a message, unless its run has ended: threads of a handler may outlive the run."""
        if os.getpid() != self._owner:
            return  # a fork does not share the lock: its frames would mix with the child's
        frame = make_frame(message)
        with self._lock:
            if sender is not self.current:
                return
            try:
                self._socket.sendall(frame)
            except OSError:
                _end_group()

    def listen(self) -> None:
        """Pass requests to the main thread; end the whole group when the parent is gone."""
        with contextlib.suppress(OSError):
            parent = os.getppid()
            while (head := self._exactly(HEADER.size, parent)) is not None:
                body = self._exactly(HEADER.unpack(head)[0], parent)
                if body is None:
                    break
                self.requests.put(body)
        _end_group()

    def _exactly(self, size: int, parent: int) -> bytes | None:
        # A fork of the parent may keep the other end open, and then the parent's death gives no
        # end of file: so this also checks the parent's process id.
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        taken = bytearray()
        while len(taken) < size:
            if not ready.poll(_PARENT_CHECK_MS):
                if os.getppid() != parent:
                    return None
                continue
            chunk = self._socket.recv(size - len(taken))
            if not chunk:
                return None
            taken += chunk
        return bytes(taken)


class _Context(RunContext[Any]):
    """A run context that sends log lines and progress to the parent."""

    __slots__ = ("_channel",)

    def __init__(self, request: Mapping[str, Any], channel: _Channel) -> None:
        run = Run(**request["run"], payload=decode(request["payload"]))
        upstream = [
            UpstreamRun(**{**facts, "state": State(facts["state"])})
            for facts in decode(request["upstream"])
        ]
        super().__init__(run, results=UpstreamResults(upstream))
        self._channel = channel
        self._log = logging.Logger(f"mainspring.run.{self.job_id}", request["log_level"])
        self._log.addHandler(_Forward(self))

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        super().progress(done, total, message)
        said = self.latest_progress
        assert said is not None
        self.send(
            {"type": "progress", "done": said.done, "total": said.total, "message": said.message}
        )

    @property
    def detail(self) -> Any:
        return self._detail

    @detail.setter
    def detail(self, value: Any) -> None:
        RunContext.detail.fset(self, value)  # type: ignore[attr-defined]
        self.send({"type": "detail", "value": self._detail})

    def send(self, message: Mapping[str, Any]) -> None:
        self._channel.send(message, self)


class _Forward(logging.Handler):
    def __init__(self, context: _Context) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)[:MAX_LOG_BYTES]
        self._context.send(
            {"type": "log", "level": record.levelno, "time": record.created, "text": text}
        )


class _Server:
    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._home = os.open(".", os.O_RDONLY)
        self._pid = os.getpid()
        self._stopping = False
        self._opened: dict[str, Any] = {}
        self._to_close = contextlib.ExitStack()

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        try:
            self._serve()
        finally:
            self._to_close.close()

    def _serve(self) -> None:
        while not self._stopping:
            request = decode(self._channel.requests.get().decode())
            self._restore()
            usage = _Usage()
            answer = self._answer(request) | usage.measured()
            if os.getpid() != self._pid:
                os._exit(0)  # a fork that returned from the handler: only one process may answer
            _flush()
            self._channel.send(answer | {"spent": answer.get("memory", False) or _has_children()})

    def _restore(self) -> None:
        """Restore the working folder and the SIGTERM handler, which a handler may have changed."""
        os.fchdir(self._home)
        signal.signal(signal.SIGTERM, self._stop)

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        context = _Context(request, self._channel)
        self._channel.set_context(context)
        context.send({"type": "started"})
        try:
            # First what is around it: a framework may have to be set up before a handler's module.
            around = _load(**request["around"]) if request["around"] is not None else None
            handler = _load(**request["target"])
            with _memory_limit(request["memory_limit"]):
                context.resources = self._resources(**request["resources"])
                # In a copy of the process's context: the next run here must not see this one's.
                result = contextvars.copy_context().run(_call, handler, around, context, request)
            result = storable_result(result, context)
            return {"type": "done", "result": encode(result, what="result")}
        except BaseException as error:
            if self._stopping:
                raise SystemExit(128 + signal.SIGTERM) from None
            return _failure(error)
        finally:
            self._channel.set_context(None)

    def _resources(
        self,
        values: Mapping[str, str],
        withheld: Mapping[str, str],
        factories: Mapping[str, Mapping[str, Any]],
    ) -> Resources:
        """The resources of a run. Those that are not opened for each run stay open until this
        process ends."""
        per_run = {}
        for name, found in factories.items():
            if found["per_run"]:
                per_run[name] = Factory(name, _load(**found["target"]), per_run=True)
            elif name not in self._opened:
                factory = Factory(name, _load(**found["target"]), per_run=False)
                with naming(name):
                    self._opened[name] = factory.open_in_thread(self._to_close)
        given = {name: decode(text) for name, text in values.items()}
        return Resources(given | self._opened, withheld, factories=per_run)

    def _stop(self, *_: object) -> None:
        """SIGTERM: unwind the handler, so that its `finally` blocks run, and leave.

        SystemExit passes through `except Exception`, and through `asyncio.run`, which cancels
        its tasks on the way. A second SIGTERM must not break off the clean-up.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._stopping = True
        if self._channel.current is not None:
            self._channel.current.cancelled = True
        raise SystemExit(128 + signal.SIGTERM)


def _load(
    module: str, qualname: str, main_path: str | None, package: str | None, layers: int
) -> Callable[..., Any]:
    global _loading
    _loading = f"{main_path or module}:{qualname}"
    try:
        target: Any = _script(main_path, package) if main_path else importlib.import_module(module)
        for name in qualname.split("."):
            target = getattr(target, name)
        for _ in range(layers):
            target = target.__wrapped__
        return target  # type: ignore[no-any-return]
    except BaseException as error:
        raise ImportError(
            f"the handler {_loading} cannot be loaded in its process: {error_text(error)}"
        ) from error
    finally:
        _loading = None


def _script(path: str, package: str | None) -> types.ModuleType:
    """Load the parent's script as a module, once, under another name than `__main__`."""
    if MAIN not in sys.modules:
        module = types.ModuleType(MAIN)
        module.__file__ = path
        module.__package__ = package
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        before = sys.modules["__main__"]
        sys.modules[MAIN] = sys.modules["__main__"] = module
        try:
            exec(code, module.__dict__)
        except BaseException:
            del sys.modules[MAIN]
            sys.modules["__main__"] = before
            raise
    return sys.modules[MAIN]


def _call(
    handler: Callable[..., Any],
    around: Around | None,
    context: RunContext,
    request: Mapping[str, Any],
) -> Any:
    try:
        arguments = ArgumentTypes(handler).decode(decode(request["arguments"]))
    except ArgumentMismatch as error:
        name = getattr(handler, "__name__", request["target"]["qualname"])
        raise ArgumentsRefused(f"wrong arguments for {name}: {error}") from None
    attach_trace(request["trace"])
    call = functools.partial(handler, *([context] if request["takes_context"] else []), **arguments)
    result = call_inside(around, context, call, is_async=is_async_function(handler))
    if not inspect.isawaitable(result):
        return result
    import asyncio  # late: a third of a cold start, and only async handlers need it

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited())


@contextlib.contextmanager
def _memory_limit(limit: int | None) -> Iterator[None]:
    """A ceiling on the memory that this process may add, while the handler runs.

    The parent measures what is truly in use; this stops what grows faster than it looks, and
    turns it into a MemoryError where the handler can see it.
    """
    if limit is None:
        yield
        return
    import resource

    try:
        with open("/proc/self/statm") as file:
            base = int(file.read().split()[5]) * resource.getpagesize()
        kind = resource.RLIMIT_DATA
    except OSError:
        base, kind = 0, resource.RLIMIT_AS
    soft, hard = resource.getrlimit(kind)
    wanted = base + limit
    for bound in (soft, hard):
        wanted = wanted if bound == resource.RLIM_INFINITY else min(wanted, bound)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (wanted, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))


def _failure(error: BaseException) -> dict[str, Any]:
    failure = AttemptError.of(error)
    after = failure.retry_after
    try:
        after = None if after is None else duration(after).total_seconds()
    except Exception as wrong:
        return _failure(wrong)
    return {
        "type": "failed",
        "kind": failure.kind,
        # As the parent names them, or `retry_on` would not match a class of the script.
        "names": [name.replace(f"{MAIN}.", "__main__.") for name in failure.names],
        "message": failure.message,
        "traceback": (failure.traceback or "").replace(f"{MAIN}.", ""),
        "retry_after": after,
        "memory": isinstance(error, MemoryError),
    }


class _Usage:
    """What this process, and the processes that it has waited for, use from now on."""

    def __init__(self) -> None:
        self._cpu = _cpu_seconds()
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # Linux: count the peak of memory from now on

    def measured(self) -> dict[str, Any]:
        return {
            "cpu_seconds": max(_cpu_seconds() - self._cpu, 0.0),
            "peak_memory": _peak_memory(),
        }


def _cpu_seconds() -> float:
    children = os.times()  # in steps of 10 ms, so not for this process
    return process_cpu() + children.children_user + children.children_system


def _peak_memory() -> int | None:
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _has_children() -> bool:
    """Whether processes are left that the handler started (zombies count)."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
