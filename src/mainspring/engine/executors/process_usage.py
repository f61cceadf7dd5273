"""Measures what a handler uses in a process of its own: CPU time, and memory at the peak."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from mainspring.core.clock import process_cpu


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
