"""Records which workers are alive, and when none was; makes and reads the ids of workers.

Each worker keeps a note in the store that names its handlers and expires unless it is refreshed.
Another note, which all workers update, has the last moment at which a worker was alive, and the
newest downtimes: a worker that finds that moment long past records a downtime from then until now.

A worker's id has its node's name, its process id, where that id is valid, and a random part.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import re
import socket
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, convert, structs, to_builtins

from mainspring.core import note_kinds
from mainspring.core.model import Job, Note, Owner, replace
from mainspring.core.version import __version__
from mainspring.engine.context import EngineContext
from mainspring.engine.memory import resident_memory
from mainspring.stores.election import LEADER
from mainspring.stores.paging import all_items, read_note
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store

REFRESH = timedelta(seconds=5)
"""How often a worker says that it is alive."""

COSTLY_REFRESH = timedelta(seconds=20)
"""The same where a write is costly (`StoreInfo.idle_poll`)."""

MISSED_REFRESHES = 3
"""A worker that has missed so many does not count as alive: one that was killed does for up to
15 s, or a minute on object storage."""

KNOWN_FOR = 60.0
"""Seconds for which a process trusts what it last read of the other workers."""

UPTIME_NAME, MOST_DOWNTIMES = "workers", 100

MOST_CHARACTERS = 100
"""Of a node's name. It is a part of the ids of runs, which have at most 400."""


class LiveWorker(Struct, frozen=True, kw_only=True):
    """A process that works on runs. `queues=None` takes every queue.

    The rest is as the worker last announced it, at `seen_at`: the name of its node, its process id,
    its version, how many attempts it may run at once and how many it ran, and the bytes of memory
    it used. `is_leader`: it fires slots first.
    `fires`: it fires slots; one that was made with `enabled=False` does not.
    `memory_limit_reached`: it takes no more runs, and has to be replaced.
    `has_default_handler`: it also runs what no worker has a handler of its own for.
    """

    id: str
    node: str = ""
    pid: int | None = None
    version: str = ""
    is_leader: bool = False
    fires: bool = True
    queues: frozenset[str] | None = None
    handlers: frozenset[str]
    capacity: int | None = None
    running: int | None = None
    memory: int | None = None
    memory_limit: int | None = None
    memory_limit_reached: bool = False
    started_at: datetime | None = None
    seen_at: datetime | None = None
    has_default_handler: bool = False

    def takes(self, handler: str, queue: str, owner: Owner | None = None) -> bool:
        """Whether it can run runs of this handler in this queue. A default handler runs no job
        whose `owner` is code."""
        by_default = self.has_default_handler and owner is not Owner.CODE
        has_handler = handler in self.handlers or by_default
        if self.memory_limit_reached or not has_handler:
            return False
        return self.queues is None or queue in self.queues

    def can_run(self, job: Job) -> bool:
        return self.takes(job.handler, job.policy.queue, job.owner)

    def to_dict(self) -> dict[str, Any]:
        """What the lists of the CLI and of the HTTP API show. None: the worker did not announce
        it."""
        document = {
            **structs.asdict(self),
            "node": self.node or None,
            "version": self.version or None,
            "queues": None if self.queues is None else sorted(self.queues),
            "handlers": sorted(self.handlers),
        }
        del document["has_default_handler"]
        return document


async def find_leader(store: Store) -> str | None:
    """The id of the worker that leads."""
    term = await read_note(store, note_kinds.TERM, LEADER)
    if term is None or not isinstance(term.value, dict):
        return None
    holder = term.value.get("holder")
    return holder if isinstance(holder, str) else None


async def find_workers(store: Store) -> list[LiveWorker]:
    """The workers that are alive by the notes in the store, by id."""
    workers: list[LiveWorker] = []
    async for note in all_items(store.notes, NoteQuery(kind=note_kinds.WORKER, limit=1000)):
        with contextlib.suppress(ValueError, TypeError):  # written by another version
            workers.append(convert({**note.value, "id": note.name}, LiveWorker))
    return workers


