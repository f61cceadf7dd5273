"""Records which workers are alive and what they can run, and reports jobs that no worker can run.

Each worker keeps a note in the store that names its handlers and expires unless it is refreshed. A
job whose handler no live worker has, such as one whose function was renamed, is reported. After a
grace its slots are no longer fired: they count as missed, as if no scheduler had run, and its
misfire policy decides what runs once a worker has the handler again. During the grace a slot that
would only be skipped, because a run of the job waits already, is not fired either. What happens to
a job that runs after others is in `jobs_without_worker.py`.

Since when a job has had no worker is kept in a note, so that the grace is given once, and not once
more for every process that starts; otherwise each start would leave runs that no worker claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from importlib import metadata
from typing import Any

from msgspec import Struct, convert, structs

from mainspring.core import note_kinds
from mainspring.core.model import LIVE, Job, Note, Owner, Source, replace
from mainspring.core.policy import Overlap
from mainspring.engine.context import EngineContext
from mainspring.engine.executors.procfs import resident_memory
from mainspring.engine.jobs_without_worker import (
    GRACE,
    drop_job_without_worker,
    note_job_without_worker,
    read_jobs_without_worker,
)
from mainspring.engine.memory_watch import megabytes
from mainspring.engine.notes import read_note
from mainspring.engine.uptime import record_alive
from mainspring.engine.worker_ids import node_name
from mainspring.stores.election import LEADER
from mainspring.stores.paging import all_items, pages
from mainspring.stores.protocol import JobQuery, NoteQuery, NoteWrite, RunQuery, Store
from mainspring.stores.url_redaction import without_password

log = logging.getLogger("mainspring")

REFRESH = timedelta(seconds=5)
"""How often a worker says that it is alive."""

COSTLY_REFRESH = timedelta(seconds=20)
"""The same where a write is costly (`StoreInfo.idle_poll`)."""

MISSED_REFRESHES = 3
"""A worker that has missed so many does not count as alive: one that was killed does for up to
15 s, or a minute on object storage."""

SEARCH_SECONDS = 20.0
"""Seconds between two searches for jobs that no worker can run."""

KNOWN_FOR = 60.0
"""Seconds for which a process trusts what it last read of the other workers."""

MOST_WARNINGS = 10

ANNOUNCED = (
    "node",
    "pid",
    "version",
    "capacity",
    "running",
    "memory",
    "memory_limit",
    "memory_limit_reached",
    "started_at",
    "seen_at",
    "has_default_handler",
    "fires",
)
"""What a worker's note says beside its handlers and queues."""

JOBS_AT_ONCE = 1000


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
    found: list[LiveWorker] = []
    async for note in all_items(store.notes, NoteQuery(kind=note_kinds.WORKER, limit=1000)):
        with contextlib.suppress(ValueError, TypeError):  # written by another version
            found.append(convert({**note.value, "id": note.name}, LiveWorker))
    return found


def no_worker_fires(workers: Iterable[LiveWorker]) -> bool:
    """Whether workers are alive, and firing is switched off on each of them."""
    alive = list(workers)
    return bool(alive) and not any(worker.fires for worker in alive)


def without_worker(jobs: Iterable[Job], workers: list[LiveWorker]) -> list[Job]:
    """Those of the jobs that none of the workers can run."""
    return [
        job
        for job in jobs
        if job.unreadable is None
        and not any(worker.takes(job.handler, job.policy.queue, job.owner) for worker in workers)
    ]


def find_orphans(jobs: Iterable[Job], workers: Iterable[LiveWorker]) -> list[Job]:
    """Those of the jobs that code defined and whose handler none of the workers has: their function
    was renamed or removed. While no worker is alive nothing is known, and there are none."""
    alive = list(workers)
    handlers = {handler for worker in alive for handler in worker.handlers}
    return [
        job
        for job in jobs
        if alive
        and job.unreadable is None
        and job.owner is Owner.CODE
        and job.handler not in handlers
    ]


