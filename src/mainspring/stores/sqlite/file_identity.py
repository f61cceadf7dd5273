"""Detects that the database was deleted, moved, replaced or overwritten while it is in use.

SQLite keeps its files open. After `rm jobs.db` or `mv other.db jobs.db` it writes to files that no
other program can see, and reports success. Therefore the store checks before every answer that the
path still leads to the files that it has open.

A file can also be overwritten in place (`cp backup.db jobs.db`), which keeps the inode. To detect
that, the writer keeps a stamp in the database: a random identity, and a number that it raises at
most once a second. When the size or the modification time of the file has changed, it reads the
stamp from the file itself. A checkpoint only raises the number. A backup that was copied over the
file has a lower number or another identity. Each process writes the newest stamp that it has seen
to the lock file, and a program that starts compares the two before SQLite may move the log into
the file.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from mainspring.core.clock import Clock
from mainspring.errors import StoreDamaged, StoreFileChanged
from mainspring.stores.sqlite.file_lock import FileLock
from mainspring.stores.sqlite.files import read_open_file

__all__ = ["FileIdentity"]

_FilesById = tuple[tuple[int, int], ...]

_READ = "SELECT value FROM mainspring_meta WHERE name = 'stamp'"
_WRITE = "INSERT OR REPLACE INTO mainspring_meta VALUES ('stamp', ?)"
_ROOT_PAGE = "SELECT rootpage FROM sqlite_schema WHERE name = 'mainspring_meta'"
_STAMP = re.compile(rb"mainspring-stamp:([0-9a-f]{16}):(\d{16})")

_STEP_SECONDS = 1.0
_RECOGNITION_GRACE = 10.0
"""How long a file that is not recognised is checked again: another program's checkpoint may be
half done."""
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Stamp:
    identity: str
    number: int

    @classmethod
    def found_in(cls, data: bytes) -> _Stamp | None:
        match = _STAMP.search(data)
        return None if match is None else cls(match[1].decode(), int(match[2]))

    def follows(self, other: _Stamp | None) -> bool:
        return other is None or (self.identity == other.identity and self.number >= other.number)

    def __str__(self) -> str:
        return f"mainspring-stamp:{self.identity}:{self.number:016d}"


class FileIdentity:
    """`check` may be called from any thread, the rest from the writer's, under the file's lock."""

    def __init__(self, path: Path, clock: Clock, lock: FileLock) -> None:
        self._path = path
        self._clock = clock
        self._lock = lock
        real = os.path.realpath(path)
        self._paths = (str(path), f"{real}-wal", f"{real}-shm")
        self._files: _FilesById = ()
        self._written: tuple[int, int] | None = None
        self._stamp: _Stamp | None = None
        self._root_page = 0
        self._stepped_at = float("-inf")
        self._unrecognised_since: float | None = None
        self._overwritten = False

    def check_before_open(self) -> None:
        """Raise `StoreDamaged` if the file is older than the log beside it: a program that opens
        or closes the file with that log damages it. A file without a log is a restored backup."""
        looks = 1 + int(_RECOGNITION_GRACE / _LOOK_SECONDS)
        while self._was_restored():
            looks -= 1
            if not looks:
                raise self._overwritten_error(
                    ". If nobody copied a backup over it, or the log was copied with the backup,"
                    f" delete {self._path.name}-lock instead"
                )
            threading.Event().wait(_LOOK_SECONDS)

    def _was_restored(self) -> bool:
        try:
            if not os.path.getsize(self._paths[1]):
                return False
        except FileNotFoundError:
            return False
        noted = _Stamp.found_in(self._lock.read_note())  # first: the file's can only grow
        found = self._stamp_without_log()
        if noted is None or found is None or noted.identity != found.identity:
            return False
        return found.number < noted.number

    def _stamp_without_log(self) -> _Stamp | None:
        """The stamp in the file. SQLite reads it, so that other stores of this process keep their
        locks."""
        uri = f"{self._path.as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                row = connection.execute(_READ).fetchone()
        except sqlite3.Error:  # its tables are still in the log, or Mainspring did not write it
            return None
        return row and _Stamp.found_in(str(row[0]).encode())

    def remember(self, connection: sqlite3.Connection) -> None:
        """Remember the files that the path leads to now: they are the ones that are open."""
        self._files = tuple(_identity(path) for path in self._paths)
        if self._stamp_in_file(connection) is None:
            connection.execute("BEGIN IMMEDIATE")
            self.step(connection)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint")
        self._written = _written(self._path)
        self._accept(self._stamp_in_file(connection))

    @property
    def is_unrecognised(self) -> bool:
        """Whether the last `check_content` did not recognise the file."""
        return self._unrecognised_since is not None

    @property
    def is_foreign(self) -> bool:
        """Whether the file may hold data that Mainspring did not write."""
        return self._overwritten or self.is_unrecognised

    def check(self) -> None:
        """Raise `StoreFileChanged` unless the path still leads to the files that are open, and
        their content was recognised."""
        self.check_files()
        if self.is_unrecognised:
            raise self._unrecognised_error()

    def check_files(self) -> None:
        if self._overwritten:
            raise self._overwritten_error()
        for path, known in zip(self._paths, self._files, strict=True):
            try:
                found = _identity(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._changed(path, "was deleted or moved while it was in use") from error
            if found != known:
                raise self._changed(path, "was replaced by another file while it was in use")

    def check_content(self, connection: sqlite3.Connection) -> None:
        """Raise `StoreDamaged` if the file was overwritten in place since the last check."""
        self.check_files()
        try:
            written = _written(self._path)
        except FileNotFoundError:  # just now
            self.check_files()
            raise
        if written == self._written:
            self._unrecognised_since = None
            return
        found = self._stamp_in_file(connection)
        if self._stamp is None or (found is not None and found.follows(self._newest_seen())):
            self._written, self._unrecognised_since = written, None
            self._accept(found)
            return
        now = self._clock.monotonic()
        self._unrecognised_since = (
            now if self._unrecognised_since is None else self._unrecognised_since
        )
        if found is None or now - self._unrecognised_since < _RECOGNITION_GRACE:
            # Without a stamp there is no proof: a VACUUM whose checkpoint waits for a reader looks
            # the same. The error below advises to delete the log, so it is raised only for a stamp
            # that this store did not write.
            raise self._unrecognised_error()
        self._overwritten = True
        raise self._overwritten_error()

    def _accept(self, found: _Stamp | None) -> None:
        self._stamp = found
        if found is not None:
            self._lock.write_note(str(found).encode())

    def _newest_seen(self) -> _Stamp | None:
        noted = _Stamp.found_in(self._lock.read_note())
        return noted if noted is not None and noted.follows(self._stamp) else self._stamp

    def step(self, connection: sqlite3.Connection) -> None:
        """Raise the stamp's number, at most once a second. Called in a write transaction."""
        now = self._clock.monotonic()
        if now - self._stepped_at < _STEP_SECONDS:
            return
        row = connection.execute(_READ).fetchone()
        known = row and _Stamp.found_in(str(row[0]).encode())
        stamp = _Stamp(known.identity, known.number + 1) if known else _new_stamp()
        connection.execute(_WRITE, (str(stamp),))
        self._stepped_at = now

    def _stamp_in_file(self, connection: sqlite3.Connection) -> _Stamp | None:
        """The stamp in the file itself, without the write-ahead log."""
        (root_page,) = connection.execute(_ROOT_PAGE).fetchone() or (0,)
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        # A VACUUM moves the page, and the old place stays right until the next checkpoint.
        pages = [page for page in {root_page, self._root_page} if page]
        self._root_page = root_page
        found = [
            _Stamp.found_in(read_open_file(self._files[0], size, (page - 1) * size) or b"")
            for page in pages
        ]
        return max((stamp for stamp in found if stamp), key=lambda s: s.number, default=None)

    def _changed(self, path: str, what: str) -> StoreFileChanged:
        told = f"{path} {what}. Nothing is written any more."
        if path == self._paths[0]:
            return StoreFileChanged(
                f"{told} Stop every program that uses {self._path}, put the right file in its"
                " place, and start them again"
            )
        # SQLite's locks are the process's: closing any descriptor of the file drops them, and the
        # next program that closes the database takes itself for the last and deletes the log.
        name = shlex.quote(self._path.name)
        return StoreFileChanged(
            f"{told} Restart this program. If nobody deleted it by hand, this program opened"
            f" {self._path} itself, to copy it perhaps, which ends SQLite's locks: never open the"
            " database file in a process that uses it, and back it up by"
            f" `sqlite3 {name} '.backup copy.db'` or VACUUM INTO"
        )

    def _unrecognised_error(self) -> StoreFileChanged:
        return StoreFileChanged(
            f"{self._path} was rewritten by another program, and this program does not recognise"
            " it. It looks again until it does. If somebody copied another file over it, stop every"
            " program that uses it and put the right file in its place"
        )

    def _overwritten_error(self, more: str = "") -> StoreDamaged:
        wal, shm = (os.path.basename(path) for path in self._paths[1:])
        return StoreDamaged(
            f"{self._path} was overwritten while it was in use (a backup copied over it?). Nothing"
            " is written any more. Stop every program that uses it, delete"
            f" {wal} and {shm}, copy the backup again, and start them{more}"
        )


def _identity(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino


def _written(path: Path) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def _new_stamp() -> _Stamp:
    return _Stamp(secrets.token_hex(8), 1)
