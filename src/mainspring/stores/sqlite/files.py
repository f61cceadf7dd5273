"""The files of a database: made for their owner alone, and read without disturbing SQLite."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["all_files", "make_private", "open_private", "read_open_file", "wide_open"]

_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")
_PRIVATE = 0o600


def all_files(database: Path) -> Iterator[Path]:
    """Those that hold what is stored, or that can stop the store. SQLite keeps the log beside the
    file that a link leads to."""
    real = os.path.realpath(database)
    yield database
    yield Path(f"{real}-wal")
    yield Path(f"{real}-shm")
    yield Path(f"{database}-lock")


def make_private(path: Path) -> None:
    """Make an empty file for its owner alone, unless it is there.

    SQLite gives its log and the index of the log the same permissions. The file is not opened:
    closing it could drop locks that SQLite has on it since (they belong to the process). Of a link
    it is made where the link leads to.
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
    """A descriptor of a file that is made, where it is not there, with the permissions and the
    owner of another: whoever may use the database may use its lock."""
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
    """The permissions of a file (`0644`) that users beside its owner and its group may use."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return None
    return f"{mode:04o}" if os.name == "posix" and mode & 0o007 else None


def read_open_file(identity: tuple[int, int], size: int, offset: int) -> bytes | None:
    """Read a file of that device and inode through a descriptor that SQLite has open; None where
    there is none. One of our own would have to be closed again, and closing any descriptor of a
    file drops this process's locks on it."""
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
