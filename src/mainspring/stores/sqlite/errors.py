"""Translates SQLite's errors: what happened, to which file, and what to do."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from mainspring.errors import MainspringError, StoreDamaged, StoreError, StoreUnavailable
from mainspring.stores.sqlite.files import read_open_file

_PRIMARY = 0xFF  # the lower byte of an extended result code is the plain one

_LOCKED = (
    "is locked by another program, or by an open transaction of this one; it will be tried again"
)
_AWAY = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full. Free some space; reads go on meanwhile",
    sqlite3.SQLITE_IOERR: "could not be read or written (I/O error). Check the disk",
    sqlite3.SQLITE_CANTOPEN: "could not be opened. Check that the file and its folder are there"
    " and may be written",
    sqlite3.SQLITE_READONLY: "is read-only. Check the permissions of the file and its folder",
    sqlite3.SQLITE_NOMEM: "could not be used: out of memory",
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
}

_LOOK_BYTES, _LOOK_STEP = 256 << 20, 1 << 20


def translated(error: BaseException, path: Path) -> BaseException:
    """The error as a caller should see it. Errors of neither SQLite nor the operating system are
    returned unchanged."""
    if isinstance(error, MainspringError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return _caused(_of_system(error, path), error)
    if not isinstance(error, sqlite3.Error):
        return error
    code = _code(error)
    if code in _AWAY:
        return _caused(StoreUnavailable(f"{path} {_AWAY[code]} ({error})"), error)
    if code == sqlite3.SQLITE_NOTADB:
        what = f"{path} is no SQLite database ({error}). Name another file"
        return _caused(StoreDamaged(what), error)
    if code == sqlite3.SQLITE_CORRUPT:
        # SQLite reports a read that the disk refuses (EIO) as a malformed file.
        if (refused := _disk_error(path)) is not None:
            return _caused(_of_system(refused, path), error)
        advice = "Restore it from a backup, or name another file"
        return _caused(StoreDamaged(f"{path} is damaged ({error}). {advice}"), error)
    return _caused(StoreError(f"{path}: {error}"), error)


def _of_system(error: OSError, path: Path) -> StoreError:
    file, why = error.filename or path, os.strerror(error.errno or 0)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(f"{file} {_AWAY[sqlite3.SQLITE_FULL]}")
    if error.errno in (errno.EIO, errno.ENXIO):
        return StoreUnavailable(
            f"{file} could not be read or written ({why}): the disk may be failing. Check it"
            " (`dmesg` tells more) before you restore anything"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreError(
            f"{file} cannot be written to ({why}). SQLite writes to the file and to its folder"
        )
    return StoreUnavailable(f"{file}: {why}")


def _disk_error(path: Path) -> OSError | None:
    """The error that the disk gives when the first 256 MB of the file are read, or None."""
    if not hasattr(os, "pread"):  # Windows
        return None
    try:
        stat = os.stat(path)
        identity = (stat.st_dev, stat.st_ino)
        if read_open_file(identity, 1, 0) is not None:
            _read_all(lambda size, offset: read_open_file(identity, size, offset) or b"")
            return None
        # Nothing in this process has it open, so it may be opened and closed here.
        with path.open("rb") as file:
            _read_all(lambda size, offset: os.pread(file.fileno(), size, offset))
    except OSError as error:
        return error
    return None


def _read_all(read: Callable[[int, int], bytes]) -> None:
    offset = 0
    while offset < _LOOK_BYTES and (data := read(_LOOK_STEP, offset)):
        offset += len(data)


def is_full(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY


def _caused(error: StoreError, cause: BaseException) -> StoreError:
    error.__cause__ = cause
    return error