def lacks_only_queue(job: Job, workers: Iterable[LiveWorker]) -> bool:
    """Whether a worker has the handler of a job that none of the workers can run: then only a
    worker that takes its queue is missing."""
    return any(
        job.handler in worker.handlers and not worker.memory_limit_reached for worker in workers
    )


def describe_full_worker(handler: str, workers: Iterable[LiveWorker]) -> str | None:
    """Of the workers that have the handler, say which one has reached its memory limit."""
    for worker in workers:
        if handler in worker.handlers and worker.memory_limit_reached:
            limit = "" if worker.memory_limit is None else f" of {megabytes(worker.memory_limit)}"
            return (
                f"worker {worker.id} has reached its memory limit{limit} and takes no more runs:"
                " restart it"
            )
    return None


def describe_missing_worker(job: Job, workers: Iterable[LiveWorker]) -> str:
    workers = list(workers)
    if lacks_only_queue(job, workers):
        return f"no live worker takes queue {job.policy.queue!r} of job {job.id}"
    if (full := describe_full_worker(job.handler, workers)) is not None:
        return full
    return f"no live worker has the handler {job.handler!r} of job {job.id}"


def keeping_code(job: Job) -> str:
    """The code that gives a job to the new function when its old one was renamed. Its schedule and
    other options stand in the same decorator."""
    return f"@scheduler.job(id={job.id!r}, …)"


def removal_command(job: Job, store_url: str | None) -> str:
    """The command line that removes a job whose code is gone."""
    words = ["mainspring", "jobs", "remove", job.id]
    if job.owner is not Owner.API:
        words.append("--force")
    if store_url is not None:
        words += ["--store", without_password(store_url)]
    return shlex.join(words)


def prune_command(store_url: str | None) -> str:
    """The command line that lists the jobs whose code is gone."""
    words = ["mainspring", "jobs", "prune-orphans", "--dry-run"]
    if store_url is not None:
        words += ["--store", without_password(store_url)]
    return shlex.join(words)


def _what_runs(workers: Iterable[LiveWorker]) -> frozenset[tuple[str, str | None]]:
    """The handlers of the workers, each with a queue that a worker takes; None: all queues."""
    return frozenset(
        (handler, queue)
        for worker in workers
        for handler in worker.handlers
        for queue in (worker.queues or (None,))
    )


@cache
def _version() -> str:
    """The version of this program; empty where the package is not installed."""
    try:
        return metadata.version("mainspring")
    except metadata.PackageNotFoundError:
        return ""


