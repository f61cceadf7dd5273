"""What any backend of Django Tasks promises, asked of Mainspring's. `test_tasks.py` has Django's
test runner run these cases, in a process of its own, where a worker takes the queue `default`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import SimpleTestCase, override_settings

from mainspring import GiveUp
from mainspring.contrib.django import scheduler, tasks
from mainspring.contrib.django.tasks import MainspringBackend, level_of
from mainspring.errors import InvalidPayload, InvalidState

if django.VERSION >= (6, 0):
    from django.tasks import TaskResultStatus, default_task_backend, task, task_backends
    from django.tasks.base import Task
    from django.tasks.exceptions import TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    from django_tasks import TaskResultStatus, default_task_backend, task, task_backends
    from django_tasks.base import Task
    from django_tasks.exceptions import TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
InvalidTask, Missing = tasks.InvalidTask, tasks.TaskResultDoesNotExist
PATH = "mainspring.contrib.django.tasks.MainspringBackend"
IN_AN_HOUR = datetime.now(UTC) + timedelta(hours=1)
LOGGER = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


def with_backend(**params: Any) -> Any:
    return override_settings(TASKS={"default": {"BACKEND": PATH, **params}})


@task
def add(x: int, y: int = 0) -> int:
    return x + y


@task
async def add_async(x: int, y: int = 0) -> int:
    return x + y


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


@task
def fail(kind: str) -> None:
    raise {"value": ValueError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[kind]("no")


@task
async def fail_async() -> None:
    raise LookupError("not here")


@task
def fail_strangely() -> None:
    raise ValueError(ValueError("inner"))


@task
def give_up() -> None:
    raise GiveUp("never again")


@task
def return_unstorable(kind: str) -> Any:
    calls.append(kind)
    return {"object": object(), "large": "x" * 300_000, "nan": float("nan")}[kind]


@task(takes_context=True)
def describe(context: Any, fail_until: int = 0) -> Any:
    if context.attempt < fail_until:
        raise ConnectionError("try again")
    result = context.task_result
    return [result.id, result.status, context.attempt, len(result.errors), result.args]


@task
def block() -> None:
    began.set()
    release.wait(30)


@task
async def block_async() -> None:
    began.set()
    await asyncio.sleep(30)


calls: list[str] = []
began, release = threading.Event(), threading.Event()
setUpModule = scheduler.blocking.start
tearDownModule = scheduler.blocking.stop


def ended(result: Any) -> Any:
    """The result, once its run has ended."""
    scheduler.blocking.wait(result.id, 30)
    result.refresh()
    return result


def is_enqueue(signal: tuple[str, str]) -> bool:
    return signal[0] == "enqueued"


def waiting(declared: Any) -> Any:
    """The task on a queue that no worker takes."""
    return declared.using(queue_name="idle")


class Case(SimpleTestCase):
    def setUp(self) -> None:
        calls.clear()
        began.clear()
        release.clear()
        self.signals: list[tuple[str, str]] = []
        for name, signal in (
            ("enqueued", task_enqueued),
            ("started", task_started),
            ("finished", task_finished),
        ):

            def receive(task_result: Any, name: str = name, **_: Any) -> None:
                self.signals.append((name, str(task_result.status)))

            signal.connect(receive, weak=False)
            self.addCleanup(signal.disconnect, receive)

    def wait_for_signals(self, *names: str) -> None:
        """Those of the worker, after that of the enqueue, which may come late."""
        deadline = time.monotonic() + 30
        while [name for name, _ in sorted(self.signals, key=is_enqueue)] != [*names, "enqueued"]:
            assert time.monotonic() < deadline, self.signals
            time.sleep(0.01)


class DeclaredTasks(Case):
    def test_backend_is_made_from_the_settings(self) -> None:
        assert isinstance(task_backends["default"], MainspringBackend)
        assert default_task_backend.alias == "default"
        assert task_backends["patient"].options["retries"] == 2
        assert task_backends["strict"] is add.using(backend="strict").get_backend()
        with self.assertRaisesMessage(ImproperlyConfigured, "doesn't exist"):
            add.using(backend="none")
        missing = override_settings(TASKS={"default": {"BACKEND": "there.is.none"}})
        with missing, self.assertRaisesMessage(ImproperlyConfigured, "there.is.none"):
            add.using(priority=1)
        with override_settings(TASKS={}), pytest.raises(ImproperlyConfigured):
            add.enqueue(1)

    def test_backend_supports_everything(self) -> None:
        for feature in ("defer", "async_task", "get_result", "priority"):
            assert getattr(default_task_backend, f"supports_{feature}") is True

    def test_a_task_can_still_be_called(self) -> None:
        assert isinstance(add, Task)
        assert add.call(1, y=2) == 3
        assert add_async.call(1, y=2) == 3
        assert add.module_path == f"{__name__}.add"

    async def test_a_task_can_still_be_awaited(self) -> None:
        assert await add.acall(1, y=2) == 3
        assert await add_async.acall(1, y=2) == 3

    def test_using_changes_a_copy(self) -> None:
        changed = add.using(priority=7).using(queue_name="slow", run_after=IN_AN_HOUR)
        assert (changed.priority, changed.queue_name, changed.run_after) == (7, "slow", IN_AN_HOUR)
        assert (add.priority, add.queue_name, add.run_after) == (0, "default", None)
        assert add.using() == add

    def test_priority_is_a_whole_number_from_minus_100_to_100(self) -> None:
        for priority in (-101, 101, 3.1):
            with self.assertRaisesMessage(InvalidTask, "between -100 and 100"):
                add.using(priority=priority)
        for priority in (-100, 0, 100, 3.0):
            add.using(priority=priority)

    def test_queue_is_one_of_queues(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "Queue 'fast' is not valid"):
            add.using(backend="strict", queue_name="fast")
        add.using(queue_name="fast")  # an empty list allows any
        declared = add.using(queue_name="fast")
        with with_backend(QUEUES=["slow"]), self.assertRaisesMessage(InvalidTask, "Queue 'fast'"):
            declared.enqueue(1)

    async def test_aenqueue_validates_too(self) -> None:
        declared = add.using(queue_name="fast")
        with with_backend(QUEUES=["slow"]), self.assertRaisesMessage(InvalidTask, "Queue 'fast'"):
            await declared.aenqueue(1)

    def test_run_after_must_be_aware(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "aware"):
            add.using(run_after=datetime.now())

    def test_function_must_be_found_under_its_path(self) -> None:
        for function in (any, self.test_function_must_be_found_under_its_path, lambda: None):
            with self.assertRaisesMessage(InvalidTask, "module level"):
                task()(function)

    def test_context_must_be_the_first_parameter(self) -> None:
        with self.assertRaisesMessage(InvalidTask, "'context'"):
            task(takes_context=True)(add.func)

    def test_path_must_be_the_id_of_a_job(self) -> None:
        def größe() -> None: ...

        größe.__qualname__ = "größe"
        with self.assertRaisesMessage(InvalidTask, "the id of the task's job is 1 to 200 letters"):
            task()(größe)

    def test_a_task_is_a_job_of_its_own(self) -> None:
        add.using(backend="patient")
        job = scheduler.blocking.get_job(f"{__name__}.add")
        assert (job.handler, job.policy.retries, job.schedule) == (job.id, 0, None)
        patient = scheduler.blocking.get_job(f"{__name__}.add:patient")
        assert (patient.handler, patient.policy.retries) == (job.id, 2)


class EnqueuedTasks(Case):
    def check_new(self, result: Any, declared: Any, *args: Any, **kwargs: Any) -> None:
        assert result.task == declared
        assert (result.args, result.kwargs) == ([*args], kwargs)
        assert (result.status, result.is_finished) == (READY, False)
        assert (result.backend, result.errors, result.attempts) == ("default", [], 0)
        assert result.enqueued_at is not None
        for moment in (result.started_at, result.last_attempted_at, result.finished_at):
            assert moment is None
        with self.assertRaisesMessage(ValueError, "not finished"):
            _ = result.return_value

    def test_result_is_ready(self) -> None:
        for declared in (waiting(add), waiting(add_async), waiting(add).using(priority=-3)):
            result = declared.enqueue(1, y=2)
            self.check_new(result, declared, 1, y=2)
            assert declared.get_result(result.id) == result
            before = dataclasses.asdict(result)
            result.refresh()
            assert dataclasses.asdict(result) == before

    async def test_async_twins(self) -> None:
        for declared in (waiting(add), waiting(add_async)):
            result = await declared.aenqueue(1, y=2)
            self.check_new(result, declared, 1, y=2)
            assert await declared.aget_result(result.id) == result
            before = dataclasses.asdict(result)
            await result.arefresh()
            assert dataclasses.asdict(result) == before

    async def test_sync_methods_say_what_to_await(self) -> None:
        with self.assertRaisesMessage(InvalidState, "await task.aenqueue(…) instead"):
            add.enqueue(1)
        with self.assertRaisesMessage(InvalidState, "await aget_result(…) instead"):
            add.get_result("0")

    def test_values_that_are_not_json_are_refused(self) -> None:
        for value in (datetime.now(UTC), object(), {1, 2}):
            with self.assertRaisesMessage(TypeError, "Unsupported type"):
                echo.enqueue(value)
            with self.assertRaisesMessage(TypeError, "Unsupported type"):
                echo.enqueue(key=[value])
        for value in ("x" * 300_000, {1: 2}, float("inf")):
            with pytest.raises(InvalidPayload):
                echo.enqueue(value)

    async def test_aenqueue_refuses_them_too(self) -> None:
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            await echo.aenqueue(object())

    def test_unknown_results_do_not_exist(self) -> None:
        for unknown in ("123", "", "\0", "a" * 5000, "ö"):
            with pytest.raises(Missing):
                add.get_result(unknown)

    async def test_unknown_results_do_not_exist_in_async_code(self) -> None:
        with pytest.raises(Missing):
            await add.aget_result("123")

    def test_result_of_another_task_does_not_match(self) -> None:
        result = waiting(add).enqueue(1)
        with pytest.raises(TaskResultMismatch):
            echo.get_result(result.id)
        assert default_task_backend.get_result(result.id) == result

    async def test_result_of_another_task_does_not_match_in_async_code(self) -> None:
        result = await waiting(add).aenqueue(1)
        with pytest.raises(TaskResultMismatch):
            await echo.aget_result(result.id)

    def test_result_of_another_backend_does_not_exist(self) -> None:
        result = add.using(backend="strict", queue_name="slow").enqueue(1)
        with self.assertRaisesMessage(Missing, "no task of the backend 'default'"):
            add.get_result(result.id)
        assert task_backends["strict"].get_result(result.id) == result
        result.refresh()

    def test_run_of_another_job_is_no_result(self) -> None:
        scheduler.blocking.add_job("plain", handler=add.func, replace=True)
        with pytest.raises(Missing):
            default_task_backend.get_result(scheduler.blocking.enqueue("plain", {"x": 1}).id)

    def test_a_removed_run_has_no_result_any_more(self) -> None:
        result = ended(add.enqueue(1))
        scheduler.blocking.remove_runs([result.id])
        with pytest.raises(Missing):
            result.refresh()

    def test_run_after(self) -> None:
        declared = add.using(run_after=IN_AN_HOUR)
        result = declared.enqueue(1)
        assert scheduler.blocking.get_run(result.id).run_at == IN_AN_HOUR
        assert add.get_result(result.id).task == declared
        past = add.using(run_after=datetime.now(UTC) - timedelta(days=1))
        assert ended(past.enqueue(1)).return_value == 1

    @override_settings(USE_TZ=False, TIME_ZONE="Asia/Kolkata")
    def test_times_are_naive_without_time_zones(self) -> None:
        local = datetime(2126, 1, 1, 12)
        result = add.using(run_after=local).enqueue(1)
        expected = datetime(2126, 1, 1, 6, 30, tzinfo=UTC)
        assert scheduler.blocking.get_run(result.id).run_at == expected
        assert add.get_result(result.id).task.run_after == local
        assert result.enqueued_at.tzinfo is None
        aware = add.using(run_after=IN_AN_HOUR).enqueue(1)
        assert scheduler.blocking.get_run(aware.id).run_at == IN_AN_HOUR

    def test_order_of_priorities_is_kept_between_levels(self) -> None:
        levels = [level_of(priority) for priority in range(-100, 101)]
        assert levels == sorted(levels)
        assert set(levels) == set(range(10))
        assert [n for n in range(-100, 101) if level_of(n) == 5] == [0]
        run = scheduler.blocking.get_run(waiting(add).using(priority=30).enqueue(1).id)
        assert (run.priority, run.payload["priority"]) == (7, 30)

    def test_enqueue_is_logged_and_signalled(self) -> None:
        with self.assertLogs(LOGGER, "DEBUG") as logs:
            result = waiting(add).enqueue(1)
        assert result.id in logs.output[0]
        assert self.signals == [("enqueued", "READY")]

    def test_a_receiver_that_raises_does_not_undo_the_enqueue(self) -> None:
        def receive(**_: Any) -> None:
            raise RuntimeError("receiver")

        task_enqueued.connect(receive)
        with self.assertLogs("django.dispatch", "ERROR"):
            result = waiting(add).enqueue(1)
        assert add.get_result(result.id) == result


class ExecutedTasks(Case):
    def test_task_succeeds(self) -> None:
        for declared in (add, add_async):
            result = ended(declared.enqueue(1, y=2))
            assert (result.status, result.return_value) == (SUCCESSFUL, 3)
            assert (result.is_finished, result.attempts, result.errors) == (True, 1, [])
            assert str(os.getpid()) in result.worker_ids[0]
            assert result.enqueued_at <= result.started_at <= result.finished_at
            assert result.last_attempted_at == result.started_at
            assert result == declared.get_result(result.id)

    async def test_task_succeeds_in_async_code(self) -> None:
        for declared in (add, add_async):
            result = await declared.aenqueue(1)
            await scheduler.wait(result.id, 30)
            await result.arefresh()
            assert (result.status, result.return_value) == (SUCCESSFUL, 1)

    def test_arguments_and_return_values_are_json(self) -> None:
        value = {"list": (1, 2.5, None, True), "$datetime": "text", "bytes": b"text"}
        result = ended(echo.enqueue(value, key="ö\0"))
        kept = {"list": [1, 2.5, None, True], "$datetime": "text", "bytes": "text"}
        assert result.return_value == [[kept], {"key": "ö\x00"}]

    def test_task_fails(self) -> None:
        for kind, error in (
            ("value", ValueError),
            ("exit", SystemExit),
            ("interrupt", KeyboardInterrupt),
        ):
            with self.assertLogs(LOGGER, "ERROR") as logs:
                result = ended(fail.enqueue(kind))
                self.wait_for_signals("started", "finished")
            assert "no" in logs.output[0]
            self.signals.clear()
            assert (result.status, result.is_finished) == (FAILED, True)
            assert result.errors[0].exception_class == error
            assert result.errors[0].traceback.endswith(f"{error.__name__}: no\n")
            assert result.finished_at >= result.started_at >= result.enqueued_at
            with self.assertRaisesMessage(ValueError, "Task failed"):
                _ = result.return_value

    def test_async_task_fails(self) -> None:
        result = ended(fail_async.enqueue())
        assert result.errors[0].exception_class is LookupError
        assert "in fail_async" in result.errors[0].traceback

    def test_error_with_an_error_inside(self) -> None:
        result = ended(fail_strangely.enqueue())
        assert result.errors[0].exception_class is ValueError
        assert 'ValueError(ValueError("inner"))' in result.errors[0].traceback

    def test_wrong_arguments_fail_the_task(self) -> None:
        result = ended(add.enqueue(1, 2, 3))
        assert result.errors[0].exception_class is TypeError

    def test_return_value_that_cannot_be_kept_fails_the_task_once(self) -> None:
        for kind, error in (
            ("object", TypeError),
            ("large", InvalidPayload),
            ("nan", InvalidPayload),
        ):
            result = ended(return_unstorable.using(backend="patient").enqueue(kind))
            assert (result.status, result.errors[0].exception_class) == (FAILED, error)
            assert "the task has run" in result.errors[0].traceback
        assert calls == ["object", "large", "nan"]

    def test_context(self) -> None:
        result = ended(describe.enqueue())
        assert result.return_value == [result.id, "RUNNING", 1, 0, []]

    def test_failed_attempts_are_tried_again(self) -> None:
        result = ended(describe.using(backend="patient").enqueue(fail_until=3))
        assert result.return_value == [result.id, "RUNNING", 3, 2, []]
        assert (result.attempts, len(result.errors)) == (3, 2)
        assert {one.exception_class for one in result.errors} == {ConnectionError}
        assert result.started_at < result.last_attempted_at
        self.wait_for_signals(*["started"] * 3, "finished")
        assert ("finished", "SUCCESSFUL") in self.signals

    def test_the_last_failed_attempt_ends_the_task(self) -> None:
        result = ended(describe.using(backend="patient").enqueue(fail_until=9))
        assert (result.status, len(result.errors)) == (FAILED, 3)
        self.wait_for_signals(*["started"] * 3, "finished")
        assert ("finished", "FAILED") in self.signals

    def test_give_up_is_not_tried_again(self) -> None:
        result = ended(give_up.using(backend="patient").enqueue())
        assert (result.status, result.errors[0].exception_class) == (FAILED, GiveUp)
        self.wait_for_signals("started", "finished")

    def test_task_ends_at_its_timeout(self) -> None:
        for declared in (block, block_async):
            result = ended(declared.using(backend="hasty").enqueue())
            assert (result.status, result.attempts) == (FAILED, 1)
            assert issubclass(result.errors[0].exception_class, TimeoutError) is True
            release.set()
        assert "finished" not in dict(self.signals)

    def test_running_and_cancelled(self) -> None:
        result = block_async.enqueue()
        assert began.wait(30)
        result.refresh()
        assert (result.status, result.attempts) == (RUNNING, 1)
        scheduler.blocking.cancel(result.id, reason="not needed")
        ended(result)
        assert (result.status, result.is_finished) == (FAILED, True)
        assert result.errors[-1].exception_class.__name__ == "RunCancelled"
        assert "not needed" in result.errors[-1].traceback

    def test_logs_of_a_successful_task(self) -> None:
        with self.assertLogs(LOGGER, "DEBUG") as logs:
            result = ended(add.enqueue(1))
            self.wait_for_signals("started", "finished")
        lines = sorted(logs.output, key=lambda line: "enqueued" not in line)
        for line, said in zip(lines, ("enqueued", "RUNNING", "SUCCESSFUL"), strict=True):
            assert result.id in line
            assert said in line
            assert "None" not in line

    def test_a_receiver_that_raises_does_not_fail_the_task(self) -> None:
        def receive(**_: Any) -> None:
            raise RuntimeError("receiver")

        logging.getLogger("django.dispatch").disabled = True
        for signal in (task_started, task_finished):
            signal.connect(receive)
            self.addCleanup(signal.disconnect, receive)
        assert ended(add.enqueue(1)).attempts == 1
        assert ended(add_async.enqueue(1)).attempts == 1
        logging.getLogger("django.dispatch").disabled = False

    def test_a_job_triggered_by_hand_is_a_result_too(self) -> None:
        job_id = f"{__name__}.add"
        run = scheduler.blocking.trigger(job_id, {"args": [4]})
        scheduler.blocking.wait(run.id, 30)
        assert add.get_result(run.id).return_value == 4
        run = scheduler.blocking.trigger(f"{__name__}.echo")
        scheduler.blocking.wait(run.id, 30)
        assert echo.get_result(run.id).return_value == [[], {}]


class Settings(Case):
    def find_mistakes(self, **params: Any) -> list[str]:
        with with_backend(**params):
            messages = default_task_backend.check()
            return [f"{one.id} {one.msg} {one.hint}" for one in messages]

    def test_right_settings_have_no_mistakes(self) -> None:
        assert self.find_mistakes(OPTIONS={"retries": 3, "enqueue_on_commit": False}) == []

    def test_each_mistake_is_found(self) -> None:
        for params, found in (
            ({"OPTIONS": {"retry": 3}}, "E006 TASKS['default'] cannot be used:"),
            ({"OPTIONS": {"retry": 3}}, "did you mean 'retries'"),
            ({"OPTIONS": {"retries": -1}}, "retries"),
            ({"OPTIONS": {"isolation": "process"}}, "isolation"),
            ({"OPTIONS": {"enqueue_on_commit": "no"}}, "enqueue_on_commit"),
            ({"OPTIONS": ["retries"]}, "OPTIONS"),
            ({"QUEUES": ["x" * 1000]}, "E006 TASKS['default'] cannot be used: queue"),
        ):
            with self.subTest(params):
                [mistake] = self.find_mistakes(**params)
                assert found in mistake

    def test_nothing_is_enqueued_with_a_mistake(self) -> None:
        with (
            with_backend(OPTIONS={"retry": 3}),
            self.assertRaisesMessage(ImproperlyConfigured, "mainspring.E006"),
        ):
            add.enqueue(1)

    def test_the_app_must_be_installed(self) -> None:
        with self.settings(INSTALLED_APPS=["shop"]):
            [mistake] = self.find_mistakes()
        assert "Add it to INSTALLED_APPS" in mistake


class OwnBackend(MainspringBackend):
    """A subclass with an option of its own."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        options = dict(params.get("OPTIONS", {}))
        self.prefix = options.pop("prefix", "")
        super().__init__(alias, {**params, "OPTIONS": options})

    def enqueue(self, declared: Any, args: Any, kwargs: Any) -> Any:
        logging.getLogger(__name__).info("%s enqueued", self.prefix)
        return super().enqueue(declared, args, kwargs)


@override_settings(
    TASKS={"default": {"BACKEND": f"{__name__}.OwnBackend", "OPTIONS": {"prefix": "mine"}}}
)
class OwnBackends(Case):
    def test_subclass_is_used(self) -> None:
        assert isinstance(task_backends["default"], OwnBackend)
        with self.assertLogs(__name__, "INFO") as logs:
            assert ended(add.enqueue(1)).return_value == 1
        assert "mine enqueued" in logs.output[0]

    def test_subclass_may_support_less(self) -> None:
        cases: list[tuple[str, Callable[[], Any]]] = [
            ("async_task", lambda: default_task_backend.validate_task(add_async)),
            ("priority", lambda: add.using(priority=10)),
            ("defer", lambda: add.using(run_after=IN_AN_HOUR)),
        ]
        for feature, refused in cases:
            with (
                self.subTest(feature),
                mock.patch.object(OwnBackend, f"supports_{feature}", False),
                self.assertRaisesMessage(InvalidTask, "Backend does not support"),
            ):
                refused()