def no_worker_fires(workers: Iterable[LiveWorker]) -> bool:
    """Whether workers are alive, and firing is switched off on each of them."""
    alive = list(workers)
    return bool(alive) and not any(worker.fires for worker in alive)


class LiveWorkers:
    """What this process knows of all workers of its store, itself included. `running()` is how many
    attempts run here, `memory_limit_reached()` whether this process takes no more."""

    def __init__(
        self,
        engine: EngineContext,
        running: Callable[[], int],
        memory_limit_reached: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._running = running
        self._memory_limit_reached = memory_limit_reached
        self._started_at: datetime | None = None
        self._workers: list[LiveWorker] = []  # as they were last read
        self._read_at: float | None = None
        costly = engine.store.info().idle_poll is not None
        self._refresh = COSTLY_REFRESH if costly else REFRESH
        self._lifetime = MISSED_REFRESHES * self._refresh
        self._wrote_at: float | None = None
        self._cut_off_until = 0.0

    async def announce_periodically(self) -> None:
        """Write this worker's note every few seconds, until the engine stops."""
        while True:
            await self.announce()
            await asyncio.sleep(self._refresh.total_seconds())

    async def refresh_known(self) -> bool:
        """Read which workers are alive, for `known` and `has_worker`. False: this worker was cut
        off from the store, and the others perhaps too, so that their notes have expired."""
        if self._was_cut_off():
            return False
        self._workers = await find_workers(self._engine.store)
        self._read_at = self._engine.clock.monotonic()
        return True

    def known(self) -> list[LiveWorker]:
        """This worker, and the others as they were last read."""
        return [self.this_worker(), *self._workers]

    def has_worker(self, job: Job, this_worker: LiveWorker) -> bool | None:
        """Whether a live worker can run the job; None: the workers were read too long ago."""
        if this_worker.can_run(job):
            return True
        age = None if self._read_at is None else self._engine.clock.monotonic() - self._read_at
        if age is None or age > KNOWN_FOR:
            return None
        return any(worker.can_run(job) for worker in self._workers)

    async def read_workers(self) -> list[LiveWorker]:
        """The live workers by the store, and this one even before its first note."""
        workers = await find_workers(self._engine.store)
        if self._engine.settings.workers > 0:
            this_worker = self._announcement()
            workers = [worker for worker in workers if worker.id != this_worker.id] + [this_worker]
        return workers

    async def find_nodes(self, jobs: Iterable[Job], only_here: bool = False) -> list[LiveWorker]:
        """The workers on which new runs of these jobs run, if any of them runs on each node: this
        one first, and only this one for a run at its start."""
        if not any(job.policy.each_node for job in jobs):
            return []
        own = self._engine.settings.worker_id
        if only_here:
            return [self.this_worker()]
        workers = {worker.id: worker for worker in await self.read_workers()}
        if self._was_cut_off():  # the others too, perhaps: their notes have expired meanwhile
            workers = {worker.id: worker for worker in self._workers} | workers
        return sorted(workers.values(), key=lambda worker: (worker.id != own, worker.id))

    def _was_cut_off(self) -> bool:
        """Whether this worker could not announce itself in time. It counts until the others have
        had the time to announce themselves again."""
        now = self._engine.clock.monotonic()
        late = self._wrote_at is not None and now - self._wrote_at > self._lifetime.total_seconds()
        if late:
            self._cut_off_until = now + 2 * self._refresh.total_seconds()
        return now < self._cut_off_until

    async def list_workers(self) -> list[LiveWorker]:
        """The live workers by id, with the one that leads marked."""
        leader = await find_leader(self._engine.store)
        workers = sorted(await self.read_workers(), key=lambda worker: worker.id)
        return [replace(worker, is_leader=worker.id == leader) for worker in workers]

    async def withdraw(self) -> None:
        store, now = self._engine.store, self._engine.time.now()
        await record_alive(store, now, self._refresh, stopping=True)
        await store.put_notes([NoteWrite.drop(note_kinds.WORKER, self._engine.settings.worker_id)])

    def this_worker(self) -> LiveWorker:
        settings, registry = self._engine.settings, self._engine.registry
        return LiveWorker(
            id=settings.worker_id,
            handlers=registry.names(),
            queues=settings.queues,
            has_default_handler=registry.default is not None,
        )

    def _announcement(self) -> LiveWorker:
        """This worker with all that its note says of it."""
        settings = self._engine.settings
        return replace(
            self.this_worker(),
            node=node_name(),
            pid=os.getpid(),
            version=__version__,
            capacity=settings.workers,
            running=self._running(),
            memory=resident_memory(),
            memory_limit=settings.memory_limit,
            memory_limit_reached=self._memory_limit_reached(),
            started_at=self._started_at,
            seen_at=self._engine.time.now(),
            fires=settings.enabled,
        )

    async def announce(self) -> None:
        """Write this worker's note."""
        await self._engine.retrying_store.repeat("announce", self._write)

    async def _write(self) -> None:
        if self._started_at is None:
            self._started_at = self._engine.time.now()
        this_worker = self._announcement()
        value = structs.asdict(this_worker)
        del value["id"], value["is_leader"]
        value["handlers"] = sorted(this_worker.handlers)
        value["queues"] = None if this_worker.queues is None else sorted(this_worker.queues)
        note = Note(kind=note_kinds.WORKER, name=this_worker.id, value=value)
        # Nobody else writes this note, so whatever version it has is replaced. With a ttl it also
        # lasts as long as it should when the store's clock is set.
        write = NoteWrite(note.kind, note.name, None, note, self._lifetime)
        await self._engine.store.put_notes([write])
        self._was_cut_off()
        self._wrote_at = self._engine.clock.monotonic()
        await record_alive(self._engine.store, self._engine.time.now(), self._refresh)


# -- when no worker was alive ---------------------------------------------------------------


class Downtime(Struct, frozen=True):
    """No worker was alive between these two moments, by the store's time."""

    start: datetime
    end: datetime


class Uptime(Struct, frozen=True):
    alive_at: datetime
    downtimes: tuple[Downtime, ...] = ()

    def downtime_at(self, moment: datetime) -> Downtime | None:
        return next(
            (downtime for downtime in self.downtimes if downtime.start <= moment <= downtime.end),
            None,
        )


async def read_uptime(store: Store) -> Uptime | None:
    return (await _read_uptime(store))[0]


async def record_alive(
    store: Store, now: datetime, interval: timedelta, *, stopping: bool = False
) -> None:
    """Record that a worker is alive, as each does at this interval. `stopping`: for the last time,
    so that a downtime that begins now has its true start."""
    uptime, version = await _read_uptime(store)
    if uptime is None:
        uptime = Uptime(now)
    elif not stopping and timedelta() <= now - uptime.alive_at < 0.8 * interval:
        return  # many workers share the note
    elif now - uptime.alive_at > 1.4 * interval:
        downtimes = (*uptime.downtimes, Downtime(uptime.alive_at, now))
        uptime = Uptime(now, downtimes[-MOST_DOWNTIMES:])
    else:
        uptime = Uptime(now, uptime.downtimes)
    value = to_builtins(uptime, builtin_types=(datetime,))
    note = Note(kind=note_kinds.UPTIME, name=UPTIME_NAME, value=value, version=version)
    # Where another worker was quicker, it has recorded the same.
    await store.put_notes([NoteWrite.put(note)])


async def _read_uptime(store: Store) -> tuple[Uptime | None, int]:
    note = await read_note(store, note_kinds.UPTIME, UPTIME_NAME)
    if note is None:
        return None, 0
    try:
        return convert(note.value, Uptime), note.version
    except (ValueError, TypeError):  # written by another version
        return None, note.version


# -- ids of workers -------------------------------------------------------------------------

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
