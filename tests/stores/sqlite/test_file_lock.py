from __future__ import annotations

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.sqlite.file_lock import FileLock


@pytest.fixture
def locks(tmp_path: Path) -> tuple[FileLock, FileLock]:
    """Two locks on one file, as two processes have them."""
    made = FileLock(tmp_path / "lock", 0.05), FileLock(tmp_path / "lock", 0.05)
    for lock in made:
        lock.open()
    return made


def test_a_lock_that_another_process_holds_is_waited_for(
    locks: tuple[FileLock, FileLock],
) -> None:
    ours, theirs = locks
    with theirs, pytest.raises(StoreUnavailable, match="another process has held"), ours:
        pass
    with ours:
        pass


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_a_lock_that_the_system_refuses_is_told_as_such(
    locks: tuple[FileLock, FileLock], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """A network file system may have no locks: no other process is the reason."""
    flock = fcntl.flock
    main = threading.main_thread()

    def refuse(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            flock(fd, operation)
        elif waits and threading.current_thread() is main:
            raise OSError(errno.EWOULDBLOCK, "taken")
        else:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="cannot be locked: No locks available"), locks[0]:
        pass
    monkeypatch.undo()
    with locks[0]:
        pass
