"""What a handler is given: facts of its run, its log, its progress, the program's resources."""

from __future__ import annotations

import inspect
import logging
import math
import time
import typing
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from types import MappingProxyType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast

import msgspec
from msgspec import Struct

from mainspring.core import codec
from mainspring.core.model import Job, Progress, Run, Source, State
from mainspring.errors import InvalidInput, InvalidPayload, InvalidState


def runs_with_results(run: Run) -> tuple[str, ...]:
    """The runs whose results the handler of a run is given. A queued slot comes after the slot
    before it only to wait for its turn."""
    return () if run.source is Source.SCHEDULE else run.after


class UpstreamRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run that this one came after, as it ended. `result` is None unless it succeeded."""

    run_id: str
    job_id: str
    state: State
    result: Any = None
    error: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, run: Run) -> UpstreamRun:
        succeeded = run.state is State.SUCCEEDED
        return cls(
            run_id=run.id,
            job_id=run.job_id,
            state=run.state,
            result=run.result if succeeded else None,
            error=None if succeeded else run.error,
            reason=run.reason,
        )


class UpstreamResults(dict[str, Any]):
    """`ctx.results`: the results of the jobs that this run came after, by job id.

    It holds the jobs whose run succeeded. `failed` holds the others, by job id, each with its
    state, error and reason: a job with `after_failure="run"` looks there. Both hold one run of each
    job. `runs` holds every run in the order in which `after` names them, even if many of them are
    runs of one job, and `failed_runs` those of them that did not succeed.
    """

    def __init__(self, runs: Iterable[UpstreamRun] = ()) -> None:
        self.runs: tuple[UpstreamRun, ...] = tuple(runs)
        for run in self.runs:
            if run.state is State.SUCCEEDED:
                self[run.job_id] = run.result

    @cached_property
    def failed(self) -> Mapping[str, UpstreamRun]:
        """The upstream runs that failed, were cancelled or were skipped, by job id. Of several runs
        of one job it holds the last: `failed_runs` has them all."""
        return MappingProxyType({run.job_id: run for run in self.failed_runs})

    @cached_property
    def failed_runs(self) -> tuple[UpstreamRun, ...]:
        """Every upstream run that failed, was cancelled or was skipped, in the order of `runs`."""
        return tuple(run for run in self.runs if run.state is not State.SUCCEEDED)

    def __missing__(self, job_id: str) -> Any:
        """Raise a KeyError that says what happened to that job."""
        if (run := self.failed.get(job_id)) is not None:
            why = run.error or run.reason
            raise KeyError(
                f"job {job_id!r} has no result: its run {run.run_id} was {run.state}"
                f"{f' ({why})' if why else ''}"
            )
        known = ", ".join(sorted({run.job_id for run in self.runs})) or "nothing"
        raise KeyError(f"this run does not come after a job {job_id!r}; it comes after {known}")


MAX_LOG_BYTES = 64 * 1024
MAX_DETAIL_BYTES = 128 * 1024
MAX_PROGRESS_MESSAGE = 1_000
"""Characters. A renewal carries the progress of all runs of a worker: none may be too large."""


class HandlerTransaction(Protocol):
    """What `ctx.transaction()` gives: `async with` in an async handler, `with` in a plain one."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *error: Any) -> None: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # every type checker knows it; nothing imports it

    class AnyResources(Mapping[str, Any]):
        """The resources of a handler that names no type. It has a name because mypy does not choose
        between overloads for an argument whose type contains Any."""

    R = TypeVar("R", bound=Mapping[str, Any], default=AnyResources)
else:
    R = typing.TypeVar("R")


