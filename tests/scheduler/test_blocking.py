"""Plain code calls a scheduler or a client by `.blocking`, and not inside of an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client, Scheduler, State
from mainspring.errors import InvalidState, NotStarted
from mainspring.scheduler.scheduler import BlockingScheduler
from tests.support.engine import ended
from tests.support.scheduler_fixtures import Make


def test_blocking_has_every_public_async_method() -> None:
    wanted = {
        name
        for name, member in inspect.getmembers(Scheduler)
        if inspect.iscoroutinefunction(member) and not name.startswith("_")
    }
    assert wanted - set(dir(BlockingScheduler)) == set()
    assert inspect.signature(Scheduler("memory://").blocking.add_job).parameters.keys() >= {"id"}


def test_plain_code_with_blocking(file: str) -> None:
    scheduler = Scheduler(file)
    done: list[int] = []

    @scheduler.job()
    def parent(n: int) -> int:
        """A sync handler may use the blocking proxy itself."""
        child_run = child.blocking.enqueue(n=n + 1)
        return int(scheduler.blocking.wait(child_run.id, 10).result)

    @scheduler.job()
    async def child(n: int) -> int:
        done.append(n)
        return n

    with scheduler.blocking as blocking:
        run = parent.blocking.enqueue(n=1)
        assert blocking.wait(run.id, 10).result == 2
        assert blocking.get_run(run.id).state is State.SUCCEEDED
        many = child.blocking.options(priority=9).enqueue_many([{"n": n} for n in range(3)])
        assert [blocking.wait(r.id, 10).result for r in many] == [0, 1, 2]
        later = child.blocking.options(delay="1h").enqueue(n=9)
        assert blocking.cancel(later.id) is True

        runs: list[Any] = []
        other = threading.Thread(target=lambda: runs.append(child.blocking.enqueue(n=5)))
        other.start()
        other.join(10)
        assert blocking.wait(runs[0].id, 10).result == 5
        with pytest.raises(AttributeError, match="no attribute 'job'"):
            blocking.job  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(NotStarted, match="not started"):
        child.blocking.enqueue(n=1)


async def test_blocking_is_refused_inside_a_loop(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def work() -> None: ...

    with pytest.raises(InvalidState, match="would block the event loop"):
        scheduler.blocking.start()
    async with scheduler:
        with pytest.raises(
            InvalidState, match=r"work\.blocking\.enqueue\(\) would block .* await work\.enqueue"
        ):
            work.blocking.enqueue()
        with pytest.raises(InvalidState, match=r"await scheduler\.enqueue"):
            scheduler.blocking.enqueue("work")
        run = await asyncio.to_thread(work.blocking.enqueue)
        await ended(scheduler, run)


def test_plain_code_uses_a_client_by_blocking(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url, poll="50ms")

    @scheduler.job()
    async def double(n: int) -> int:
        return 2 * n

    with scheduler.blocking, Client(url, poll="50ms").blocking as client:
        run = client.enqueue("double", {"n": 4})
        assert client.wait(run.id, "10s").result == 8


def test_a_second_start_is_harmless_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    scheduler = Scheduler("memory://")
    scheduler.blocking.start()
    scheduler.blocking.start()
    scheduler.blocking.stop()
    assert set(threading.enumerate()) <= before  # a thread of an earlier test may just end
