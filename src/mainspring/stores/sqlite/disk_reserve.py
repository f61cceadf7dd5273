"""Reserves disk space in a small file beside the database, and deletes it when the disk is full.

On a full disk SQLite can record nothing, not even that running work has ended. The space of the
reserve is for that: while it is gone, the store accepts nothing new (runs, slots, jobs), but runs
can be completed. The store creates the file again when the disk has space. All processes on the
database share it, and its absence tells them that space is short.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

_SIZE = 1 << 20
_SPACE_NEEDED = 4 * _SIZE
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
                file.write(b"\0" * _SIZE)  # a sparse file would reserve nothing
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
