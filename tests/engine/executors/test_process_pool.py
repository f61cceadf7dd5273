"""Handlers in child processes: how a child finds them, and what it returns."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model import Progress
from mainspring.engine.executors.process_pool import ProcessPool, Target
from mainspring.errors import (
    InvalidInput,
    InvalidPayload,
    MemoryExceeded,
    NotStarted,
    ProcessDied,
    RunCancelled,
)
from tests.support import process_handlers as handlers
from tests.support.process_pool import (
    NOW,
    Function,
    Started,
    alive,
    error,
    gone,
    own_children,
    pool,
    result,
)

__all__ = ["pool"]


# What comes back


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
    assert "process_handlers.py" in str(failure.traceback)
    assert "engine/executors/child_main.py" not in str(failure.traceback)


async def test_sys_exit_is_a_failure_and_the_process_lives_on(pool: ProcessPool) -> None:
    before = await result(pool, handlers.pid)
    assert (await error(pool, handlers.leave)).message == "SystemExit: enough"
    assert await result(pool, handlers.pid) == before


@pytest.mark.parametrize(("after", "seconds"), [(None, None), (90, 90.0), ("1m", 60.0)])
async def test_retry_carries_its_delay(pool: ProcessPool, after: Any, seconds: Any) -> None:
    failure = await error(pool, handlers.retry, after=after)
    assert (failure.kind, failure.retry_after) == ("retry", seconds)
    assert failure.message == "Retry: busy"


async def test_arguments_that_are_not_json_are_refused_before_a_process_is_used(
    pool: ProcessPool,
) -> None:
    with pytest.raises(InvalidPayload):
        await Started(pool, handlers.echo, value=object()).task


@pytest.mark.parametrize(("level", "shown"), [("WARNING", ["half of 10"]), ("ERROR", [])])
async def test_log_and_progress_reach_the_context_whatever_the_program_shows(
    pool: ProcessPool, caplog: pytest.LogCaptureFixture, level: str, shown: list[str]
) -> None:
    run = Started(pool, handlers.report)
    with caplog.at_level(level, "mainspring.run"):
        await run.task
    assert run.context.latest_progress == Progress(5, 10, "halfway")
    [line] = run.context.log_lines
    assert line.endswith("WARNING half of 10")
    assert [record.getMessage() for record in caplog.records] == shown


async def test_a_logged_exception_keeps_its_traceback(pool: ProcessPool) -> None:
    run = Started(pool, handlers.report_error)
    await run.task
    assert "ValueError: boom" in run.context.log_lines[0]


# Finding the function


async def test_a_function_of_a_class_is_found(pool: ProcessPool) -> None:
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


async def test_a_module_that_cannot_be_imported_is_named(pool: ProcessPool) -> None:
    failure = await error(pool, Target("no.such.module", "handler"))
    assert "no.such.module:handler cannot be loaded" in failure.message
    assert "ModuleNotFoundError: No module named 'no'" in failure.message
    failure = await error(pool, Target(handlers.__name__, "missing"))
    assert "AttributeError" in failure.message
    assert "missing" in failure.message


MIB = 2**20


# Ends that no handler reports


async def test_a_sigkill_from_outside_ends_the_attempt_with_its_signal(pool: ProcessPool) -> None:
    run = Started(pool, handlers.block)
    os.kill(await run.pid(), signal.SIGKILL)
    with pytest.raises(ProcessDied, match="was ended by SIGKILL"):
        await run.task


async def test_an_idle_process_that_was_killed_is_replaced(pool: ProcessPool) -> None:
    pid = await result(pool, handlers.pid)
    os.kill(pid, signal.SIGKILL)  # at once, so that the next order goes to the dying one
    assert await result(pool, handlers.pid) != pid


# Cancel and timeout


@pytest.mark.parametrize("handler", [handlers.block_sync, handlers.block_async])
async def test_a_cancelled_handler_may_clean_up(
    pool: ProcessPool, tmp_path: Path, handler: Function
) -> None:
    witness = tmp_path / "witness"
    run = Started(pool, handler, witness=str(witness))
    pid = await run.pid()
    await run.cancel()
    assert not alive(pid)
    assert witness.read_text() == "cleaned up, cancelled=True"


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_handler_that_ignores_sigterm_is_killed(pool: ProcessPool, cancels: int) -> None:
    run = Started(pool, handlers.ignore_sigterm)
    pid = await run.pid()
    for _ in range(cancels - 1):
        run.task.cancel()
        await asyncio.sleep(0)
    await run.cancel()
    assert not alive(pid)


async def test_what_a_finished_handler_left_running_ends_with_it(pool: ProcessPool) -> None:
    before = await result(pool, handlers.pid)
    assert not alive(await result(pool, handlers.leave_grandchild))
    assert await result(pool, handlers.pid) != before


# Memory


async def test_growth_beyond_the_limit_ends_the_run(pool: ProcessPool) -> None:
    run = Started(pool, handlers.hog, 120 * MIB, mib=2000)
    with pytest.raises(MemoryExceeded, match=r"limit.* is 120\.0 MiB|limit of 120\.0 MiB"):
        await run.task
    assert await result(pool, handlers.add, a=1, b=1) == 2


async def test_one_great_allocation_is_refused(pool: ProcessPool) -> None:
    with pytest.raises(MemoryExceeded, match=r"needed more memory than its limit of 120\.0 MiB"):
        await Started(pool, handlers.gulp, 120 * MIB, mib=3000).task


async def test_the_limit_counts_children(pool: ProcessPool) -> None:
    with pytest.raises(MemoryExceeded, match=r"its limit is 200\.0 MiB"):
        await Started(pool, handlers.hog_in_children, 200 * MIB, mib=100).task


async def test_a_limit_binds_only_its_own_run() -> None:
    pool = ProcessPool(size=1)
    first = await Started(pool, handlers.pid, 120 * MIB).task
    assert await result(pool, handlers.gulp, mib=300) == 300 * MIB
    assert await result(pool, handlers.pid) == first.result
    await pool.close()


# The pool


async def test_no_more_processes_than_its_size(pool: ProcessPool) -> None:
    runs = [Started(pool, handlers.block) for _ in range(4)]
    pids = {await runs[0].pid(), await runs[1].pid()}
    assert pids == set(own_children())
    await runs[0].cancel()
    third = await runs[2].pid()
    assert set(own_children()) == {await runs[1].pid(), third}
    for run in runs[1:]:
        await run.cancel()


async def test_an_idle_process_ends() -> None:
    pool = ProcessPool(size=1, idle=0)
    await gone(await result(pool, handlers.pid))
    assert await result(pool, handlers.add, a=1, b=1) == 2
    await pool.close()


async def test_close_leaves_nothing_and_tells_runs_under_way() -> None:
    pool = ProcessPool(size=2)
    idle = await result(pool, handlers.pid)
    running = Started(pool, handlers.block)
    waiting = Started(pool, handlers.block)
    queued = Started(pool, handlers.block)
    pids = [idle, await running.pid(), await waiting.pid()]
    await pool.close()
    for run in (running, waiting):
        with pytest.raises(RunCancelled):
            await run.task
    with pytest.raises(NotStarted):
        await queued.task
    assert not any(map(alive, pids))
    assert own_children() == []


async def test_many_runs_leave_nothing_behind(pool: ProcessPool) -> None:
    await result(pool, handlers.pid)
    before = len(os.listdir("/proc/self/fd"))
    children = own_children()
    for _ in range(50):
        await result(pool, handlers.add, a=1, b=1)
    assert (len(os.listdir("/proc/self/fd")), own_children()) == (before, children)
    for _ in range(5):
        with pytest.raises(ProcessDied):
            await Started(pool, handlers.report_and_die).task
    await result(pool, handlers.pid)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(own_children()) == 1


async def test_a_system_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    pool = ProcessPool(size=1)
    assert await result(pool, handlers.add, a=1, b=1) == 2
    with pytest.raises(ProcessDied, match="exit code 3"):
        await Started(pool, handlers.report_and_die).task
    run = Started(pool, handlers.ignore_sigterm)
    pid = await run.pid()
    await run.cancel()
    assert not alive(pid)
    await pool.close()
    assert own_children() == []
