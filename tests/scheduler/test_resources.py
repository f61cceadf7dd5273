"""Resources with a life: opened at the start or for each run, closed at the stop or at its end."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypedDict, assert_type

import pytest

from mainspring import Client, RunContext, Scheduler, State, per_run
from mainspring.errors import InvalidInput, ResourceFailed
from mainspring.testing import TestScheduler
from tests.support import process_resources
from tests.support.engine import ended, until
from tests.support.scheduler_fixtures import Make


class Log(list[str]):
    """What was opened and closed, in order."""

    def sync(self, name: str) -> Callable[[], Iterator[str]]:
        def factory() -> Iterator[str]:
            self.append(f"open {name}")
            try:
                yield name
            finally:
                self.append(f"close {name}")

        return factory

    def asynchronous(self, name: str) -> Callable[[], AsyncIterator[str]]:
        async def factory() -> AsyncIterator[str]:
            self.append(f"open {name}")
            try:
                yield name
            finally:
                self.append(f"close {name}")

        return factory


class Pool:
    """A pool as drivers have them: a context manager that a function makes."""

    def __init__(self, log: Log) -> None:
        self.log = log

    async def __aenter__(self) -> Pool:
        self.log.append(f"open in {id(asyncio.get_running_loop())}")
        self.task = asyncio.current_task()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert asyncio.current_task() is self.task
        self.log.append(f"close in {id(asyncio.get_running_loop())}")


async def test_what_is_opened_at_the_start_is_closed_at_the_stop_in_reverse(make: Make) -> None:
    log = Log()

    async def coroutine() -> str:
        return "coroutine"

    given = {
        "value": "value",
        "a": log.sync("a"),
        "b": asynccontextmanager(log.asynchronous("b")),
        "c": contextmanager(log.sync("c")),
        "d": lambda: Pool(log),
        "e": coroutine,
        "f": lambda: print,
    }
    scheduler = make(resources=given)
    seen: list[dict[str, Any]] = []

    @scheduler.job
    async def work(ctx: RunContext) -> None:
        seen.append(dict(ctx.resources))

    loop = id(asyncio.get_running_loop())
    for _ in range(2):  # a scheduler may be started again
        async with scheduler:
            await scheduler.start()  # opens nothing again
            for _ in range(2):
                await ended(scheduler, await work.enqueue())
            assert log == ["open a", "open b", "open c", f"open in {loop}"]
        assert log[4:] == [f"close in {loop}", "close c", "close b", "close a"]
        log.clear()
    pools = {one.pop("d") for one in seen}
    assert len(pools) == 2  # one for each start
    [only] = {tuple(one.items()) for one in seen}
    assert dict(only) == {
        **{"value": "value", "a": "a", "b": "b", "c": "c", "e": "coroutine", "f": print}
    }


class Unused:
    def __call__(self) -> None:
        raise AssertionError("a value is not called")


async def test_only_a_function_is_a_factory(make: Make) -> None:
    """A class, a bound method, a built-in function, a partial and any other object are values."""
    sent: list[str] = []
    partial = functools.partial(Unused())
    given = {"a": Pool, "b": sent.append, "c": print, "d": partial, "e": Unused()}
    scheduler = make(resources=given)

    @scheduler.job
    async def work(ctx: RunContext[Any]) -> None:
        assert type(ctx.resources) is dict
        sent.append("same" if dict(ctx.resources) == given else "other")

    async with scheduler:
        await ended(scheduler, await work.enqueue())
    assert sent == ["same"]


async def test_a_factory_that_raises_at_the_start_is_named_and_nothing_stays_open(
    make: Make,
) -> None:
    log = Log()
    broken = True

    def database() -> str:
        if broken:
            raise ConnectionError("no route")
        return "db"

    scheduler = make(resources={"a": log.sync("a"), "database": database})
    for _ in range(2):
        with pytest.raises(
            ResourceFailed, match=r"'database' could not be opened.*ConnectionError: no route"
        ) as caught:
            await scheduler.start()
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert not scheduler.started
    assert log == ["open a", "close a"] * 2
    broken = False
    async with scheduler:
        assert scheduler.started


async def test_what_only_enqueues_opens_nothing(make: Make) -> None:
    log = Log()
    async with make(workers=0, resources={"a": log.sync("a")}):
        pass
    assert log == []
    with pytest.raises(InvalidInput, match="resources"):
        Client("memory://", resources={})  # type: ignore[arg-type]


async def test_resources_are_closed_after_the_last_handler_has_ended(make: Make) -> None:
    log = Log()
    began = asyncio.Event()
    scheduler = make(resources={"a": log.sync("a")})

    @scheduler.job
    async def slow(ctx: RunContext) -> None:
        began.set()
        await until(lambda: stopping, "the stop")
        await asyncio.sleep(0.1)
        log.append(f"end with {ctx.resources['a']}")

    @scheduler.job
    async def stuck(ctx: RunContext) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            log.append(f"cancelled with {ctx.resources['a']}")

    stopping = False
    await scheduler.start()
    await slow.enqueue()
    await began.wait()
    stop = asyncio.create_task(scheduler.stop())
    stopping = True
    await stop
    assert log == ["open a", "end with a", "close a"]

    log.clear()
    await scheduler.start()
    began.clear()
    await stuck.enqueue()
    await began.wait()
    await scheduler.stop(timeout=0)
    assert log == ["open a", "cancelled with a", "close a"]


# -- for each run -----------------------------------------------------------------------------


async def test_each_attempt_has_its_own_and_closes_it_however_it_ends(make: Make) -> None:
    log = Log()
    threads: list[int] = []

    @contextmanager
    def session(ctx: RunContext) -> Iterator[str]:
        threads.append(threading.get_ident())
        log.append(f"open {ctx.resources['db']} {ctx.attempt}")
        try:
            yield f"session {ctx.attempt}"
        except BaseException as error:
            log.append(f"rollback after {type(error).__name__}")
            raise
        else:
            log.append("commit")
        finally:
            log.append("close")

    scheduler = make(resources={"db": lambda: "db", "session": per_run(session)})

    @scheduler.job(retries=1, backoff="fixed", retry_delay="1ms")
    def plain(ctx: RunContext) -> str:
        threads.append(threading.get_ident())
        if ctx.attempt == 1:
            raise ValueError
        return str(ctx.resources["session"])

    @scheduler.job(retries=1, backoff="fixed", retry_delay="1ms")
    async def asynchronous(ctx: RunContext) -> str:
        if ctx.attempt == 1:
            raise ValueError
        return str(ctx.resources["session"])

    @scheduler.job(timeout="50ms")
    async def hangs() -> None:
        await asyncio.Event().wait()

    async with scheduler:
        for job in (plain, asynchronous):
            run = await ended(scheduler, await job.enqueue())
            assert run.result == "session 2"
            assert log == [
                *("open db 1", "rollback after ValueError", "close"),
                *("open db 2", "commit", "close"),
            ]
            log.clear()
        run = await ended(scheduler, await hangs.enqueue())
        assert run.state is State.FAILED
    assert log == ["open db 1", "rollback after CancelledError", "close"]
    assert threads[0] == threads[1]  # opened where the handler runs
    assert threads[2] == threads[3]


async def test_a_factory_that_raises_for_a_run_fails_its_attempt(make: Make) -> None:
    log = Log()
    failures = [ConnectionError("gone")]

    def session() -> str:
        if failures:
            raise failures.pop()
        return "session"

    scheduler = make(resources={"a": per_run(log.sync("a")), "session": per_run(session)})

    @scheduler.job(retries=1, backoff="fixed", retry_delay="1ms", retry_on=["ConnectionError"])
    def work(ctx: RunContext) -> str:
        return str(ctx.resources["session"])

    async with scheduler:
        run = await ended(scheduler, await work.enqueue())
    first, second = run.attempts
    assert (run.result, second.error) == ("session", None)
    assert "ConnectionError: gone" in (first.error or "")
    assert "raised while the resource 'session' was opened" in (first.traceback or "")
    assert log == ["open a", "close a"] * 2


async def test_a_close_that_raises_fails_the_attempt(make: Make) -> None:
    def session() -> Iterator[None]:
        yield
        raise OSError("the commit failed")

    scheduler = make(resources={"session": per_run(session)})

    @scheduler.job
    def plain() -> None: ...

    @scheduler.job
    async def work() -> None: ...

    async with scheduler:
        for job in ("plain", "work"):
            run = await ended(scheduler, await scheduler.enqueue(job))
            assert run.state is State.FAILED
            assert "the commit failed" in (run.error or "")


async def test_around_and_hooks_see_the_resources_that_are_open(make: Make) -> None:
    log = Log()

    @contextmanager
    def around(ctx: RunContext) -> Iterator[None]:
        log.append(f"around has {ctx.resources['session']}")
        yield
        log.append("around ends")

    scheduler = make(resources={"session": per_run(log.sync("session"))}, around=around)

    async def on_success(ctx: RunContext, result: object) -> None:
        try:
            ctx.resources["session"]
        except Exception as error:
            log.append(str(error))

    @scheduler.job(on_success=on_success)
    async def work() -> None: ...

    async with scheduler:
        await ended(scheduler, await work.enqueue())
        await until(lambda: len(log) == 5, "the hook")
    assert log[:4] == ["open session", "around has session", "around ends", "close session"]
    assert "'session' is opened for each run" in log[4]


async def test_an_asynchronous_resource_is_not_for_handlers_in_threads(make: Make) -> None:
    log = Log()
    given = {
        "shared": log.asynchronous("shared"),
        "own": per_run(log.asynchronous("own")),
        "plain": per_run(log.sync("plain")),
    }
    scheduler = make(resources=given)

    @scheduler.job
    def in_thread(ctx: RunContext, name: str) -> list[str]:
        return [*sorted(ctx.resources), ctx.resources[name]]

    @scheduler.job
    async def on_loop(ctx: RunContext, name: str) -> list[str]:
        return [*sorted(ctx.resources), ctx.resources[name]]

    @scheduler.job(isolation="thread")
    async def own_loop(ctx: RunContext, name: str) -> list[str]:
        return [*sorted(ctx.resources), ctx.resources[name]]

    async def outcome(job: Any, name: str) -> Any:
        run = await ended(scheduler, await job.enqueue(name=name))
        return run.result if run.state is State.SUCCEEDED else run.error

    refused = "is asynchronous, so it can only be used on the event loop"
    async with scheduler:
        for name in given:
            assert await outcome(on_loop, name) == ["own", "plain", "shared", name]
        assert await outcome(in_thread, "plain") == ["plain", "plain"]
        assert await outcome(own_loop, "own") == ["own", "plain", "own"]
        for job, name in [(in_thread, "shared"), (in_thread, "own"), (own_loop, "shared")]:
            assert f"the resource {name!r} {refused}" in await outcome(job, name)
    assert log.count("open shared") == 1
    for name in ("own", "plain"):
        assert log.count(f"open {name}") == log.count(f"close {name}") > 0


class Shop(TypedDict):
    name: str
    numbers: list[int]


async def test_a_handler_may_name_the_types_of_its_resources(make: Make) -> None:
    scheduler = make(resources={"name": lambda: "shop", "numbers": [1]})

    @scheduler.job
    async def work(ctx: RunContext[Shop], factor: int) -> list[int]:
        assert_type(ctx.resources["name"], str)
        assert_type(ctx.resources["numbers"], list[int])
        return [factor * number for number in ctx.resources["numbers"]]

    @scheduler.job
    def as_text(ctx: "RunContext[Shop]") -> str:  # noqa: UP037
        return ctx.resources["name"]

    async with scheduler:
        assert (await ended(scheduler, await work.enqueue(factor=2))).result == [2]
        assert (await ended(scheduler, await as_text.enqueue())).result == "shop"


# -- plain code, tests, processes -------------------------------------------------------------


def test_plain_code_opens_them_on_the_loop_of_its_handlers(file: str) -> None:
    log = Log()
    scheduler = Scheduler(file, resources={"pool": lambda: Pool(log)})

    @scheduler.job
    async def work(ctx: RunContext) -> bool:
        return log == [f"open in {id(asyncio.get_running_loop())}"] and "pool" in ctx.resources

    with scheduler.blocking as blocking:
        assert blocking.wait(work.blocking.enqueue().id, timeout=60).result is True
    assert len(log) == 2


async def test_a_test_scheduler_opens_them_and_may_replace_factories() -> None:
    log = Log()
    scheduler = Scheduler(
        "memory://",
        workers=0,
        resources={
            "pool": log.asynchronous("pool"),
            "session": per_run(log.sync("session")),
            "mail": log.sync("mail"),
        },
    )

    @scheduler.job
    async def on_loop(ctx: RunContext) -> list[str]:
        return [ctx.resources[name] for name in ("pool", "session", "mail")]

    @scheduler.job
    def in_thread(ctx: RunContext) -> list[str]:
        return [ctx.resources[name] for name in ("session", "mail")]

    async with TestScheduler(scheduler, resources={"mail": "fake"}) as test:
        assert (await test.run("on_loop")).result == ["pool", "session", "fake"]
        assert (await test.run("in_thread")).result == ["session", "fake"]
    assert log == ["open pool", *["open session", "close session"] * 2, "close pool"]


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "resources"
    monkeypatch.setenv("MAINSPRING_TEST_RESOURCES", str(path))
    return path


def of_other_processes(witness: Path) -> list[str]:
    lines = [line.rpartition(" ") for line in witness.read_text().splitlines()]
    return [what for what, _, pid in lines if int(pid) != os.getpid()]


async def test_a_process_opens_its_own_once_and_closes_them_at_its_end(
    make: Make, witness: Path
) -> None:
    given = {
        "pool": process_resources.open_pool,
        "client": process_resources.open_client,
        "session": per_run(process_resources.open_session),
        "region": "eu",
        "local": lambda: "here",
    }
    scheduler = make(resources=given, workers=1)
    read = scheduler.job(isolation="process")(process_resources.read)
    read_async = scheduler.job(isolation="process")(process_resources.read_async)
    fail = scheduler.job(isolation="process")(process_resources.fail)

    async def outcome(job: Any, *names: str) -> Any:
        run = await ended(scheduler, await job.enqueue(names=list(names)))
        return run.result if run.state is State.SUCCEEDED else run.error

    async with scheduler:
        pool, session, region = await outcome(read, "pool", "session", "region")
        assert pool != f"pool of {os.getpid()}"
        assert (session, region) == (f"session in {pool}", "eu")
        assert (await outcome(read_async, "pool", "client"))[0] == pool  # the same process
        assert "'client' is asynchronous" in await outcome(read, "client")
        assert "'local' is not open in this process: " in await outcome(read, "local")
        failed = await ended(scheduler, await fail.enqueue())
        assert failed.state is State.FAILED
        assert pool in (failed.error or "")
    told = of_other_processes(witness)
    assert (told[0], told[-1]) == ("open pool", "close pool")
    assert told.count("open pool") == told.count("close pool") == 1
    assert told.count("open session 1") == told.count("close session 1") == 5
    assert told.count("open client") == told.count("close client") == 1


async def test_a_process_opens_them_in_their_order(make: Make, witness: Path) -> None:
    """Each may use those before it, as in the worker itself."""
    given = {
        "pool": process_resources.open_pool,
        "session": per_run(process_resources.open_session),
        "cursor": per_run(process_resources.open_cursor),
        "row": per_run(process_resources.open_row),
    }
    scheduler = make(resources=given)
    read = scheduler.job(isolation="process")(process_resources.read)
    async with scheduler:
        run = await ended(scheduler, await read.enqueue(names=["row"]))
    assert run.state is State.SUCCEEDED, run.error
    assert run.result[0].startswith("row of cursor of session in pool of ")


async def test_a_test_scheduler_gives_a_process_what_it_could_open(witness: Path) -> None:
    given = {
        "pool": process_resources.open_pool,
        "session": per_run(process_resources.open_session),
        "local": lambda: "here",
        "object": object(),
    }
    scheduler = Scheduler("memory://", resources=given)
    read = scheduler.job(isolation="process", id="read")(process_resources.read)
    async with TestScheduler(scheduler) as test:
        done = [await test.run(read, {"names": [name]}) for name in given]
    assert [run.state for run in done] == [State.SUCCEEDED] * 2 + [State.FAILED] * 2
    assert "'local' is not open in this process" in (done[2].error or "")
