"""Wakes the writer thread when another process has committed something.

After a commit a process writes one byte to the lock file (`FileLock.hint`), and the others watch
that file by inotify. Only Linux has that, and only for processes on one kernel; a hint may also be
lost. So the writer polls as well: a hint only spares the wait for the next poll.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from pathlib import Path

_IN_MODIFY = 2


class HintWatch:
    """`interrupt` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._interrupts = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hints = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._hints < 0:  # too many
            os.close(self._interrupts)
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self._hints, os.fsencode(path), _IN_MODIFY) < 0:
            self.close()
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        self._poll = select.poll()
        for file in (self._hints, self._interrupts):
            self._poll.register(file, select.POLLIN)

    @classmethod
    def open(cls, path: Path) -> HintWatch | None:
        """None where the system has no such watch, or no more of them."""
        try:
            return cls(path) if sys.platform == "linux" else None
        except (OSError, AttributeError):
            return None

    def wait(self, timeout: float) -> None:
        """Return after a hint, an interrupt, or so many seconds."""
        for file, _ in self._poll.poll(timeout * 1000):
            os.read(file, 4096)

    def interrupt(self) -> None:
        os.eventfd_write(self._interrupts, 1)

    def close(self) -> None:
        os.close(self._hints)
        os.close(self._interrupts)