class RunContext(Generic[R]):
    """One attempt, seen from inside its handler.

    `RunContext[Shop]` gives `resources` the types of `Shop`, a `TypedDict` of the program.

    `results` holds the results of the jobs this run came after, by job id; `results.failed` holds
    those that did not succeed. `results.runs` holds every run it came after, `results.failed_runs`
    every one that did not succeed. `cancelled` turns true when somebody asks for the run to stop; a
    sync handler in a thread looks at it, an async one is cancelled anyway. `job` is the definition
    that the attempt was begun under (None in a process of its own). `started_at` is when a worker
    took the attempt, by the store's clock.
    """

    __slots__ = (
        "_detail",
        "_lines",
        "_log",
        "_result",
        "_results",
        "_run",
        "_transact",
        "attempt",
        "cancelled",
        "in_transaction",
        "job",
        "job_id",
        "latest_progress",
        "payload",
        "resources",
        "run_id",
        "scheduled_at",
        "started_at",
        "token",
        "will_retry",
    )

    def __init__(
        self,
        run: Run,
        resources: Mapping[str, Any] | None = None,
        results: UpstreamResults | None = None,
        job: Job | None = None,
        transact: Transact | None = None,
    ) -> None:
        self.run_id: str = run.id
        self.job: Job | None = job
        self.job_id: str = run.job_id
        self.attempt: int = run.attempt
        self.scheduled_at: datetime = run.scheduled_at
        self.started_at: datetime = run.started_at or run.run_at
        self.token: int = run.token
        self.payload: Any = run.payload
        self.resources: R = cast(R, resources if resources is not None else {})
        self._results = results
        self.cancelled: bool = False
        self.in_transaction: bool = False
        self.will_retry: bool = False
        self.latest_progress: Progress | None = None
        self._detail: Any = None
        self._log: logging.Logger | None = None
        self._lines: _LogBuffer | None = None
        self._result: Any = None
        self._run = run
        self._transact = transact

    @property
    def results(self) -> UpstreamResults:
        """The results of the jobs that this run came after."""
        if self._results is None:
            self._results = UpstreamResults()
        return self._results

    def transaction(self) -> HandlerTransaction:
        """Writes of the handler that commit together with the run's completion, or not at all.

        `async with ctx.transaction() as session:` (in a plain handler `with`). The session is
        the store's: a connection to the scheduler's own file on SQLite, one of psycopg on
        PostgreSQL, a client session on MongoDB. The end of the block ends the run, so it is the
        handler's last act; the run's result is what the block sets as `ctx.result`. See
        docs/explanation/effect-once.md.
        """
        if self._transact is None:
            raise InvalidState(
                "there is no transaction here: a worker gives one to handlers on its loop and in"
                ' its threads, not with isolation="process"; in a test of a handler use'
                " make_context(transaction=…)"
            )
        return self._transact(self)

    @property
    def result(self) -> Any:
        """The result that the block of `transaction` sets: the run ends with it."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        """What the run is completed with at the end of its transaction."""
        if not self.in_transaction:
            raise InvalidState(
                "ctx.result is set inside `with ctx.transaction()`; elsewhere return the result"
            )
        self._result = value

    @property
    def log(self) -> logging.Logger:
        """A logger whose lines stay with the attempt, from INFO on.

        They reach the program's own logging too, under `mainspring.run`, where its level lets
        them; a lower level there is kept with the attempt as well.
        """
        if self._log is None:
            program = logging.getLogger("mainspring.run")
            level = min(logging.INFO, program.getEffectiveLevel())
            # A logger of its own, outside logging's registry, which would keep it for ever.
            self._log = logging.Logger(f"mainspring.run.{self.job_id}", level)
            self._lines = _LogBuffer(program)
            self._log.addHandler(self._lines)
        return self._log

    @property
    def log_lines(self) -> tuple[str, ...]:
        """The lines that the handler has logged so far, as they will be kept with the attempt."""
        return self._lines.lines() if self._lines is not None else ()

    @property
    def detail(self) -> Any:
        """What is kept with the attempt and its log, however it ends: JSON, at most 128 KiB.
        Anything else is kept as text, like a result, with a warning in the log."""
        return self._detail

    @detail.setter
    def detail(self, value: Any) -> None:
        # Copied here, in the handler that gave it: what is changed later is not kept.
        try:
            self._detail = msgspec.json.decode(_bounded(value))
        except InvalidPayload as error:
            self.log.warning("job %s: %s. It is kept as text only", self.job_id, error)
            self._detail = codec.kept_as_text(value)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the work has come; kept with the run at its next renewal. Of the message
        `MAX_PROGRESS_MESSAGE` characters are kept."""
        if total is not None:
            total = _number(total)
        text = codec.encodable_text(str(message))
        if len(text) > MAX_PROGRESS_MESSAGE:
            text = text[: MAX_PROGRESS_MESSAGE - 1] + "…"
        self.latest_progress = Progress(_number(done), total, text)


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function or a class, by name, without those that cannot be resolved."""
    target: Any = inspect.unwrap(function)
    if not hasattr(target, "__annotations__"):
        target = getattr(target, "func", None) or type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name imported only for type checkers: the other annotations may work
        hints: dict[str, Any] = {}
        for name, annotation in getattr(target, "__annotations__", {}).items():
            alone = SimpleNamespace(__annotations__={name: annotation})
            names = getattr(target, "__globals__", {})
            try:
                hints |= typing.get_type_hints(alone, globalns=names, include_extras=True)
            except Exception:
                continue
        return hints


def is_context_parameter(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    """Whether the first parameter of a handler is its context. An annotation decides; without one
    that can be read, the name does."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    if is_annotated_as_context(parameter, hints):
        return True
    unknown = parameter.annotation is parameter.empty or parameter.name not in hints
    return unknown and parameter.name in ("ctx", "context")


