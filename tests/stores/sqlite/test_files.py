"""The files of a database: deleted, moved or replaced in use; the lock that processes take."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from mainspring import Scheduler
from mainspring.core import transitions
from mainspring.core.events import Event
from mainspring.errors import StoreError, StoreFileChanged, StoreUnavailable
from mainspring.stores.protocol import Held, RunQuery
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.files import FileLock
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.sqlite_store import a_claim, a_run, ids_of, opened

SPAWN = multiprocessing.get_context("spawn")


def delete(path: Path) -> None:
    path.unlink()


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace(path: Path) -> None:
    other = path.with_name("other.db")
    asyncio.run(make_database(other))
    other.rename(path)


def delete_the_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


CHANGES = [delete, move_folder, replace, delete_the_log]


async def make_database(path: Path) -> None:
    async with opened(path) as store:
        await store.add([a_run("of another database")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "jobs.db"


@pytest.mark.parametrize("change", CHANGES)
async def test_nothing_is_acknowledged_after_the_file_has_changed(
    path: Path, change: Callable[[Path], None]
) -> None:
    async with opened(path) as store:
        await store.add([a_run("one"), a_run("two")])
        [held] = await claim_runs(store, a_claim(limit=1))
        assert len(await ids_of(store)) == 2
        await asyncio.to_thread(change, path)
        before = sorted(os.listdir(path.parent)) if path.parent.exists() else None
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.add([a_run("three")]),
            lambda: claim_runs(store, a_claim()),
            lambda: claim_runs(store, a_claim(handlers=frozenset({"nothing due"}))),
            lambda: store.renew([Held(held.id, held.token)], timedelta(seconds=30)),
            lambda: get_runs(store, ["one"]),
            lambda: store.find(RunQuery()),
            lambda: store.counts(),
            lambda: store.transaction(Held(held.id, held.token), timedelta(seconds=5)).begin(),
        ]
        for use in uses:
            with pytest.raises(StoreFileChanged, match=r"while it was in use\. Nothing is written"):
                await use()
        after = sorted(os.listdir(path.parent)) if path.parent.exists() else None
        assert after == before, "nothing may be made in place of what was deleted"


def adding(path: Path, pipe: Connection) -> None:
    """A process that adds runs until the store refuses; it says which were acknowledged."""

    async def add() -> None:
        async with opened(path) as store:
            done: list[str] = []
            pipe.send("ready")
            try:
                while True:
                    run_id = f"{os.getpid()}-{len(done)}"
                    await store.add([a_run(run_id)])
                    done.append(run_id)
                    if len(done) == 20:
                        pipe.send("busy")
            except StoreFileChanged:
                pipe.send(done)

    asyncio.run(add())


async def test_processes_that_are_busy_lose_nothing_that_was_acknowledged(path: Path) -> None:
    """Two processes add at full speed while the file is moved away: all that they were told is
    done is in the file that was moved."""
    pipes = [SPAWN.Pipe() for _ in range(2)]
    processes = [SPAWN.Process(target=adding, args=(path, theirs)) for _, theirs in pipes]
    for process in processes:
        process.start()
    for ours, _ in pipes:
        assert await asyncio.to_thread(ours.recv) == "ready"
        assert await asyncio.to_thread(ours.recv) == "busy"
    moved = path.with_name("moved.db")
    for suffix in ("", "-wal"):  # the log has what is not yet in the file
        os.link(f"{path}{suffix}", f"{moved}{suffix}")
    os.unlink(path)
    done = [run_id for ours, _ in pipes for run_id in await asyncio.to_thread(ours.recv)]
    for process in processes:
        await asyncio.to_thread(process.join)
    with closing(sqlite3.connect(moved)) as connection:
        stored = {run_id for (run_id,) in connection.execute("SELECT id FROM mainspring_runs")}
    assert len(done) >= 40
    assert stored >= set(done)


async def test_a_transaction_on_a_replaced_file_is_not_reported_as_done(path: Path) -> None:
    async with opened(path) as store:
        await store.add([a_run("one")])
        [held] = await claim_runs(store, a_claim())
        turn = store.transaction(Held(held.id, held.token), timedelta(seconds=30))
        connection = await turn.begin()
        connection.execute("CREATE TABLE effects (x)")
        os.unlink(path)
        with pytest.raises(StoreFileChanged):
            await turn.commit(transitions.succeeded(held, await store.now(), None))


async def test_a_program_is_told_what_happened_and_enqueues_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(f"sqlite:///{path}", poll="50ms")

    @scheduler.job()
    def work() -> None: ...

    async with scheduler:
        failing = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(failing.set)

        scheduler.on("scheduler.error", tell)
        await scheduler.wait((await work.enqueue()).id, 30)
        os.unlink(path)
        with pytest.raises(StoreFileChanged):
            await work.enqueue()
        await asyncio.wait_for(failing.wait(), 30)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "deleted or moved while it was in use" in errors[0].getMessage()
    assert not errors[0].exc_info


async def read_in_another_program(path: Path) -> None:
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "c.execute('SELECT count(*) FROM mainspring_runs').fetchall(); c.close()"
    )
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(path))
    assert await program.wait() == 0


async def test_a_second_store_in_the_process_leaves_the_locks_of_the_first(path: Path) -> None:
    """SQLite's locks belong to the process: whoever opens and closes the file beside it drops
    them. Another program that closed the file then took itself for the last, and deleted the log
    under our feet."""
    async with opened(path) as store:
        await store.add([a_run("one")])
        second = SqliteStore(path)
        await second.open(create=False)
        await second.close()
        async with opened(path):
            pass
        await read_in_another_program(path)
        assert path.with_name("jobs.db-wal").exists()
        await store.add([a_run("two")])


async def test_who_opens_the_file_beside_the_store_is_told_what_that_does(path: Path) -> None:
    """A handler copies the file, and a program that comes and goes then deletes the log."""
    async with opened(path) as store:
        await store.add([a_run("one")])
        shutil.copy(path, path.with_name("copy.db"))
        await read_in_another_program(path)
        with pytest.raises(StoreFileChanged, match="Restart this program") as raised:
            await store.add([a_run("two")])
    assert "never open the database file in a process that uses it" in str(raised.value)
    assert "sqlite3 jobs.db '.backup copy.db'" in str(raised.value)
    assert "put the right file" not in str(raised.value)
    async with opened(path) as store:
        assert await ids_of(store) == ["one"]


# -- the lock --------------------------------------------------------------------------------


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[tuple[FileLock, FileLock]]:
    """Two locks on one file, as two processes have them."""
    made = FileLock(tmp_path / "lock", 0.05), FileLock(tmp_path / "lock", 0.05)
    for lock in made:
        lock.open()
    yield made
    for lock in made:
        lock.close()


def held(path: Path) -> bool:
    """Whether somebody holds the lock on a file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_lock_that_another_process_holds_is_waited_for(
    locks: tuple[FileLock, FileLock],
) -> None:
    ours, theirs = locks
    with theirs, pytest.raises(StoreUnavailable, match="another process has held"), ours:
        pass
    with ours:
        pass


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_a_lock_that_the_system_refuses_is_told_as_such(
    locks: tuple[FileLock, FileLock], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """A network file system may have no locks: no other process is the reason."""
    flock = fcntl.flock
    main = threading.main_thread()

    def refuse(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            flock(fd, operation)
        elif waits and threading.current_thread() is main:
            raise OSError(errno.EWOULDBLOCK, "taken")
        else:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="cannot be locked: No locks available"), locks[0]:
        pass
    monkeypatch.undo()
    with locks[0]:
        pass
