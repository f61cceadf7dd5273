"""The database file: created, migrated, refused, and kept through restarts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Coroutine, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import State
from mainspring.errors import StoreDamaged, StoreError, StoreTooNew, StoreUnavailable
from mainspring.stores.election import elect
from mainspring.stores.protocol import Held, RunQuery
from mainspring.stores.sqlite import SqliteStore, schema
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.sqlite_store import a_claim, a_run, ids_of, opened, sql


async def test_close_finishes_what_was_accepted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    adding = [asyncio.ensure_future(store.add([a_run(f"run-{n}")])) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert all(len(added) == 1 for added in await asyncio.gather(*adding))
    async with opened(tmp_path / "jobs.db") as again:
        assert len(await ids_of(again)) == 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_child_is_told_to_open_its_own(store: SqliteStore) -> None:
    assert await _in_a_child(_use(store)) == 1
    assert await get_runs(store, ["one"]) == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_child_may_open_a_file_that_its_parent_has_closed(tmp_path: Path) -> None:
    """As a server does that migrates its database before it forks its workers."""
    path = tmp_path / "jobs.db"
    async with opened(path):
        assert await _in_a_child(_open_and_close(path)) == 1
    assert await _in_a_child(_open_and_close(path)) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_child_draws_other_change_ids() -> None:
    run = a_run("one")
    last = transitions.began(run).change_id  # many are drawn at once: the child must drop the rest
    reader, writer = os.pipe()

    async def draw() -> int:
        return os.write(writer, repr(transitions.began(run).change_id).encode()) and 0

    assert await _in_a_child(draw()) == 0
    drawn = int(os.read(reader, 100))
    assert len({last, drawn, transitions.began(run).change_id}) == 3
    os.close(reader)
    os.close(writer)


async def _in_a_child(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of a forked child that does the work: what it returns, 2 if it raises."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            with asyncio.Runner() as runner:
                asyncio.events._set_running_loop(None)  # the parent's loop is copied with it
                code = runner.run(work)
        finally:
            os._exit(code)
    work.close()
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    return os.waitstatus_to_exitcode(status)


async def _use(store: SqliteStore) -> int:
    try:
        await get_runs(store, ["one"])
    except StoreError as error:
        return 1 if "forked" in str(error) else 3
    return 0


async def _open_and_close(path: Path) -> int:
    try:
        async with opened(path):
            return 0
    except StoreError:
        return 1


async def refused(path: Path, error: type[StoreError], match: str) -> None:
    store = SqliteStore(path)
    with pytest.raises(error, match=match) as caught:
        await store.open()
    assert str(path) in str(caught.value)
    with pytest.raises(StoreError, match="not open"):
        await get_runs(store, ["a"])


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    await refused(tmp_path, StoreError, "is a folder")


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    await refused(tmp_path / "no" / "jobs.db", StoreError, "does not exist; make it first")


async def test_memory_is_another_store() -> None:
    with pytest.raises(StoreError, match="memory://"):
        await SqliteStore(":memory:").open()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_no_permission_is_told(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    await refused(tmp_path / "locked" / "jobs.db", StoreError, "no permission to write to")


async def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_text("a diary, and a long one, with more than sixteen characters")
    await refused(path, StoreDamaged, "no SQLite database")
    assert path.read_text().startswith("a diary")


async def damaged_file(folder: Path) -> Path:
    path = folder / "jobs.db"
    async with opened(path) as store:
        await store.add([a_run(f"run-{n}", payload="x" * 500) for n in range(200)])
    content = bytearray(path.read_bytes())
    content[100:4096] = os.urandom(3996)
    path.write_bytes(content)
    return path


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    await refused(await damaged_file(tmp_path), StoreDamaged, "damaged")


async def test_another_programs_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    sql(path, "PRAGMA application_id = 1234; CREATE TABLE theirs (x)")
    await refused(path, StoreDamaged, "another program")


async def test_a_users_own_database_is_shared_and_kept_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    sql(path, "PRAGMA user_version = 42; CREATE TABLE orders (x); INSERT INTO orders VALUES (1)")
    async with opened(path) as store:
        await store.add([a_run("one")])
    async with opened(path) as store:
        assert await ids_of(store) == ["one"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (42,)
        assert connection.execute("PRAGMA application_id").fetchone() == (0,)
        assert connection.execute("SELECT x FROM orders").fetchone() == (1,)


async def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """The first of them makes the disk reserve."""
    stores = [SqliteStore(tmp_path / "jobs.db") for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.add([a_run(f"run-{n}")]) for n, store in enumerate(stores)))
    assert len(await ids_of(stores[0])) == 8
    await asyncio.gather(*(store.close() for store in stores))
    assert [name for name in os.listdir(tmp_path) if "reserve" in name] == ["jobs.db-reserve"]


async def test_an_older_sqlite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "OLDEST_SQLITE", (99, 0, 0))
    path = tmp_path / "jobs.db"
    await refused(path, StoreError, rf"SQLite {sqlite3.sqlite_version}, .* needs 99.0.0 or later")
    assert not path.exists()


async def test_a_step_of_a_migration_is_applied_once_and_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, shared = tmp_path / "jobs.db", tmp_path / "shop.db"
    sql(shared, "PRAGMA user_version = 42; CREATE TABLE orders (x)")
    step = """
    ALTER TABLE mainspring_runs ADD COLUMN colour TEXT;
    UPDATE mainspring_runs SET colour = 'red';
    CREATE TABLE mainspring_more (x INTEGER) STRICT;
    INSERT INTO mainspring_more VALUES (1)
    """
    for file in (path, shared):
        async with opened(file) as store:
            await store.add([a_run("old")])
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, step])
    for file, user_version in ((path, 0), (shared, 42)):
        for n in range(2):
            async with opened(file) as store:
                await store.add([a_run(f"new-{n}")])
                assert len(await ids_of(store)) == n + 2
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (user_version,)
            assert connection.execute(schema._VERSION).fetchall() == [(2,)]
            assert connection.execute("SELECT count(*) FROM mainspring_more").fetchone() == (1,)
            colours = connection.execute("SELECT id FROM mainspring_runs WHERE colour = 'red'")
            assert colours.fetchall() == [("old",)]


async def test_a_step_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path):
        pass
    known = schema.MIGRATIONS
    monkeypatch.setattr(
        schema, "MIGRATIONS", [*known, "CREATE TABLE mainspring_more (x); Nonsense"]
    )
    with pytest.raises(StoreError, match="Nonsense"):
        await SqliteStore(path).open()
    monkeypatch.setattr(schema, "MIGRATIONS", known)
    async with opened(path) as store:
        assert await ids_of(store) == []


async def test_a_full_file_refuses_writes_and_recovers(store: SqliteStore) -> None:
    await store.add([a_run("before")])
    cap = "PRAGMA max_page_count = {}"
    await on_writer(store, cap.format(1))  # SQLite raises it to the present size
    big = [a_run(f"big-{n}", payload="x" * 10_000) for n in range(50)]
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await store.add(big)
    assert await ids_of(store) == ["before"]
    assert (await store.counts()).total(State.PENDING) == 1
    await on_writer(store, cap.format(1_000_000))
    await store.add(big)
    assert len(await ids_of(store)) == 51


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB, where this machine lets us make one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a small file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_on_a_full_disk_running_work_can_still_be_recorded(small_disk: Path) -> None:
    async with opened(small_disk / "jobs.db") as store:
        await store.add([a_run(f"run-{n}", payload="x" * 200) for n in range(100)])
        held = await claim_runs(store, a_claim(limit=50))
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        more = [a_run(f"more-{n}", payload="y" * 5_000) for n in range(20)]
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await store.add(more)
        now = await store.now()
        assert all(await store.commit([transitions.succeeded(run, now, "ok") for run in held]))
        assert (await store.counts()).total(State.SUCCEEDED) == 50
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await store.add(more)
        filler.unlink()
        assert len(await store.add(more)) == 20


# -- who may use the files ----------------------------------------------------------------------


def modes(folder: Path) -> dict[str, int]:
    return {name: stat.S_IMODE((folder / name).stat().st_mode) for name in os.listdir(folder)}


async def test_files_are_made_for_their_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = os.umask(0o022)
    try:
        async with opened(tmp_path / "jobs.db") as store:
            await store.add([a_run("one")])
            assert modes(tmp_path) == dict.fromkeys(
                ("jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-lock", "jobs.db-reserve"), 0o600
            )
    finally:
        os.umask(before)
    assert "chmod" not in caplog.text


async def test_a_file_that_a_link_leads_to_is_made_for_its_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, app = tmp_path / "data", tmp_path / "app"
    data.mkdir()
    app.mkdir()
    (app / "jobs.db").symlink_to(data / "real.db")
    before = os.umask(0o022)
    try:
        async with opened(app / "jobs.db") as store:
            await store.add([a_run("one")])
            made = ("real.db", "real.db-wal", "real.db-shm", "real.db-lock")
            assert dict.fromkeys(made, 0o600).items() <= modes(data).items()
            assert modes(app).keys() == {"jobs.db"}
            assert "chmod" not in caplog.text
            (data / "real.db-wal").chmod(0o644)
            async with opened(app / "jobs.db"):
                pass
            assert "real.db-wal (0644)" in caplog.text
    finally:
        os.umask(before)


async def test_two_names_of_one_database_share_its_files(tmp_path: Path) -> None:
    """The key of the secrets, the lock and the disk reserve lie beside the file itself."""
    (tmp_path / "data").mkdir()
    real, link = tmp_path / "data" / "jobs.db", tmp_path / "current.db"
    link.symlink_to(real)
    async with opened(link) as one, opened(real) as two:
        assert one.info().file == two.info().file == real
        assert one.info().location == f"sqlite:///{link}"  # as the caller named it
        await one.add([a_run("one")])
        await two.add([a_run("two")])
    assert modes(tmp_path).keys() == {"current.db", "data"}


# -- a disk that refuses ------------------------------------------------------------------------


async def test_a_read_only_disk_is_named(small_disk: Path) -> None:
    path = small_disk / "jobs.db"
    async with opened(path):
        pass
    (small_disk / "jobs.db-lock").unlink()
    mount = ["mount", "-o", "remount,ro", str(small_disk)]
    await asyncio.to_thread(subprocess.run, mount, check=True)
    await refused(path, StoreError, "be written to|no permission to write")
    await refused(small_disk / "new.db", StoreError, "be written to|no permission to write")


async def test_a_failing_disk_is_not_taken_for_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite says "malformed" when the disk refuses a read. Nobody should restore a backup, to the
    same disk, for that."""
    path = await damaged_file(tmp_path)

    def refuse(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", refuse)
    await refused(path, StoreUnavailable, "the disk may be failing")


async def on_writer(store: SqliteStore, statement: str) -> None:
    """Run a statement on the writer's own connection."""
    await store._write(lambda tx, items: [tx.connection.execute(items[0]) and None], [statement])


async def test_a_locked_file_is_away_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # a program that knows nothing of our lock file
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.add([a_run("one")])
        assert (await store.find(RunQuery())).items == []
        other.execute("ROLLBACK")
        other.close()
        await store.add([a_run("one")])
        assert await elect(store, "x", "me", timedelta(seconds=1)) == 1


async def test_a_running_program_notices_that_the_schema_became_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await store.add([a_run("one")])
        [held] = await claim_runs(store, a_claim())
        newer = [*schema.MIGRATIONS, "ALTER TABLE mainspring_runs ADD COLUMN more TEXT"]
        with monkeypatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", newer)
            async with opened(path):  # the next version, in a rolling deploy
                pass
        mine = Held(held.id, held.token)
        for use in (
            store.add([a_run("two")]),
            store.renew([mine], timedelta(seconds=30)),
            get_runs(store, ["one"]),
            store.transaction(mine, timedelta(seconds=5)).begin(),
        ):
            with pytest.raises(StoreTooNew, match="newer Mainspring"):
                await use


async def test_a_program_notices_that_our_tables_were_dropped(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path) as store:
        await store.add([a_run("one")])
        sql(path, "DROP TABLE mainspring_meta")
        with pytest.raises(StoreDamaged, match="no longer has Mainspring's tables"):
            await store.add([a_run("two")])
