"""Reads /proc (Linux): how much memory a process tree uses, whether a process group is alive, and
what a handler uses in its own process."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from mainspring.core.clock import process_cpu

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def any_alive(group: int) -> bool:
    """Whether a group has processes other than zombies, which an init process may keep for long."""
    if not os.path.isdir("/proc/self/task"):
        return True
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in b"ZX":
                return True
    return False


def memory_of_tree(pid: int, limit: int | None = None) -> int | None:
    """Return the bytes that a process and its descendants use, or None if there is no /proc.

    Resident memory is quick to read, but counts memory that forks share once for each of them. So
    a tree that seems to exceed `limit` is measured again by its proportional share.
    """
    if not os.path.isdir("/proc/self/task"):
        return None
    family = _family(pid)
    used = sum(resident_memory(member) or 0 for member in family)
    if limit is not None and used > limit and len(family) > 1:
        used = sum(_proportional(member) for member in family)
    return used


def _family(pid: int) -> list[int]:
    """The process and its descendants: orphans too, since the child adopts them."""
    family = [pid]
    for member in family:  # grows while it is walked
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with open(f"/proc/{member}/task/{thread}/children") as file:
                    family += map(int, file.read().split())
    return family


def resident_memory(pid: int | None = None) -> int | None:
    """Return the bytes of memory that a process holds, by default this one, or None where the
    system does not say."""
    with contextlib.suppress(OSError), open(f"/proc/{pid or 'self'}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return None


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return resident_memory(pid) or 0


class ProcessUsage:
    """What this process, and the processes that it has waited for, use from now on."""

    def __init__(self) -> None:
        self._cpu = _cpu_seconds()
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # Linux: count the peak of memory from now on

    def measured(self) -> dict[str, Any]:
        return {
            "cpu_seconds": max(_cpu_seconds() - self._cpu, 0.0),
            "peak_memory": _peak_memory(),
        }


def _cpu_seconds() -> float:
    children = os.times()  # in steps of 10 ms, so not for this process
    return process_cpu() + children.children_user + children.children_system


def _peak_memory() -> int | None:
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
