"""Identifies processes by pid and start time, so that a reused pid is never signalled."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

_children: dict[Process, subprocess.Popen[bytes]] = {}


class Process(msgspec.Struct, frozen=True):
    pid: int
    start: int
    """In clock ticks since the machine started: a pid that is used again has another."""

    def alive(self) -> bool:
        state, start = status(self.pid)
        return start == self.start and state not in ("Z", "X")

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process and no other. False if it has ended."""
        with self._handle() as handle:
            if handle is None:
                return False
            signal.pidfd_send_signal(handle, number)
            return True

    def wait(self, timeout: float) -> bool:
        """Wait for the process's end. False if it lives on."""
        with self._handle() as handle:
            if handle is not None:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                if not poll.poll(timeout * 1000):
                    return False
        if child := _children.pop(self, None):
            child.wait()  # at once: it has ended
        return True

    @contextmanager
    def _handle(self) -> Iterator[int | None]:
        """A descriptor that means this process, even if its pid is used again meanwhile."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield handle if self.alive() else None
        finally:
            os.close(handle)


def this_process() -> Process:
    return Process(os.getpid(), status(os.getpid())[1])


def status(pid: int) -> tuple[str, int]:
    """A process's state letter and start time; ("X", -1) if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X", -1
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[19])


def where() -> str:
    """This boot of this machine and its pid namespace: where a recorded pid has a meaning."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def spawn(command: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
    """Start a process that no Ctrl-C of ours reaches, its output added to a file."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = Process(child.pid, status(child.pid)[1])
    _children[process] = child
    return process


def end(processes: Sequence[Process], timeout: float = 10) -> None:
    """Kill processes, frozen ones too, and wait until they are gone."""
    for process in processes:
        process.signal(signal.SIGKILL)
    for process in processes:
        if not process.wait(timeout):
            raise TimeoutError(f"process {process.pid} outlived SIGKILL for {timeout} s")
