"""Makes worker ids: host, process id, where that id is valid, and a random part."""

from __future__ import annotations

import hashlib
import os
import random
import re
import socket
from functools import cache
from pathlib import Path
from typing import NamedTuple

MOST_CHARACTERS = 100
"""Of a node's name. It is a part of the ids of runs, which have at most 400."""

_UNKNOWN = "0000"
_made: set[str] = set()  # the ids that this process has made


def make_worker_id(rng: random.Random) -> str:
    """`node:pid:` and 20 digits: four each of the machine, of its boot and of the namespace of its
    process ids, then eight random ones."""
    where = _digits("/etc/machine-id") + _digits(_BOOT_ID) + _pid_namespace()
    worker_id = f"{node_name()}:{os.getpid()}:{where}{rng.getrandbits(32):08x}"
    _made.add(worker_id)
    return worker_id


def node_name() -> str:
    """The name of this node: `MAINSPRING_NODE`, or the host's name, which is the pod's name on
    Kubernetes. Characters that an id of a run cannot have are replaced."""
    name = os.environ.get("MAINSPRING_NODE") or socket.gethostname()
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:MOST_CHARACTERS]


class _Origin(NamedTuple):
    """Where a worker was started."""

    node: str
    pid: str
    machine: str
    boot: str
    pid_namespace: str


def _origin(worker: str) -> _Origin | None:
    node, _, rest = worker.partition(":")
    pid, _, end = rest.partition(":")
    if len(end) != 20:
        return None
    return _Origin(node, pid, end[:4], end[4:8], end[8:12])


def host_was_restarted(worker: str | None, by: str) -> bool:
    """Whether the host of a worker was restarted since that worker started. Only a worker on the
    same host can know; otherwise False. Two machines may have the same name."""
    theirs, mine = _origin(worker or ""), _origin(by)
    if theirs is None or mine is None or _UNKNOWN in (mine.machine, theirs.boot, mine.boot):
        return False
    same_host = (theirs.node, theirs.machine) == (mine.node, mine.machine)
    return same_host and theirs.boot != mine.boot


def process_is_gone(worker: str, by: str) -> bool:
    """Whether the process of a worker has certainly ended. Only a worker that sees its process id
    can know; otherwise False. After a restart of the program in one container, a new process often
    has the id of the one before it."""
    if host_was_restarted(worker, by):
        return True
    theirs, mine = _origin(worker), _origin(by)
    if theirs is None or mine is None or mine.pid_namespace == _UNKNOWN:
        return False
    if theirs.pid_namespace != mine.pid_namespace:  # containers may have the same host name
        return False
    return worker not in _made if theirs.pid == mine.pid else not Path("/proc", theirs.pid).exists()


_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@cache
def _digits(path: str) -> str:
    """Four digits of the file, or `_UNKNOWN`: not Linux, or a container that lacks it."""
    try:
        return _digest(Path(path).read_text().strip())
    except OSError:
        return _UNKNOWN


@cache
def _pid_namespace() -> str:
    """The first namespace has the same number on every machine, so the boot id is a part of it."""
    try:
        boot_id, namespace = Path(_BOOT_ID).read_text(), Path("/proc/self/ns/pid").readlink()
    except OSError:
        return _UNKNOWN
    return _digest(f"{boot_id}{namespace}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:4] if text else _UNKNOWN
