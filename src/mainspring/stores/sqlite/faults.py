"""SQLite's errors in our words: what happened, to which file, and what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from mainspring.errors import MainspringError, StoreDamaged, StoreError, StoreUnavailable

__all__ = ["is_full", "translated"]

_PRIMARY = 0xFF  # the lower byte of an extended result code is the plain one

_AWAY = {
    sqlite3.SQLITE_BUSY: "is locked by another program; it will be tried again",
    sqlite3.SQLITE_LOCKED: "is locked by another program; it will be tried again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full. Free some space; reads go on meanwhile",
    sqlite3.SQLITE_IOERR: "could not be read or written (I/O error). Check the disk",
    sqlite3.SQLITE_CANTOPEN: "could not be opened. Check that the file and its folder are there"
    " and may be written",
    sqlite3.SQLITE_READONLY: "may only be read. Check the permissions of the file and its folder",
    sqlite3.SQLITE_NOMEM: "could not be used: out of memory",
    sqlite3.SQLITE_PROTOCOL: "is locked by another program; it will be tried again",
}


def translated(error: BaseException, path: Path) -> BaseException:
    """The error as a caller should see it; errors that are not SQLite's pass as they are."""
    if isinstance(error, MainspringError) or not isinstance(error, sqlite3.Error):
        return error
    code = _code(error)
    if code in _AWAY:
        return _caused(StoreUnavailable(f"{path} {_AWAY[code]} ({error})"), error)
    if code == sqlite3.SQLITE_NOTADB:
        what = f"{path} is no SQLite database ({error}). Name another file"
        return _caused(StoreDamaged(what), error)
    if code == sqlite3.SQLITE_CORRUPT:
        advice = "Restore it from a backup, or name another file"
        return _caused(StoreDamaged(f"{path} is damaged ({error}). {advice}"), error)
    return _caused(StoreError(f"{path}: {error}"), error)


def is_full(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY


def _caused(made: StoreError, cause: BaseException) -> StoreError:
    made.__cause__ = cause
    return made
