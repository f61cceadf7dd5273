"""The files of a database: who may use them, whether they are still there, whose turn it is to
write, and the disk space that is kept for running work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mainspring.errors import StoreError, StoreFileChanged, StoreUnavailable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")
_PRIVATE = 0o600


def all_files(database: Path) -> Iterator[Path]:
    """The files that hold data, and the lock file, which can stop the store. If the database is a
    link, SQLite keeps the log beside the file that the link leads to."""
    real = os.path.realpath(database)
    yield database
    yield Path(f"{real}-wal")
    yield Path(f"{real}-shm")
    yield Path(f"{database}-lock")


def make_private(path: Path) -> None:
    """Create an empty file that only its owner may use, unless it exists.

    SQLite gives its log and the index of the log the same permissions. The file is not opened,
    because closing it would drop the locks that SQLite may hold on it (they belong to the process).
    If the path is a link, the file is created where the link leads to.
    """
    path = Path(os.path.realpath(path))
    with contextlib.suppress(FileExistsError):
        try:
            os.mknod(path, stat.S_IFREG | _PRIVATE)
        except FileExistsError:
            raise
        except (OSError, AttributeError):  # some systems allow it to root alone, or not at all
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE))


def open_private(path: Path, like: Path) -> int:
    """Open a file, and create it if it does not exist, with the permissions and the owner of
    `like`: a user who may use the database may use its lock."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _PRIVATE)
    except FileExistsError:
        return os.open(path, flags)
    with contextlib.suppress(OSError):
        model = os.stat(like)
        os.fchmod(descriptor, stat.S_IMODE(model.st_mode) & 0o660)
        if os.geteuid() == 0:
            os.fchown(descriptor, model.st_uid, model.st_gid)
    return descriptor


def wide_open(path: Path) -> str | None:
    """The permissions of a file (`0644`) if users beside its owner and its group may use it."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return None
    return f"{mode:04o}" if os.name == "posix" and mode & 0o007 else None


def read_open_file(identity: tuple[int, int], size: int, offset: int) -> bytes | None:
    """Read a file of that device and inode through a descriptor that SQLite has open; None if there
    is none. A new descriptor would have to be closed, and closing any descriptor of a file drops
    this process's locks on it."""
    for folder in _DESCRIPTORS:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for number in map(int, filter(str.isdigit, names)):
            try:
                if _identity(number) == identity:
                    data = os.pread(number, size, offset)
                    if _identity(number) == identity:
                        return data
            except OSError as error:
                if error.errno != errno.EBADF:  # closed by its owner in between
                    raise
    return None


def _identity(file: str | int) -> tuple[int, int]:
    """The device and the inode of a path or of an open descriptor."""
    status = os.stat(file)
    return status.st_dev, status.st_ino


# -- deleted, moved or replaced ------------------------------------------------------------
#
# SQLite keeps its files open. After `rm jobs.db` or `mv other.db jobs.db` it writes to files that
# no other program can see, and reports success. Therefore the store checks before every answer that
# the path still leads to the files that it has open.


class FileIdentity:
    """`check` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        real = os.path.realpath(path)
        self._paths = (str(path), f"{real}-wal", f"{real}-shm")
        self._files: tuple[tuple[int, int], ...] = ()

    def remember(self) -> None:
        """Remember the files that the path leads to now: they are the ones that are open."""
        self._files = tuple(_identity(path) for path in self._paths)

    def check(self) -> None:
        """Raise `StoreFileChanged` unless the path still leads to the files that are open."""
        for path, known in zip(self._paths, self._files, strict=True):
            try:
                current = _identity(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._changed(path, "was deleted or moved while it was in use") from error
            if current != known:
                raise self._changed(path, "was replaced by another file while it was in use")

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


# -- a fair order of writing between processes ---------------------------------------------
#
# SQLite's own busy handler sleeps and tries again, so a process that writes without pause starves
# the others: of four processes one did 51,050 runs while another did 1,700. The kernel's queue for
# a file lock is fair enough. SQLite's own locks still guarantee correctness; this lock only decides
# which process writes next. Without `fcntl` (Windows) there is only SQLite's busy handler.


class FileLock:
    """For one thread: `with lock: …` waits at most `timeout` seconds."""

    def __init__(self, path: Path, timeout: float, database: Path | None = None) -> None:
        self.path = path
        self._database = database or path
        self._timeout = timeout
        self._fd: int | None = None
        self._queued: _QueuedLock | None = None

    def open(self) -> None:
        if fcntl is not None:
            self._fd = open_private(self.path, self._database)

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
                f"{self.path}: another process has held the write lock for"
                f" {self._timeout:g} s; it will be tried again"
            )
        self._queued = None

    def __exit__(self, *_: Any) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def hint(self) -> None:
        """Tell the processes that watch the file that this one has committed something."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # a full disk: they poll as well
                os.pwrite(self._fd, b"\0", 0)

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
            f"{self.path} cannot be locked: {error.strerror}. Its file system must support file"
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


# -- disk space for running work -----------------------------------------------------------
#
# On a full disk SQLite can record nothing, not even that running work has ended. A small file
# beside the database keeps space for that, and is deleted when the disk is full: while it is gone,
# the store accepts nothing new (runs, slots, jobs), but runs can be completed. The store creates
# the file again when the disk has space. All processes on the database share it, and its absence
# tells them that space is short.

_RESERVE = 1 << 20
_SPACE_NEEDED = 4 * _RESERVE
"""How much space must be free before the file is created again, so that it does not alternate."""


class DiskReserve:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished_path = path.with_name(f"{path.name}.{os.getpid()}.{id(self):x}")
        self._given_up = False

    def is_held(self) -> bool:
        """Whether the file exists; create it again if possible. False means that space is short."""
        return self._given_up or self._path.exists() or self._create()

    def release(self) -> bool:
        """Delete the file; False if it did not exist."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _create(self) -> bool:
        try:
            if shutil.disk_usage(self._path.parent).free < _SPACE_NEEDED:
                return False
            with open(self._unfinished_path, "wb", opener=_private) as file:
                file.write(b"\0" * _RESERVE)  # a sparse file would reserve nothing
            self._unfinished_path.rename(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._unfinished_path.unlink()
            # If it cannot be created for another reason, the store works without it.
            self._given_up = error.errno not in (errno.ENOSPC, errno.EDQUOT)
            return self._given_up
        return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
