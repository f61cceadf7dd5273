"""The writer thread, the hints, and several loops and processes on one file."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import threading
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model import State
from mainspring.stores.election import elect
from mainspring.stores.protocol import Held
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite import writer as writer_module
from mainspring.stores.sqlite.hint_watch import HintWatch
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.sqlite_store import a_claim, a_run, ids_of, opened

SPAWN = multiprocessing.get_context("spawn")


async def test_a_failing_operation_harms_no_other(tmp_path: Path) -> None:
    def fail(tx: Any, items: Any) -> list[None]:
        tx.connection.execute("DELETE FROM mainspring_runs")
        raise RuntimeError("on purpose")

    async with opened(tmp_path / "jobs.db") as store:
        await store.add([a_run("first")])
        results = await asyncio.gather(
            store.add([a_run("before")]),
            store._write(fail, [1]),
            store.add([a_run("after")]),
            elect(store, "x", "me", timedelta(seconds=9)),
            return_exceptions=True,
        )
        assert isinstance(results[1], RuntimeError)
        assert results[3] == 1
        assert await ids_of(store) == ["first", "before", "after"]


class Holding:
    """Work that stays in the writer thread until it is let go."""

    def __init__(self, store: SqliteStore) -> None:
        self._loop = asyncio.get_running_loop()
        self._go_on = threading.Event()
        self.reached = asyncio.Event()
        self.task = asyncio.create_task(store._write(self._run, [1]))

    async def let_go(self) -> None:
        self._go_on.set()
        await self.task

    def _run(self, tx: Any, items: Any) -> list[None]:
        self._loop.call_soon_threadsafe(self.reached.set)
        self._go_on.wait(30)
        return [None]


async def test_callers_who_add_at_once_share_commits(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        statements: list[str] = []

        def trace(tx: Any, items: Any) -> list[None]:
            tx.connection.set_trace_callback(statements.append)
            return [None]

        await store._write(trace, [1])
        held = Holding(store)
        await held.reached.wait()
        adding = [asyncio.create_task(store.add([a_run(f"run-{n}")])) for n in range(300)]
        await asyncio.sleep(0)  # all of them are queued behind the work that is held
        await held.let_go()
        await asyncio.gather(*adding)
        assert await ids_of(store) == [f"run-{n}" for n in range(300)]
    assert statements.count("COMMIT") == 3  # of the tracing, of the work that was held, of them all


async def test_runs_of_a_claim_that_nobody_awaits_go_back(store: SqliteStore) -> None:
    await store.add([a_run("one")])
    first = Holding(store)
    await first.reached.wait()
    claim = asyncio.create_task(claim_runs(store, a_claim()))
    second = Holding(store)  # it shares a transaction with the claim, and comes behind it
    await asyncio.sleep(0)
    await first.let_go()
    await second.reached.wait()
    claim.cancel()
    await second.let_go()
    await store.renew([Held("none", 1)], timedelta(seconds=1))  # behind the giving back
    [run] = (await get_runs(store, ["one"])).values()
    assert (run.state, run.attempt, run.token) == (State.PENDING, 0, 1)


async def test_work_cancelled_before_its_turn_is_not_done(store: SqliteStore) -> None:
    held = Holding(store)
    await held.reached.wait()
    adding = asyncio.create_task(store.add([a_run("one")]))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.sleep(0)
    await held.let_go()
    await store.add([a_run("two")])
    assert await ids_of(store) == ["two"]


async def test_it_serves_several_loops(store: SqliteStore) -> None:
    def elsewhere(name: str) -> None:
        async def use() -> None:
            await store.add([a_run(f"{name}-{n}") for n in range(10)])
            assert len(await get_runs(store, [f"{name}-{n}" for n in range(10)])) == 10

        asyncio.run(use())

    await asyncio.gather(*(asyncio.to_thread(elsewhere, f"thread-{n}") for n in range(4)))
    assert len(await ids_of(store)) == 40


# -- processes ------------------------------------------------------------------------------


def writing(path: Path, pipe: Connection) -> None:
    """A process that adds a run whenever it is told its id."""

    async def serve() -> None:
        async with opened(path) as store:
            pipe.send("ready")
            while run_id := pipe.recv():
                await store.add([a_run(run_id)])

    asyncio.run(serve())


@pytest.mark.parametrize("watches", [True, False])
async def test_another_processs_write_wakes_and_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    if not watches:
        monkeypatch.setattr(HintWatch, "open", lambda path: None)
    path = tmp_path / "jobs.db"
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=writing, args=(path, theirs))
    async with opened(path) as store:
        process.start()
        assert await asyncio.to_thread(ours.recv) == "ready"
        for run_id in ("one", "two"):
            woken = asyncio.create_task(store.wait(60))
            await asyncio.sleep(0)
            ours.send(run_id)
            while run_id not in await get_runs(store, [run_id]):
                assert await woken
                woken = asyncio.create_task(store.wait(60))
            woken.cancel()
        ours.send("")
        await asyncio.to_thread(process.join)
    assert process.exitcode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems only poll")
async def test_a_hint_of_another_writer_spares_the_wait_for_a_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_POLL_SECONDS", 3600)
    path = tmp_path / "jobs.db"
    async with opened(path) as store, opened(path) as other:
        for run_id in ("one", "two"):
            woken = asyncio.create_task(store.wait(60))
            await until_it_watches(store)
            await other.add([a_run(run_id)])
            assert await woken


@pytest.mark.skipif(sys.platform != "linux", reason="other systems only poll")
async def test_a_writer_that_waits_for_hints_takes_operations_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_POLL_SECONDS", 3600)
    async with opened(tmp_path / "jobs.db") as store:
        woken = asyncio.create_task(store.wait(60))
        await until_it_watches(store)
        await store.add([a_run("mine")])
        assert await woken
        waits = asyncio.create_task(store.wait(60))
        await until_it_watches(store)
        await store.close()
        assert await waits


async def until_it_watches(store: SqliteStore) -> None:
    assert store._session is not None
    mailbox = store._session.writer.mailbox
    async with asyncio.timeout(60):
        while mailbox._watched is None:
            await asyncio.sleep(0.001)


def test_a_system_without_watches_left_only_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HintWatch.open(tmp_path / "missing") is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert HintWatch.open(tmp_path) is None
