"""Mainspring as a backend of Django Tasks: of `django.tasks`, and before Django 6.0 of the package
`django-tasks`.

Each task is a handler and a job under the path of its function, such as `shop.tasks.send_receipt`,
and the id of a result is the id of its run. The job of a backend with another alias than `default`
has the alias in its id: `shop.tasks.send_receipt:patient`. Nothing stored is imported: a worker
has the tasks of the modules that it has imported, and runs of other tasks wait.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib import import_module
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

from mainspring import errors
from mainspring.contrib.django import scheduler
from mainspring.contrib.django.project_store import database_alias
from mainspring.core import codec
from mainspring.core.context import RunContext
from mainspring.core.model import Attempt, Outcome, Run, State, check_job_id
from mainspring.core.options import PolicyOptions, option_names
from mainspring.core.policy import Policy
from mainspring.engine.attempt import AttemptError
from mainspring.engine.outcome import may_retry
from mainspring.errors import (
    GiveUp,
    InvalidInput,
    MainspringError,
    RunNotFound,
    UnknownOption,
    refused,
)

_PACKAGE = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
base, backends, exceptions, signals = (
    import_module(f"{_PACKAGE}.{name}")
    for name in ("base", "backends.base", "exceptions", "signals")
)
InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
TaskResultDoesNotExist = exceptions.TaskResultDoesNotExist

OPTIONS = option_names(PolicyOptions) - {
    *("queue", "priority"),  # the task says these
    *("after", "after_failure", "each_node", "run_on_start", "overlap", "misfire"),
    *("isolation", "memory_limit"),  # a process of its own could send no signals
}
"""The options of jobs that `OPTIONS` of a backend may have."""

_ENQUEUE = ("task.enqueue", "task.aenqueue(…)")
_STATUS = {
    State.WAITING: "READY",
    State.PENDING: "READY",
    State.RUNNING: "RUNNING",
    State.SUCCEEDED: "SUCCESSFUL",
}
_ERRORS = {
    Outcome.FAILED: "RemoteFailure",
    Outcome.TIMED_OUT: "RunTimeout",
    Outcome.LOST: "RunLost",
}
"""What a failed attempt is called whose error the task did not raise itself."""

_tasks: dict[str, Any] = {}
"""The tasks of this process, by the path of their function."""


class MainspringBackend(backends.BaseTaskBackend):  # type: ignore[name-defined]
    """Runs tasks on the project's scheduler: in `manage.py mainspring worker`.

    `OPTIONS` are options of the jobs, such as `{"retries": 3}`, and `enqueue_on_commit`: whether a
    task that is enqueued in a transaction belongs to it (the default).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._policy = dict(self.options) if isinstance(self.options, dict) else {}
        self.enqueue_on_commit = self._policy.pop("enqueue_on_commit", True)
        self._mistakes = list(self._find_mistakes())

    def check(self, **_: Any) -> Iterator[checks.CheckMessage]:
        yield from self._mistakes
        if not apps.is_installed("mainspring.contrib.django"):
            why = f"TASKS[{self.alias!r}] needs the app 'mainspring.contrib.django'."
            yield checks.Error(why, "Add it to INSTALLED_APPS.", id="mainspring.E007")

    def validate_task(self, task: Any) -> None:
        """Refuse a task that cannot run here. One that can becomes a handler and a job."""
        super().validate_task(task)
        try:
            check_job_id(self._job_id(task.module_path), "the id of the task's job")
        except InvalidInput as error:
            raise InvalidTask(str(error)) from None
        if not self._mistakes:
            self._define(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        for mistake in self._mistakes:
            raise ImproperlyConfigured(f"{mistake.msg} {mistake.hint} ({mistake.id})")
        self.validate_task(task)
        payload = {"args": base.normalize_json(list(args)), "kwargs": base.normalize_json(kwargs)}
        if task.priority:
            payload["priority"] = int(task.priority)
        if task.run_after is not None:
            payload["run_after"] = task.run_after.isoformat()
        codec.encode(payload)  # now, also where the run is added after the commit
        enqueue = scheduler.enqueue(
            self._job_id(task.module_path),
            payload,
            at=None if task.run_after is None else _aware(task.run_after),
            priority=level_of(task.priority),
            queue=task.queue_name,
        )
        if self.enqueue_on_commit:
            run = scheduler.blocking.wait_for(enqueue, *_ENQUEUE)
        else:
            run = scheduler.wait_outside_transactions(enqueue, *_ENQUEUE)
        result = _make_result(run, self.alias)
        signals.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        reading = scheduler.get_run(result_id)
        try:
            run = scheduler.blocking.wait_for(reading, "get_result", "aget_result(…)")
        except RunNotFound:
            raise TaskResultDoesNotExist(result_id) from None
        if run.handler not in _tasks or run.job_id != self._job_id(run.handler):
            raise TaskResultDoesNotExist(
                f"{result_id}: a run of {run.job_id!r}, which is no task of the backend"
                f" {self.alias!r} that this process has imported"
            )
        return _make_result(run, self.alias)

    def _job_id(self, path: str) -> str:
        return path if self.alias == "default" else f"{path}:{self.alias}"

    def _define(self, task: Any) -> None:
        path = task.module_path
        if path not in _tasks:
            scheduler.add_handler(path, _make_handler(self, task))
        _tasks[path] = task
        scheduler.define_job(
            self._job_id(path), path, **self._policy, isolation="auto", memory_limit=None
        )

    def _find_mistakes(self) -> Iterator[checks.CheckMessage]:
        try:
            if not isinstance(self.options, dict):
                raise refused("OPTIONS", self.options, "is a dict")
            if unknown := self._policy.keys() - OPTIONS:
                raise UnknownOption(unknown, {*OPTIONS, "enqueue_on_commit"})
            if not isinstance(self.enqueue_on_commit, bool):
                raise refused("enqueue_on_commit", self.enqueue_on_commit, "is True or False")
            alias = database_alias()
            if not self.enqueue_on_commit and alias and connections[alias].vendor == "sqlite":
                raise InvalidInput(
                    "enqueue_on_commit must be True where the store lies in a SQLite database of"
                    " Django: a transaction there keeps every other connection from writing"
                )
            for queue in self.queues:
                Policy.make(queue=queue)
            Policy.make(**self._policy)
        except MainspringError as error:
            why = f"TASKS[{self.alias!r}] cannot be used: {error}"
            hint = "OPTIONS are options of jobs, such as {'retries': 3}, and 'enqueue_on_commit'."
            yield checks.Error(why, hint, id="mainspring.E006")


def level_of(priority: int) -> int:
    """The priority of a run, 0 to 9, for that of a task, -100 to 100. The order is kept between
    levels, and 0 has a level of its own."""
    priority = int(priority)
    return (priority + 100) // 20 if priority < 0 else 5 + (priority + 24) // 25


def _make_handler(backend: MainspringBackend, task: Any) -> Callable[..., Any]:
    """The handler of a task. It takes what `enqueue` stores; the context has it too."""

    def run(
        ctx: RunContext,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        run_after: str | None = None,
    ) -> Any:
        attempt = _Attempt(ctx, sender=type(backend))
        attempt.begin()
        try:
            value = _storable(task.call(*attempt.args, **attempt.kwargs))
        except BaseException as error:
            attempt.fail(error)
            raise
        attempt.succeed(value)
        return value

    async def run_async(
        ctx: RunContext,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        run_after: str | None = None,
    ) -> Any:
        attempt = _Attempt(ctx, sender=type(backend))
        await sync_to_async(attempt.begin)()
        try:
            value = _storable(await task.acall(*attempt.args, **attempt.kwargs))
        except asyncio.CancelledError:  # at its timeout, or because somebody cancelled the run
            raise
        except BaseException as error:
            trace = error.__traceback__
            await sync_to_async(attempt.fail)(error)
            error.__traceback__ = trace  # sync_to_async has added frames of its own
            raise
        await sync_to_async(attempt.succeed)(value)
        return value

    return run_async if iscoroutinefunction(task.func) else run


class _Attempt:
    """An attempt of a task: its arguments, and the signals of its begin and end.

    A receiver that raises changes nothing: the task must not be called again for it. An attempt
    that was stopped sends no signal of its end, nor does one that is tried again.
    """

    def __init__(self, ctx: RunContext, sender: type) -> None:
        self._ctx = ctx
        self._sender = sender
        self._result = result = _make_result(ctx._run, ctx.job_id.partition(":")[2] or "default")
        context = (base.TaskContext(task_result=result),) if result.task.takes_context else ()
        self.args = (*context, *result.args)
        self.kwargs = result.kwargs

    def begin(self) -> None:
        signals.task_started.send_robust(self._sender, task_result=self._result)

    def succeed(self, value: Any) -> None:
        self._end(base.TaskResultStatus.SUCCESSFUL, _return_value=value)

    def fail(self, error: BaseException) -> None:
        """Keep the class of the error, and send the signal if the task is not tried again."""
        attempt = AttemptError.of(error)
        if attempt.kind == "snooze":
            return
        cause = error.__cause__ if isinstance(error, ReturnValueRefused) else error
        path = f"{type(cause).__module__}.{type(cause).__qualname__}"
        self._ctx.detail = {"exception": path}
        job = self._ctx.job
        if job is None or not may_retry(self._ctx._run, job.policy, attempt):
            trace = "".join(format_exception(error))
            failure = base.TaskError(exception_class_path=path, traceback=trace)
            self._end(base.TaskResultStatus.FAILED, errors=[*self._result.errors, failure])

    def _end(self, status: Any, **values: Any) -> None:
        if self._ctx.cancelled:
            return
        values |= {"status": status, "finished_at": timezone.now()}
        for name, value in values.items():
            object.__setattr__(self._result, name, value)
        signals.task_finished.send_robust(self._sender, task_result=self._result)


class ReturnValueRefused(GiveUp):
    """The return value of a task is not JSON, or too large. The task is not called again for it."""


def _storable(value: Any) -> Any:
    try:
        value = base.normalize_json(value)
        codec.encode(value, what="return value")
    except Exception as error:
        raise ReturnValueRefused(
            f"the task has run, but its return value cannot be kept: {error}"
        ) from error
    return value


def _make_result(run: Run, alias: str) -> Any:
    """The result that a run is. It says of at most 20 attempts which worker made them."""
    payload = run.payload if isinstance(run.payload, dict) else {}
    run_after = payload.get("run_after")
    workers = [attempt.worker for attempt in run.attempts]
    workers += [run.worker] if run.state is State.RUNNING and run.worker else []
    result = base.TaskResult(
        task=_task_as_enqueued(
            _tasks[run.handler],
            backend=alias,
            queue_name=run.queue,
            priority=payload.get("priority", 0),
            run_after=None if run_after is None else datetime.fromisoformat(run_after),
        ),
        id=run.id,
        status=base.TaskResultStatus[_STATUS.get(run.state, "FAILED")],
        enqueued_at=_local(run.created_at),
        started_at=_local(run.attempts[0].started_at if run.attempts else run.started_at),
        finished_at=_local(run.finished_at),
        last_attempted_at=_local(run.started_at),
        args=payload.get("args") or [],
        kwargs=payload.get("kwargs") or {},
        backend=alias,
        errors=_errors_of(run),
        worker_ids=[""] * (run.attempt - len(workers)) + workers,
    )
    object.__setattr__(result, "_return_value", run.result)
    return result


def _task_as_enqueued(task: Any, **changes: Any) -> Any:
    """The task with its values at the enqueue. They are not validated: the settings may have
    changed since."""
    enqueued = object.__new__(type(task))
    for field in dataclasses.fields(task):
        value = changes.get(field.name, getattr(task, field.name))
        object.__setattr__(enqueued, field.name, value)
    return enqueued


def _errors_of(run: Run) -> list[Any]:
    failed = [attempt for attempt in run.attempts if attempt.outcome in _ERRORS]
    found = [
        base.TaskError(
            exception_class_path=_error_path(one), traceback=one.traceback or one.error or ""
        )
        for one in failed
    ]
    if run.state in (State.CANCELLED, State.SKIPPED):
        path = f"{errors.__name__}.{errors.RunCancelled.__name__}"
        found.append(
            base.TaskError(exception_class_path=path, traceback=f"{run.state}: {run.reason}")
        )
    return found


def _error_path(attempt: Attempt) -> str:
    if isinstance(attempt.detail, dict) and "exception" in attempt.detail:
        return str(attempt.detail["exception"])
    return f"{errors.__name__}.{_ERRORS[attempt.outcome]}"


def _aware(moment: datetime) -> datetime:
    if timezone.is_aware(moment):
        return moment
    aware: datetime = timezone.make_aware(moment, timezone.get_default_timezone())
    return aware


def _local(moment: datetime | None) -> Any:
    """A time as Django has it: naive, in the project's time zone, with `USE_TZ = False`."""
    if moment is None or settings.USE_TZ:
        return moment
    return timezone.make_naive(moment, timezone.get_default_timezone())
