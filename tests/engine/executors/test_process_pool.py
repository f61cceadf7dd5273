"""Handlers in child processes: how a child finds them, and what it returns."""

from __future__ import annotations

import functools
import logging
import os
import sys
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from mainspring.core.codec import MAX_REPR
from mainspring.core.model import Progress
from mainspring.engine.executors.process_pool import ProcessPool, Target
from mainspring.errors import InvalidInput, InvalidPayload
from tests.support import process_handlers as handlers
from tests.support.process_pool import NOW, Function, Started, error, pool, result

__all__ = ["pool"]


# What comes back


async def test_a_sync_handler_gives_its_result(pool: ProcessPool) -> None:
    assert await result(pool, handlers.add, a=1, b=2) == 3


async def test_an_async_handler_sees_its_context(pool: ProcessPool) -> None:
    assert await result(pool, handlers.add_later, a=1, b=2) == {
        "sum": 3,
        "run": "run-1",
        "attempt": 3,
        "results": {"before": [1, NOW]},
    }


async def test_values_come_back_as_they_were(pool: ProcessPool) -> None:
    value = {"at": NOW, "day": date(2030, 1, 2), "sum": Decimal("1.50"), "raw": b"\0", "$x": {}}
    assert await result(pool, handlers.echo, value=value) == value
    assert await result(pool, handlers.payload) == {}
    deep: list[Any] = []
    for _ in range(97):
        deep = [deep]
    assert await result(pool, handlers.echo, value=deep) == deep


async def test_an_exception_comes_with_its_names_and_the_handlers_traceback(
    pool: ProcessPool,
) -> None:
    failure = await error(pool, handlers.fail)
    assert failure.message == "ValueError: boom"
    assert {"ValueError", "builtins.ValueError", "Exception"} <= set(failure.names)
    assert failure.kind == "error"
    assert "process_handlers.py" in failure.traceback
    assert "engine/executors/child_main.py" not in failure.traceback


async def test_sys_exit_is_a_failure_and_the_process_lives_on(pool: ProcessPool) -> None:
    before = await result(pool, handlers.pid)
    assert (await error(pool, handlers.leave)).message == "SystemExit: enough"
    assert await result(pool, handlers.pid) == before


@pytest.mark.parametrize(("after", "seconds"), [(None, None), (90, 90.0), ("1m", 60.0)])
async def test_retry_carries_its_delay(pool: ProcessPool, after: Any, seconds: Any) -> None:
    failure = await error(pool, handlers.retry, after=after)
    assert (failure.kind, failure.retry_after) == ("retry", seconds)
    assert failure.message == "Retry: busy"


async def test_give_up_is_told_apart_from_other_failures(pool: ProcessPool) -> None:
    failure = await error(pool, handlers.give_up)
    assert (failure.kind, failure.message) == ("give_up", "GiveUp: no such customer")


async def test_a_result_that_cannot_be_kept_is_kept_as_text(pool: ProcessPool) -> None:
    odd = await result(pool, handlers.not_json)
    assert odd["kept_as"] == "text"
    assert odd["repr"].startswith("<object object at ")
    huge = await result(pool, handlers.huge)
    assert huge["kept_as"] == "text"
    assert huge["repr"].startswith("'xxx")
    assert len(huge["repr"]) == MAX_REPR


async def test_arguments_that_are_not_json_are_refused_before_a_process_is_used(
    pool: ProcessPool,
) -> None:
    with pytest.raises(InvalidPayload):
        await Started(pool, handlers.echo, value=object()).task


async def test_log_and_progress_reach_the_context(
    pool: ProcessPool, caplog: pytest.LogCaptureFixture
) -> None:
    run = Started(pool, handlers.report)
    await run.task
    assert run.context.latest_progress == Progress(5, 10, "halfway")
    [line] = run.context.log_lines
    assert line.endswith("WARNING half of 10")
    assert [record.getMessage() for record in caplog.records] == ["half of 10"]


async def test_the_childs_lines_stay_with_the_attempt_whatever_the_program_shows(
    pool: ProcessPool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "mainspring.run"):
        run = Started(pool, handlers.report)
        await run.task
    [line] = run.context.log_lines
    assert line.endswith("WARNING half of 10")
    assert not caplog.records


async def test_a_logged_exception_keeps_its_traceback(pool: ProcessPool) -> None:
    run = Started(pool, handlers.report_error)
    await run.task
    assert "ValueError: boom" in run.context.log_lines[0]


async def test_a_thread_that_outlives_its_run_does_not_log_into_the_next() -> None:
    pool = ProcessPool(size=1)
    await Started(pool, handlers.log_from_thread).task
    run = Started(pool, handlers.report)
    await run.task
    assert [line.split()[-3:] for line in run.context.log_lines] == [["half", "of", "10"]]
    await pool.close()


async def test_a_child_has_the_working_directory_and_path_of_its_parent(pool: ProcessPool) -> None:
    here = await result(pool, handlers.surroundings)
    assert here == {"cwd": os.getcwd(), "path": sys.path, "leader": True, "stdin": os.devnull}
    await result(pool, handlers.wander)
    assert await result(pool, handlers.surroundings) == here


# Finding the function


async def test_a_decorated_function_is_found_as_it_was_registered(pool: ProcessPool) -> None:
    target = Target.of(handlers.registered[0])
    assert target.layers == 1
    assert await result(pool, target, value=4) == 8
    assert await result(pool, handlers.Tools.shout, text="hey") == "HEY"


def local_function() -> Function:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: None, "a lambda has no name"),
        (local_function(), "made inside another function"),
        (handlers.Tools().method, "bound to an object"),
        (functools.partial(handlers.add, 1), "without a name"),
    ],
)
def test_what_another_process_cannot_find_is_refused(function: Function, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        Target.of(function)
    assert "at the top of a module" in str(caught.value)


def test_a_name_that_means_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    add = handlers.add
    monkeypatch.setattr(handlers, "add", handlers.fail)
    Target.check(add)
    with pytest.raises(InvalidInput, match="is something else"):
        Target.of(add)


async def test_a_module_that_cannot_be_imported_is_named(pool: ProcessPool) -> None:
    failure = await error(pool, Target("no.such.module", "handler"))
    assert "no.such.module:handler cannot be loaded" in failure.message
    assert "ModuleNotFoundError: No module named 'no'" in failure.message
    failure = await error(pool, Target(handlers.__name__, "missing"))
    assert "AttributeError" in failure.message
    assert "missing" in failure.message