def is_annotated_as_context(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    if parameter.name in hints:
        return _is_context_type(hints[parameter.name])
    if not isinstance(parameter.annotation, str):
        return False
    # The name may be imported for type checkers only.
    names = parameter.annotation.strip("\"'").split("|")
    plain = (name.partition("[")[0].strip() for name in names)
    return any(name.rpartition(".")[2] == RunContext.__name__ for name in plain)


def _is_context_type(annotation: Any) -> bool:
    """Whether it is `RunContext`, also as an alias, optional or `Annotated`."""
    if isinstance(annotation, type):
        return issubclass(annotation, RunContext)
    if typing.get_origin(annotation) is RunContext:
        return True
    if typing.get_origin(annotation) is typing.Annotated:
        return _is_context_type(annotation.__origin__)
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        return any(map(_is_context_type, typing.get_args(annotation)))
    alias = getattr(annotation, "__value__", None)  # of a `type` statement
    return alias is not None and _is_context_type(alias)


CONTEXT_IN_TRANSACTION: ContextVar[RunContext | None] = ContextVar(
    "mainspring_transacting", default=None
)
"""The context of the handler whose transaction is open in this task, or in the task that started
it."""

Transact = Callable[[RunContext[Any]], HandlerTransaction]


def keep_detail(context: RunContext, detail: Any) -> None:
    """Set a context's detail to a value that nobody changes any more: it is not copied."""
    _bounded(detail)
    context._detail = detail


def _bounded(detail: Any) -> bytes:
    try:
        text = msgspec.json.encode(detail)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"the detail of an attempt is not JSON: {error}") from None
    if len(text) > MAX_DETAIL_BYTES:
        raise InvalidPayload(
            f"the detail of an attempt is {len(text):,} bytes of JSON; at most"
            f" {MAX_DETAIL_BYTES:,} are kept"
        )
    return text


def _number(number: float) -> float:
    """Checked here, in the handler, because one renewal sends the progress of all runs."""
    try:
        if math.isfinite(number):
            return number if isinstance(number, int) else float(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidInput(
        f"progress(done, total) takes numbers, not {number!r}: pass text as `message`",
        field="progress",
    )


class _LogBuffer(logging.Handler):
    """Keeps the newest lines of an attempt, up to `MAX_LOG_BYTES`, and passes them on."""

    def __init__(self, program: logging.Logger) -> None:
        super().__init__()
        self.setFormatter(_format)
        self._program = program
        self._kept: deque[tuple[str, int]] = deque()
        self._size = 0
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._keep(*_cut(codec.encodable_text(self.format(record))))
        if self._program.isEnabledFor(record.levelno):
            self._program.handle(record)

    def _keep(self, line: str, size: int) -> None:
        self._kept.append((line, size))
        self._size += size
        while self._size > MAX_LOG_BYTES:
            self._size -= self._kept.popleft()[1]
            self._dropped += 1

    def lines(self) -> tuple[str, ...]:
        lines = tuple(line for line, _ in self._kept)
        return (f"… {self._dropped} earlier lines dropped", *lines) if self._dropped else lines


def _cut(line: str) -> tuple[str, int]:
    """A line that fits, and its size in bytes with the line's end."""
    data = line.encode()
    if len(data) >= MAX_LOG_BYTES:
        data = data[: MAX_LOG_BYTES - 1]
        line = data.decode(errors="ignore")
    return line, len(data) + 1


_format = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
_format.default_time_format = "%Y-%m-%dT%H:%M:%S"
_format.default_msec_format = "%s.%03dZ"
_format.converter = time.gmtime
