"""Helpers for tests of process isolation: start runs in a pool, look at processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.context import RunContext
from mainspring.core.model import Progress, Run
from mainspring.engine.attempt import AttemptError
from mainspring.engine.executors.process_pool import ProcessPool, Reply, Target
from tests.support.engine import LONG

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
Function = Callable[..., Any]


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(size=2)
    yield pool
    await pool.close()


class Started:
    """A run under way in the pool, and what it has said so far."""

    def __init__(
        self, pool: ProcessPool, function: Function | Target, limit: int | None = None, **given: Any
    ) -> None:
        run = Run(
            id="run-1",
            job_id="job",
            handler="handler",
            created_at=NOW,
            scheduled_at=NOW,
            run_at=NOW,
            payload=given,
            attempt=3,
        )
        self.context = RunContext(run)
        target = function if isinstance(function, Target) else Target.of(function)
        code = getattr(function, "__code__", None)
        self.task = asyncio.ensure_future(
            pool.run(
                target,
                run,
                takes_context=code is not None and "ctx" in code.co_varnames[: code.co_argcount],
                arguments=given,
                memory_limit=limit,
                context=self.context,
            )
        )

    async def said(self) -> Progress:
        async with asyncio.timeout(LONG):
            while self.context.latest_progress is None:
                assert not self.task.done(), self.task.result()
                await asyncio.sleep(0.005)
        return self.context.latest_progress

    async def pid(self) -> int:
        return int((await self.said()).done)

    async def cancel(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def result(pool: ProcessPool, function: Function | Target, **given: Any) -> Any:
    reply = await Started(pool, function, **given).task
    assert reply.error is None, reply.error.traceback
    return reply.result


async def error(pool: ProcessPool, function: Function | Target, **given: Any) -> AttemptError:
    reply: Reply = await Started(pool, function, **given).task
    assert reply.error is not None
    return reply.error


def alive(pid: int) -> bool:
    """Whether it runs; what is dead but not yet taken note of (a zombie of init's) does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while alive(pid):
            await asyncio.sleep(0.01)


def own_children() -> list[int]:
    """Pythons that this process has started, zombies too (a test server is none of them)."""
    tasks = Path("/proc/self/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if "python" in Path(f"/proc/{pid}/comm").read_text()]
