"""A small file beside the database, given up when the disk is full.

On a full disk SQLite can record nothing, not even that running work has ended. The ballast's
room is for that: while it is gone, nothing new is taken on (runs, slots, jobs), and what runs
can be settled. It is put back as soon as the disk has room again. All processes on the file
share it, and see by its absence that space is short.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

__all__ = ["DiskReserve"]

_SIZE = 1 << 20
_ROOM = 4 * _SIZE
"""So much must be free before the ballast is put back: else it would go and come."""


class DiskReserve:
    def __init__(self, path: Path, former: Path | None = None) -> None:
        self._path = path
        self._former = former  # its name before 0.2
        self._made = path.with_name(f"{path.name}.{os.getpid()}.{id(self):x}")
        self._given_up = False

    def is_held(self) -> bool:
        """Whether it is there; put back if it can be. False means that space is short."""
        return self._given_up or self._path.exists() or self._load()

    def drop(self) -> bool:
        """Let it go; False if it was gone already."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _load(self) -> bool:
        if self._former is not None:
            with contextlib.suppress(OSError):
                self._former.rename(self._path)
                return True
        try:
            if shutil.disk_usage(self._path.parent).free < _ROOM:
                return False
            with open(self._made, "wb", opener=_private) as file:
                file.write(b"\0" * _SIZE)  # a hole in a file would hold no room
            self._made.rename(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._made.unlink()
            # Where it cannot be made for another reason, the store does without.
            self._given_up = error.errno not in (errno.ENOSPC, errno.EDQUOT)
            return self._given_up
        return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