class LiveWorkers:
    """What this process knows of all workers of its store, itself included. `running()` is how many
    attempts run here, `memory_limit_reached()` whether this process takes no more."""

    def __init__(
        self,
        engine: EngineContext,
        store_url: str | None,
        running: Callable[[], int],
        memory_limit_reached: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._running = running
        self._memory_limit_reached = memory_limit_reached
        self._started_at: datetime | None = None
        self._store_url = store_url
        self._workers: list[LiveWorker] = []
        self._read_at: float | None = None
        self._without_worker_since: dict[str, datetime] = {}  # by the store's time
        self._warned: set[str] = set()
        self._past_grace: dict[str, Job] = {}
        self._with_waiting_run: set[str] = set()  # of the jobs without a worker
        self._can_run: frozenset[tuple[str, str | None]] = frozenset()
        self._has_searched = False
        costly = engine.store.info().idle_poll is not None
        self._refresh = COSTLY_REFRESH if costly else REFRESH
        self._lifetime = MISSED_REFRESHES * self._refresh
        self._wrote_at: float | None = None
        self._cut_off_until = 0.0

    @property
    def not_fired(self) -> tuple[str, ...]:
        """The ids of the jobs that are not fired, or get no further runs after others, because no
        live worker can run them."""
        absent = self._past_grace.values()
        return tuple(sorted(job.id for job in absent if job.schedule or job.policy.after))

    @property
    def orphaned(self) -> tuple[str, ...]:
        """The ids of the jobs whose code is gone for longer than the grace: see `find_orphans`."""
        workers = [self.this_worker(), *self._workers]
        return tuple(sorted(job.id for job in find_orphans(self._past_grace.values(), workers)))

    async def announce_periodically(self) -> None:
        """Write this worker's note every few seconds, and now and then search for jobs that no
        worker can run."""
        repeat, monotonic = self._engine.retrying_store.repeat, self._engine.clock.monotonic
        while True:
            await self.announce()
            is_old = self._read_at is None or monotonic() - self._read_at >= SEARCH_SECONDS
            if is_old and not self._was_cut_off():
                await repeat("announce", self._read)
            await asyncio.sleep(self._refresh.total_seconds())

    async def read_workers(self) -> list[LiveWorker]:
        """The live workers by the store, and this one even before its first note."""
        found = await find_workers(self._engine.store)
        if self._engine.settings.workers > 0:
            this_worker = self._announcement()
            found = [worker for worker in found if worker.id != this_worker.id] + [this_worker]
        return found

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

    def decide_firing(self, job: Job, this_worker: LiveWorker) -> bool:
        """Whether to fire a job that is due. True while the store has not answered for so long that
        it is not known who is alive; at the start a job of others waits for the first answer.
        `this_worker` is made once for many jobs: it names all handlers."""
        if not self._has_searched and not this_worker.takes(
            job.handler, job.policy.queue, job.owner
        ):
            return False
        if self._has_worker(job, this_worker) is not False:
            self._forget_job_without_worker(job.id)
            return True
        since = self._without_worker_since.get(job.id)
        if since is None:
            self._report_without_worker(job, this_worker)
            return True
        if self._engine.time.now() - since < GRACE:
            # While a run waits, a further slot would only leave the record of a skip.
            return job.policy.overlap is not Overlap.SKIP or job.id not in self._with_waiting_run
        self._grace_is_over(job, this_worker)
        return False

    def fired(self, job_id: str) -> None:
        """A slot of the job was fired: if no worker can run it, its run waits."""
        if job_id in self._without_worker_since:
            self._with_waiting_run.add(job_id)

    def _has_worker(self, job: Job, this_worker: LiveWorker) -> bool | None:
        if this_worker.takes(job.handler, job.policy.queue, job.owner):
            return True
        age = None if self._read_at is None else self._engine.clock.monotonic() - self._read_at
        if age is None or age > KNOWN_FOR:
            return None
        return not without_worker([job], self._workers)

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
            version=_version(),
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
        value = {name: getattr(this_worker, name) for name in ANNOUNCED}
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

    async def _read(self) -> None:
        self._workers = await find_workers(self._engine.store)
        self._read_at = self._engine.clock.monotonic()
        before, self._can_run = self._can_run, _what_runs([self.this_worker(), *self._workers])
        if not self._has_searched or before - self._can_run:
            await self._find_jobs_without_worker(JobQuery(enabled=True, limit=JOBS_AT_ONCE))
        else:
            await self._find_jobs_without_worker(JobQuery(follows=True, limit=JOBS_AT_ONCE))
        await self._settle_jobs_without_worker()
        self._has_searched = True

    async def _settle_jobs_without_worker(self) -> None:
        """Bring what this process knows of jobs without a worker, and the notes about them, into
        line with each other and with the jobs and workers that there are."""
        noted = await read_jobs_without_worker(self._engine.store)
        for job_id, since in noted.items():
            self._without_worker_since[job_id] = min(
                since, self._without_worker_since.get(job_id, since)
            )
        ids = list(self._without_worker_since)
        for start in range(0, len(ids), JOBS_AT_ONCE):
            await self._reconcile_notes(ids[start : start + JOBS_AT_ONCE], noted)

    async def _reconcile_notes(self, ids: list[str], noted: Mapping[str, datetime]) -> None:
        page = await self._engine.store.jobs(JobQuery(ids=frozenset(ids), limit=len(ids)))
        jobs, this_worker = {job.id: job for job in page.items}, self.this_worker()
        writes = []
        for job_id in ids:
            job = jobs.get(job_id)
            if job is None or not job.enabled:
                self._without_worker_since.pop(job_id, None)
                self._past_grace.pop(job_id, None)
                self._with_waiting_run.discard(job_id)
                self._warned.discard(job_id)
            elif self._has_worker(job, this_worker):
                self._forget_job_without_worker(job_id)
            else:
                since = self._without_worker_since[job_id]
                if job_id not in noted:
                    writes.append(note_job_without_worker(job_id, since))
                if self._engine.time.now() - since >= GRACE:
                    self._grace_is_over(job, this_worker)
                elif job.schedule is not None and await self._has_unfinished_slot(job):
                    self._with_waiting_run.add(job_id)
            if job_id not in self._without_worker_since and job_id in noted:
                writes.append(drop_job_without_worker(job_id))
        if writes:
            await self._engine.store.put_notes(writes)

    async def _has_unfinished_slot(self, job: Job) -> bool:
        query = RunQuery(job=job.id, states=LIVE, brief=True, limit=100)
        page = await self._engine.store.find(query)
        return any(run.source is Source.SCHEDULE for run in page.items)

    async def _find_jobs_without_worker(self, query: JobQuery) -> None:
        """Search for jobs that no worker can run: among all at the start and when a handler is gone
        that a worker had, and each time among those that come after others, for their runs would
        pile up. A job with a schedule is also noticed when it is due.

        At the start they are reported at once, later after the grace: a program that restarts has
        no worker for a moment."""
        orphans = 0
        async for jobs in pages(self._engine.store.jobs, query):
            this_worker = self.this_worker()
            workers = [this_worker, *self._workers]
            for job in without_worker((job for job in jobs if job.enabled), workers):
                if job.schedule is None and not job.policy.after and job.owner is not Owner.CODE:
                    continue  # nothing makes runs of it but its users
                self._without_worker_since.setdefault(job.id, self._engine.time.now())
                if not self._has_searched:
                    self._report_without_worker(job, this_worker)
                    orphans += len(find_orphans([job], workers))
        if orphans > 1:
            command = prune_command(self._store_url)
            log.warning("%d jobs have no code here any more: `%s` lists them", orphans, command)

    def _forget_job_without_worker(self, job_id: str) -> None:
        """A worker can run the job."""
        self._without_worker_since.pop(job_id, None)
        self._with_waiting_run.discard(job_id)
        self._warned.discard(job_id)
        if (job := self._past_grace.pop(job_id, None)) is not None:
            again = "is fired again" if job.schedule else "runs again"
            log.warning("job %s %s: a worker can run it", job_id, again)

    def _grace_is_over(self, job: Job, this_worker: LiveWorker) -> None:
        known = job.id in self._past_grace
        self._past_grace[job.id] = job
        if known:
            return
        self._report_without_worker(job, this_worker)
        why = describe_missing_worker(job, [this_worker, *self._workers])
        if job.schedule is not None:
            log.warning(
                "job %s is not fired any more: %s. It is fired again as soon as one does",
                job.id,
                why,
            )
        elif job.policy.after:
            log.warning(
                "job %s gets no more runs after %s while one of its runs waits: %s. It gets them"
                " again as soon as one does",
                job.id,
                ", ".join(job.policy.after),
                why,
            )

    def _report_without_worker(self, job: Job, this_worker: LiveWorker) -> None:
        self._without_worker_since.setdefault(job.id, self._engine.time.now())
        if job.id in self._warned or len(self._warned) >= MOST_WARNINGS:
            return
        self._warned.add(job.id)
        workers = [this_worker, *self._workers]
        why = describe_missing_worker(job, workers)
        if lacks_only_queue(job, workers):
            log.warning("%s: start one that does", why)
        elif job.owner is Owner.CODE:
            log.warning(
                "%s. If its function was renamed, %s on the new function keeps the job with its"
                " history. If its code is gone, remove the job: %s",
                why,
                keeping_code(job),
                removal_command(job, self._store_url),
            )
        else:
            log.warning(
                "%s. Start a worker that has it, or remove the job: %s",
                why,
                removal_command(job, self._store_url),
            )
