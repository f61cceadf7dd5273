"""Creates the files of a database for their owner only, and reads them without releasing SQLite's
locks."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
