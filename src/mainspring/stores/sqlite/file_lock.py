"""Orders the writes of several processes fairly, by a lock on a file beside the database.

SQLite's own busy handler sleeps and tries again, so a process that writes without pause starves the
others: of four processes one did 51,050 runs while another did 1,700. The kernel's queue for a file
lock is fair enough. SQLite's own locks still guarantee correctness; this lock only decides which
process writes next. Without `fcntl` (Windows) there is only SQLite's busy handler.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.sqlite.files import open_private

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class FileLock:
    """For one thread: `with lock: …` waits at most `timeout` seconds."""

    def __init__(self, path: Path, timeout: float, database: Path | None = None) -> None:
        self._path = path
        self._database = database or path
        self._timeout = timeout
        self._fd: int | None = None
        self._queued: _QueuedLock | None = None

    def open(self) -> None:
        if fcntl is not None:
            self._fd = open_private(self._path, self._database)

    def close(self) -> None:
        if self._queued is not None:
            self._queued.abandon()  # its thread closes the file when it gets the lock
        elif self._fd is not None:
            os.close(self._fd)
        self._fd = self._queued = None

    def __enter__(self) -> None:
        if self._fd is None:
            return
        if self._queued is not None and self._queued.released:
            self._queued = None
        if self._queued is None:
            if self._try_lock(self._fd):
                return
            self._queued = _QueuedLock(self._fd)
        got_lock = self._queued.wait(self._timeout)
        if self._queued.error is not None:
            error, self._queued = self._queued.error, None
            raise self._refused(error) from error
        if not got_lock:
            if self._queued.released:  # the thread got the lock and released it just now
                self.__enter__()
                return
            # The thread keeps its place in the kernel's queue for the next try.
            raise StoreUnavailable(
                f"{self._path}: another process has held the write lock for"
                f" {self._timeout:g} s; it will be tried again"
            )
        self._queued = None

    def __exit__(self, *_: Any) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _try_lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise self._refused(error) from error
        return True

    def _refused(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self._path} cannot be locked: {error.strerror}. Its file system must support file"
            " locks; a network file system may not"
        )


class _QueuedLock:
    """Waits for the lock in a thread, because the kernel's wait has no timeout: a process that was
    stopped while it held the lock must not block this one for ever."""

    def __init__(self, fd: int) -> None:
        self.released = False
        self.error: OSError | None = None
        """Why the system refused the lock. The thread has ended then."""
        self._fd = fd
        self._guard = threading.Lock()
        self._taken = threading.Event()
        self._awaited = True
        self._abandoned = False
        threading.Thread(target=self._main, name="mainspring-sqlite-lock", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        with self._guard:
            if self.released:
                return False
            self._awaited = True
        self._taken.wait(timeout)
        with self._guard:
            self._awaited = False
            return self._taken.is_set()

    def abandon(self) -> None:
        """Close the file, here or at the end of the thread: the lock is no longer wanted."""
        with self._guard:
            self._abandoned = True
            if self.released:
                os.close(self._fd)

    def _main(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            self.error = error
        with self._guard:
            if self.error is not None:
                self.released = True
                if self._abandoned:
                    os.close(self._fd)
                self._taken.set()
            elif self._abandoned:
                os.close(self._fd)  # this releases the lock
            elif self._awaited:
                self._taken.set()
            else:  # the caller has given up waiting
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self.released = True
