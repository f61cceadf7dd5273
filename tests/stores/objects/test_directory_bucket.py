"""A directory as a bucket: many processes, kills, locks, damage."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from threading import Event

import pytest

from mainspring.errors import StoreDamaged, StoreError, StoreUnavailable
from mainspring.stores.objects import directory_bucket
from mainspring.stores.objects.bucket import Blob
from mainspring.stores.objects.directory_bucket import DirectoryBucket

ADDER = """
import asyncio, sys
from mainspring.stores.objects.directory_bucket import DirectoryBucket

async def main(path, count):
    bucket = DirectoryBucket(path)
    await bucket.open()
    done = 0
    while done < count:
        found = await bucket.get("sum")
        more = str(int(found.data[:20]) + 1).rjust(20).encode() + b"x" * 100_000
        if await bucket.put("sum", more, expected_etag=found.etag) is not None:
            done += 1
            print(done, flush=True)
    await bucket.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def start_adder(path: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(ADDER), str(path), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def opened(path: Path) -> DirectoryBucket:
    bucket = DirectoryBucket(path)
    await bucket.open()
    return bucket


async def read_sum(bucket: DirectoryBucket) -> int:
    found = await bucket.get("sum")
    assert isinstance(found, Blob)
    return int(found.data[:20])


async def test_a_file_that_is_no_object_is_never_deleted(tmp_path: Path) -> None:
    bucket = await opened(tmp_path)
    foreign = tmp_path / "history" / "000000000001-0123456789ab-1"
    foreign.parent.mkdir()
    foreign.write_text("the only copy")
    await bucket.put("history/own", b"x", expected_etag=None)
    await bucket.delete(["history/000000000001-0123456789ab-1", "history/own"])
    assert foreign.read_text() == "the only copy"
    assert await bucket.get("history/own") is None
    await bucket.close()


async def test_increments_of_many_processes_are_all_there(tmp_path: Path) -> None:
    bucket = await opened(tmp_path / "bucket")
    await bucket.put("sum", b"0".rjust(20), expected_etag=None)
    adders = [start_adder(tmp_path / "bucket", 15) for _ in range(4)]
    for adder in adders:
        assert await asyncio.to_thread(adder.wait) == 0
        assert adder.stdout is not None
        adder.stdout.close()
    assert await read_sum(bucket) == 60
    await bucket.close()


async def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    bucket = await opened(path)
    await bucket.put("sum", b"0".rjust(20), expected_etag=None)
    acknowledged = 0
    for round in range(8):
        adder = start_adder(path, 10_000)
        assert adder.stdout is not None
        for _ in range(1 + round):
            await asyncio.to_thread(adder.stdout.readline)
        adder.send_signal(signal.SIGKILL)
        await asyncio.to_thread(adder.wait)
        told = [line for line in adder.stdout.read().split() if line]
        adder.stdout.close()
        acknowledged += int(told[-1]) if told else 1 + round
        found = await read_sum(bucket)
        assert found in (acknowledged, acknowledged + 1)  # the last answer may have been lost
        acknowledged = found
    await bucket.close()


async def test_what_a_killed_writer_left_is_removed_and_never_read(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    bucket = await opened(path)
    await bucket.put("a", b"1", expected_etag=None)
    await bucket.close()
    for name, age in (("old", 4000), ("young", 10)):  # the young one's writer may be alive
        file = path / ".mainspring" / f"new-{name}"
        file.write_bytes(b"half of an obj")
        os.utime(file, (time.time() - age,) * 2)
    await bucket.open()
    assert [file.name for file in (path / ".mainspring").glob("new-*")] == ["new-young"]
    assert [found.key for found in await bucket.list_objects("")] == ["a"]
    await bucket.close()


async def test_a_writer_that_is_stopped_while_the_disk_works_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it loses when it goes on: its condition no longer holds."""
    slow, other = await opened(tmp_path), await opened(tmp_path)
    etag = await slow.put("a", b"1", expected_etag=None)
    write, stopped, goes_on = directory_bucket._write_durably, Event(), Event()

    def stop(file: Path, *parts: bytes) -> None:
        write(file, *parts)
        if b"slow" in parts:
            stopped.set()
            goes_on.wait(60)

    monkeypatch.setattr(directory_bucket, "_write_durably", stop)
    writing = asyncio.create_task(slow.put("a", b"slow", expected_etag=etag))
    await asyncio.to_thread(stopped.wait, 60)
    assert await other.put("a", b"other", expected_etag=etag) is not None
    goes_on.set()
    assert await writing is None
    found = await slow.get("a")
    assert isinstance(found, Blob)
    assert found.data == b"other"
    assert not list((tmp_path / ".mainspring").glob("new-*"))
    for bucket in (slow, other):
        await bucket.close()


async def test_a_lock_that_is_held_too_long_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_bucket, "_LOCK_TRIES", 5)
    path = tmp_path / "bucket"
    bucket = await opened(path)
    etag = await bucket.put("a", b"1", expected_etag=None)
    lock = path / ".mainspring" / "lock"
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="another process has held this lock"):
            await bucket.put("a", b"2", expected_etag=etag)
        assert await bucket.get("a") == Blob(b"1", str(etag))  # readers take no lock
    assert await bucket.put("a", b"2", expected_etag=etag) is not None
    await bucket.close()


async def test_a_lock_file_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    bucket = await opened(path)
    etag = await bucket.put("a", b"1", expected_etag=None)
    lock = path / ".mainspring" / "lock"
    lock.unlink()
    assert await bucket.put("a", b"2", expected_etag=etag) is not None
    await bucket.close()


@pytest.mark.parametrize("damage", [b"", b"something else\n", None])
async def test_a_damaged_object_is_told_and_not_overwritten(
    tmp_path: Path, damage: bytes | None
) -> None:
    path = tmp_path / "bucket"
    bucket = await opened(path)
    etag = await bucket.put("a", b"content", expected_etag=None)
    whole = (path / "a").read_bytes()
    damaged = whole[:-3] if damage is None else damage
    (path / "a").write_bytes(damaged)
    with pytest.raises(StoreDamaged, match="backup"):
        await bucket.get("a")
    if damage is not None:
        with pytest.raises(StoreDamaged):
            await bucket.put("a", b"other", expected_etag=etag)
        assert (path / "a").read_bytes() == damaged
    await bucket.close()


async def test_a_file_in_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file; file:// keeps a store in a directory"):
        await DirectoryBucket(tmp_path / "file").open()


async def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "bucket"
    bucket = await opened(path)
    await bucket.put("a/b", b"1", expected_etag=None)
    await bucket.close()
    made = [path, *path.rglob("*")]
    assert {file.stat().st_mode & 0o077 for file in made} == {0}


async def test_a_fork_gets_an_error(tmp_path: Path) -> None:
    bucket = await opened(tmp_path / "bucket")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            bucket.get("a").send(None)
        except StoreError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert "was opened before this process was forked" in said.read()
    await bucket.close()
