"""Detects that the database was deleted, moved or replaced while it is in use.

SQLite keeps its files open. After `rm jobs.db` or `mv other.db jobs.db` it writes to files that no
other program can see, and reports success. Therefore the store checks before every answer that the
path still leads to the files that it has open.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from mainspring.errors import StoreFileChanged


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


def _identity(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino
