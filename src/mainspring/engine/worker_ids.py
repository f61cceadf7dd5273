"""Makes worker ids: host, process id, a part of the host's boot id, and a random part."""

from __future__ import annotations

import os
import random
import re
import socket
from functools import cache
from pathlib import Path

MOST_CHARACTERS = 100
"""Of a node's name. It is a part of the ids of runs, which have at most 400."""

_NO_BOOT = "0000"
_made: set[str] = set()  # the ids that this process has made


def make_worker_id(rng: random.Random) -> str:
    """`node:pid:boot` and eight random digits; `boot` are four digits of the host's boot id."""
    worker_id = f"{node_name()}:{os.getpid()}:{_boot()}{rng.getrandbits(32):08x}"
    _made.add(worker_id)
    return worker_id


def node_name() -> str:
    """The name of this node: `MAINSPRING_NODE`, or the host's name, which is the pod's name on
    Kubernetes. Characters that an id of a run cannot have are replaced."""
    name = os.environ.get("MAINSPRING_NODE") or socket.gethostname()
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:MOST_CHARACTERS]


def host_was_restarted(worker: str | None, by: str) -> bool:
    """Whether the host of a worker was restarted since that worker started. Only a worker on the
    same host can know; otherwise False."""
    if worker is None:
        return False
    host, _, end = worker.partition(":")
    my_host, _, my_end = by.partition(":")
    boot, my_boot = end.rpartition(":")[2], my_end.rpartition(":")[2]
    if host != my_host or len(boot) != 12 or len(my_boot) != 12:
        return False
    boot, my_boot = boot[:4], my_boot[:4]
    return boot != my_boot and _NO_BOOT not in (boot, my_boot)


def process_is_gone(worker: str, by: str) -> bool:
    """Whether the process of a worker has certainly ended. Only a worker on the same host can know;
    otherwise False. In a container a new process often has the id of the one before it."""
    if host_was_restarted(worker, by):
        return True
    (host, pid, *_), (my_host, my_pid, *_) = worker.split(":"), by.split(":")
    if host != my_host or not Path("/proc/self").exists():
        return False
    return worker not in _made if pid == my_pid else not Path("/proc", pid).exists()


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:4]
    except OSError:  # not Linux: nothing is known of restarts
        return _NO_BOOT
