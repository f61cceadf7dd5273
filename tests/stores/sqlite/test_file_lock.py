"""The lock on a file that processes take in turn: waits, giving up, what the system refuses."""

from __future__ import annotations

import errno
import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.sqlite.file_lock import FileLock
from tests.support.command_line import until

LONG = 60


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[tuple[FileLock, FileLock]]:
    """Two locks on one file, as two processes have them."""
    made = FileLock(tmp_path / "lock", 0.05), FileLock(tmp_path / "lock", 0.05)
    for lock in made:
        lock.open()
    yield made
    for lock in made:
        lock.close()


def held(path: Path) -> bool:
    """Whether somebody holds the lock on a file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_lock_that_another_process_holds_is_waited_for(
    locks: tuple[FileLock, FileLock],
) -> None:
    ours, theirs = locks
    with theirs, pytest.raises(StoreUnavailable, match="another process has held"), ours:
        pass
    with ours:
        pass


def test_a_turn_that_comes_too_late_is_passed_on(
    locks: tuple[FileLock, FileLock], tmp_path: Path
) -> None:
    first, second = locks
    for _ in range(2):
        with first, pytest.raises(StoreUnavailable), second:
            pass
        first._timeout = LONG
    with first:  # behind the second, which has given up
        assert held(tmp_path / "lock")
    second._timeout = LONG
    with second:
        assert held(tmp_path / "lock")
    until(lambda: not held(tmp_path / "lock"))


def test_a_lock_may_be_closed_while_it_is_queued(
    locks: tuple[FileLock, FileLock], tmp_path: Path
) -> None:
    first, second = locks
    with first, pytest.raises(StoreUnavailable), second:
        pass
    second.close()
    first._timeout = LONG
    with first:
        assert held(tmp_path / "lock")
    until(lambda: not held(tmp_path / "lock"))  # its thread gives its turn back a moment later


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
