"""`file:///dir`: a directory as a bucket, with a compare-and-swap made of file locks and renames.

    DIR/SHARD/head              an object: one line with its entity tag and size, then its content
    DIR/.mainspring/lock        held while an object is replaced or deleted
    DIR/.mainspring/new-ETAG    the next version of an object, until it is renamed into its place

A writer writes the new version completely and flushes it to the disk. Then it takes the lock,
compares the entity tag, and renames the new version into its place. A rename is atomic, so a
reader sees the old version or the new one and never a part. The lock is not held while the disk
works: a process that is stopped (SIGSTOP, a debugger) while it holds the lock blocks all writers,
and so that is rare. The kernel releases the lock of a writer that dies. What it had written stays
in `new-ETAG`, which nobody reads; `open` deletes it later.

The directory belongs to one machine, whose clock is the storage's clock. Any number of its
processes may use it at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple
from urllib.parse import quote

from mainspring.core.clock import Clock, SystemClock, from_us
from mainspring.errors import (
    InvalidInput,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from mainspring.stores.objects.bucket import UNCHANGED, Blob, ClockReading, Listed, Unchanged

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_OWN_FOLDER: Final = ".mainspring"
_HEADER: Final = re.compile(rb"mainspring object ([0-9a-f]{32}) ([0-9]{15})\n")
_HEADER_SIZE: Final = 67
_THREADS: Final = 8
_LOCK_TRIES: Final = 4_000
_LOCK_PAUSE: Final = 0.005
"""A writer tries to get a lock so often, after pauses of up to so many seconds: 10 s on average.
It does not wait in the kernel, because a process that was stopped while it held the lock would
block the threads of this one for ever."""
_LEFTOVER_AGE: Final = 3600
"""Seconds after which a new version that was never renamed is what a dead writer left."""
_TEMPORARY_ERRNOS: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EMFILE}
)
_DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DirectoryBucket:
    kind = "file"
    write_interval = 0.0

    def __init__(self, path: str | os.PathLike[str], clock: Clock | None = None) -> None:
        if fcntl is None:
            raise InvalidInput("file:// needs file locks of POSIX, which this system does not have")
        self._path = Path(path).absolute()
        self._own_folder = self._path / _OWN_FOLDER
        self._lock = self._own_folder / "lock"
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0
        self.location = f"file://{quote(str(self._path))}"
        self.requests: Counter[str] = Counter()
        self.clock: Clock = clock or SystemClock()

    async def open(self, *, create: bool = True) -> None:
        """Check the directory. It is made by the first write, so opening makes nothing."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "mainspring-objects")
            self._process = os.getpid()
            try:
                await self._run(self._check)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None and self._process == os.getpid():
            await asyncio.to_thread(threads.shutdown)

    async def get(self, key: str, unless_etag: str | None = None) -> Blob | Unchanged | None:
        self.requests["get"] += 1
        return await self._run(self._get, key, unless_etag)

    async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        self.requests["put"] += 1
        return await self._run(self._put, key, data, expected_etag)

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self.requests["delete"] += 1
            await self._run(self._delete, list(keys))

    async def list_objects(self, folder: str, limit: int | None = None) -> list[Listed]:
        self.requests["list"] += 1
        return await self._run(self._list, folder, limit)

    async def read_clock(self) -> ClockReading | None:
        return None

    async def _run(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        if self._threads is None:
            raise StoreError(f"{self.location} is not open")
        if self._process != os.getpid():
            raise StoreError(
                f"{self.location} was opened before this process was forked; open a store of its"
                " own in the child (or start it by spawn)"
            )
        future = self._threads.submit(function, *arguments)
        try:
            # A caller that is cancelled leaves the call behind: it is done completely.
            return await asyncio.shield(asyncio.wrap_future(future))
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> StoreError:
        file, why = error.filename or self._path, os.strerror(error.errno or 0)
        if error.errno in _DISK_FULL_ERRNOS:
            return StoreUnavailable(f"{file} cannot be written: the disk is full. Free some space")
        if error.errno in _TEMPORARY_ERRNOS:
            return StoreUnavailable(f"{file} cannot be used at the moment ({why})")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreError(
                f"{file} may not be used by this user ({why}). Mainspring needs to read and write"
                f" everything in {self._path}"
            )
        return StoreError(f"{file} cannot be used ({why})")

    # What follows blocks, and runs in a thread.

    def _check(self) -> None:
        try:
            kind = self._path.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(kind):
            raise StoreError(
                f"{self._path} is a file; file:// keeps a store in a directory. Name another one,"
                " or write sqlite:///… for a database file"
            )
        if self._own_folder.is_dir():
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Delete what writers left that were killed before they could rename it."""
        now = SystemClock().now().timestamp()
        for file in self._own_folder.glob("new-*"):
            with suppress(FileNotFoundError):
                if now - file.stat().st_mtime > _LEFTOVER_AGE:
                    file.unlink()

    def _get(self, key: str, unless_etag: str | None) -> Blob | Unchanged | None:
        file = self._path / key
        try:
            with file.open("rb") as content:
                etag, size = _parse_header(content.read(_HEADER_SIZE), file)
                if etag == unless_etag:
                    return UNCHANGED
                data = content.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(data) != size:
            raise StoreDamaged(f"{file} has {len(data)} bytes of {size}. Restore it from a backup")
        return Blob(data, etag)

    def _put(self, key: str, data: bytes, expected_etag: str | None) -> str | None:
        file = self._path / key
        if _etag_of(file) != expected_etag:
            return None
        self._make_directories(file.parent)
        etag = secrets.token_hex(16)
        new = self._own_folder / f"new-{etag}"
        try:
            _write_durably(new, b"mainspring object %b %015d\n" % (etag.encode(), len(data)), data)
            with self._locked():
                if _etag_of(file) != expected_etag:
                    return None
                new.rename(file)
        finally:
            new.unlink(missing_ok=True)
        _flush_directory(file.parent)
        return etag

    def _delete(self, keys: Sequence[str]) -> None:
        changed = set()
        for key in keys:
            file = self._path / key
            if file.exists():
                # A file that is no object belongs to somebody else, whatever its name.
                with suppress(StoreDamaged), self._locked():
                    if _etag_of(file) is not None:
                        file.unlink(missing_ok=True)
                changed.add(file.parent)
        for directory in changed:
            _flush_directory(directory)

    def _list(self, folder: str, limit: int | None) -> list[Listed]:
        listed: list[Listed] = []
        for directory, folders, names in os.walk(self._path / folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if name.startswith("."):
                    continue
                path = Path(directory, name)
                key = path.relative_to(self._path).as_posix()
                with suppress(FileNotFoundError):  # deleted just now
                    listed.append(Listed(key, from_us(path.stat().st_mtime_ns // 1_000)))
            if limit is not None and len(listed) >= limit:
                break
        return listed[:limit]

    def _make_directories(self, directory: Path) -> None:
        for path in (directory, self._own_folder):
            missing = []
            while not path.is_dir():
                missing.append(path)
                path = path.parent
            for path in reversed(missing):
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
                _flush_directory(path.parent)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        for _ in range(_LOCK_TRIES):
            if (descriptor := self._try_lock()) is not None:
                try:
                    yield
                finally:
                    os.close(descriptor)  # this releases the lock
                return
            time.sleep(random.uniform(0, _LOCK_PAUSE))
        raise StoreUnavailable(
            f"{self._lock}: another process has held this lock for"
            f" {_LOCK_TRIES * _LOCK_PAUSE / 2:g} s; it will be tried again"
        )

    def _try_lock(self) -> int | None:
        """The descriptor that holds the lock, or None if another has it."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return None
        if _is_at(descriptor, self._lock):
            return descriptor
        os.close(descriptor)  # somebody deleted the file: other writers lock a new one
        return None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _etag_of(file: Path) -> str | None:
    try:
        with file.open("rb") as content:
            return _parse_header(content.read(_HEADER_SIZE), file)[0]
    except FileNotFoundError:
        return None


def _parse_header(header: bytes, file: Path) -> tuple[str, int]:
    match = _HEADER.fullmatch(header)
    if match is None:
        raise StoreDamaged(
            f"{file} is no object of Mainspring, or a damaged one. Restore it from a backup, or"
            " name another directory"
        )
    return match[1].decode(), int(match[2])


def _write_durably(file: Path, *parts: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags, 0o600), "wb") as output:
        for part in parts:
            output.write(part)
        output.flush()
        os.fsync(output.fileno())


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
