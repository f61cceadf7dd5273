"""Jobs that no live worker can run: reports them, fires them no more, and lets the default handler
serve those that it may.

A job whose handler no live worker has, such as one whose function was renamed, is reported. After a
grace its slots are no longer fired: they count as missed, as if no scheduler had run, and its
misfire policy decides what runs once a worker has the handler again. A job that runs after others
is left out of new workflows then (`followers_to_run`).

Since when a job has had no worker is kept in a note, so that all processes know it, also those that
only enqueue, and the grace is given once, and not once more for every process that starts;
otherwise each start would leave runs that no worker claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from mainspring.core import note_kinds
from mainspring.core.model import LIVE, Job, Note, Owner, is_node_handler
from mainspring.core.plurals import list_some
from mainspring.engine.context import EngineContext
from mainspring.engine.live_workers import LiveWorker, LiveWorkers, find_workers
from mainspring.engine.memory import megabytes
from mainspring.engine.workflow import Followers
from mainspring.stores.paging import all_items, pages, read_jobs
from mainspring.stores.protocol import JobQuery, NoteQuery, NoteWrite, RunQuery, Store
from mainspring.webhooks.service import HANDLER

log = logging.getLogger("mainspring")

GRACE = timedelta(seconds=60)
"""How long a job goes on although no live worker can run it: a deploy may be under way."""

SEARCH_SECONDS = 20.0
"""Seconds between two searches for jobs that no worker can run."""

MOST_WARNINGS = 10

JOBS_AT_ONCE = 1000

LEAST_PAUSE = 0.5
"""Seconds between two searches for the default handler. Each costs a count of the unfinished
runs."""


def without_worker(jobs: Iterable[Job], workers: list[LiveWorker]) -> list[Job]:
    """Those of the jobs that none of the workers can run."""
    return [
        job
        for job in jobs
        if job.unreadable is None and not any(worker.can_run(job) for worker in workers)
    ]


def runs_code(workers: Iterable[LiveWorker]) -> bool:
    """Whether any of the workers has handlers of a program, and not only those that Mainspring
    brings itself, as `mainspring serve` without an app does."""
    return any(
        handler != HANDLER and not handler.startswith("mainspring.")
        for worker in workers
        for handler in worker.handlers
    )


def find_orphans(jobs: Iterable[Job], workers: Iterable[LiveWorker]) -> list[Job]:
    """Those of the jobs that code defined and whose handler none of the workers has: their function
    was renamed or removed. While no worker runs code nothing is known, and there are none."""
    alive = list(workers)
    handlers = {handler for worker in alive for handler in worker.handlers}
    return code_jobs_without(handlers, jobs) if runs_code(alive) else []


def code_jobs_without(handlers: Collection[str], jobs: Iterable[Job]) -> list[Job]:
    """Those of the jobs that code defined and whose handler is not among these."""
    return [
        job
        for job in jobs
        if job.unreadable is None and job.owner is Owner.CODE and job.handler not in handlers
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


async def read_jobs_without_worker(store: Store) -> dict[str, datetime]:
    """The jobs without a worker, by id, and since when."""
    noted: dict[str, datetime] = {}
    async for note in all_items(store.notes, NoteQuery(kind=note_kinds.ABSENCE, limit=1000)):
        since = note.value.get("since") if isinstance(note.value, dict) else None
        if isinstance(since, datetime):  # else written by another version
            noted[note.name] = since
    return noted


async def followers_to_run(engine: EngineContext, roots: Collection[str]) -> Followers:
    """The jobs that come after others, without those that a new workflow instance leaves out.

    A follower that no live worker has been able to run for the grace has at most one unfinished
    run from then on: each further instance leaves it out, together with the jobs that come after
    it. Else its runs would pile up without end. `roots` are the jobs that start instances: they
    are never left out.
    """
    followers = await engine.jobs.followers()
    instances = followers.after(roots)
    if not instances:
        return followers
    noted = await read_jobs_without_worker(engine.store)
    now = engine.time.now()
    left_out = set()
    for job_id in instances.keys() & noted.keys():
        if now - noted[job_id] < GRACE or job_id in roots:
            continue
        if (await engine.store.find(RunQuery(job=job_id, states=LIVE, brief=True, limit=1))).items:
            left_out.add(job_id)
    return followers.without(left_out, roots)


class JobsWithoutWorker:
    """What this process knows of jobs that no live worker can run."""

    def __init__(self, engine: EngineContext, live_workers: LiveWorkers) -> None:
        self._engine = engine
        self._live_workers = live_workers
        self._since: dict[str, datetime] = {}  # by the store's time
        self._past_grace: dict[str, Job] = {}
        self._warned: set[str] = set()
        self._can_run: frozenset[tuple[str, str | None]] = frozenset()
        self._has_searched = False

    @property
    def not_fired(self) -> tuple[str, ...]:
        """The ids of the jobs that are not fired, or get no further runs after others, because no
        live worker can run them."""
        absent = self._past_grace.values()
        return tuple(sorted(job.id for job in absent if job.schedule or job.policy.after))

    @property
    def orphaned(self) -> tuple[str, ...]:
        """The ids of the jobs whose code is gone for longer than the grace: see `find_orphans`."""
        orphans = find_orphans(self._past_grace.values(), self._live_workers.known())
        return tuple(sorted(job.id for job in orphans))

    def decide_firing(self, job: Job, this_worker: LiveWorker) -> bool:
        """Whether to fire a job that is due. True while the store has not answered for so long that
        it is not known who is alive; at the start a job of others waits for the first answer.
        `this_worker` is made once for many jobs: it names all handlers."""
        if not self._has_searched and not this_worker.can_run(job):
            return False
        if self._live_workers.has_worker(job, this_worker) is not False:
            self._forget(job.id)
            return True
        if job.id not in self._since:
            self._report(job)
        return not self._is_past_grace(job)

    async def search_periodically(self) -> None:
        """Search for jobs that no worker can run now and then, until the engine stops."""
        while True:
            await self._engine.retrying_store.repeat("workers", self._search)
            await asyncio.sleep(SEARCH_SECONDS)

    async def _search(self) -> None:
        """Search among all jobs at the start and when a handler is gone that a worker had, and each
        time among those that come after others, for their runs would pile up. A job with a schedule
        is also noticed when it is due."""
        if not await self._live_workers.refresh_known():
            return
        before, self._can_run = self._can_run, _what_runs(self._live_workers.known())
        if not self._has_searched or before - self._can_run:
            await self._find(JobQuery(enabled=True, limit=JOBS_AT_ONCE))
        else:
            await self._find(JobQuery(follows=True, limit=JOBS_AT_ONCE))
        await self._settle()
        self._has_searched = True

    async def _find(self, query: JobQuery) -> None:
        """At the start jobs are reported at once, later after the grace: a program that restarts
        has no worker for a moment."""
        orphans, waiting = 0, list[str]()
        async for jobs in pages(self._engine.store.jobs, query):
            workers = self._live_workers.known()
            for job in without_worker((job for job in jobs if job.enabled), workers):
                if job.schedule is None and not job.policy.after and job.owner is not Owner.CODE:
                    continue  # nothing makes runs of it but its users
                self._since.setdefault(job.id, self._engine.time.now())
                if self._has_searched:
                    continue
                if job.owner is Owner.CODE and not runs_code(workers):
                    waiting.append(job.id)
                    self._warned.add(job.id)
                    continue
                self._report(job)
                orphans += len(find_orphans([job], workers))
        if waiting:
            log.warning(
                "no live worker runs the program that defines %s: they wait until it is started",
                list_some(waiting, 3),
            )
        if orphans > 1:
            log.warning(
                "%d jobs have no code here any more: `mainspring jobs prune-orphans --dry-run`"
                " lists them",
                orphans,
            )

    async def _settle(self) -> None:
        """Bring what this process knows of jobs without a worker, and the notes about them, into
        line with each other and with the jobs and workers that there are."""
        noted = await read_jobs_without_worker(self._engine.store)
        for job_id, since in noted.items():
            self._since[job_id] = min(since, self._since.get(job_id, since))
        ids = list(self._since)
        for start in range(0, len(ids), JOBS_AT_ONCE):
            await self._settle_some(ids[start : start + JOBS_AT_ONCE], noted)

    async def _settle_some(self, ids: list[str], noted: Mapping[str, datetime]) -> None:
        stored = await read_jobs(self._engine.store, ids)
        jobs = {i: job for i, job in stored.items() if job.enabled and job.unreadable is None}
        this_worker = self._live_workers.this_worker()
        writes = []
        for job_id in ids:
            job = jobs.get(job_id)
            if job is None or self._live_workers.has_worker(job, this_worker):
                self._forget(job_id, is_gone=job is None)
                if job_id in noted:
                    writes.append(NoteWrite.drop(note_kinds.ABSENCE, job_id))
                continue
            if job_id not in noted:
                value = {"since": self._since[job_id]}
                note = Note(kind=note_kinds.ABSENCE, name=job_id, value=value)
                writes.append(NoteWrite.put(note))
            self._is_past_grace(job)
        if writes:
            await self._engine.store.put_notes(writes)

    def _forget(self, job_id: str, *, is_gone: bool = False) -> None:
        """A worker can run the job, or it is gone or paused."""
        self._since.pop(job_id, None)
        self._warned.discard(job_id)
        job = self._past_grace.pop(job_id, None)
        if job is not None and not is_gone:
            again = "is fired again" if job.schedule else "runs again"
            log.warning("job %s %s: a worker can run it", job_id, again)

    def _is_past_grace(self, job: Job) -> bool:
        """Whether the grace of a job without a worker is over; log it when it ends."""
        if self._engine.time.now() - self._since[job.id] < GRACE:
            return False
        is_known = job.id in self._past_grace
        self._past_grace[job.id] = job
        if not is_known:
            self._report(job)
            self._report_end_of_grace(job)
        return True

    def _report_end_of_grace(self, job: Job) -> None:
        why = describe_missing_worker(job, self._live_workers.known())
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

    def _report(self, job: Job) -> None:
        self._since.setdefault(job.id, self._engine.time.now())
        if job.id in self._warned or len(self._warned) >= MOST_WARNINGS:
            return
        self._warned.add(job.id)
        workers = self._live_workers.known()
        why = describe_missing_worker(job, workers)
        if lacks_only_queue(job, workers):
            log.warning("%s: start one that does", why)
        elif job.owner is Owner.CODE and not runs_code(workers):
            log.warning("%s: start the program that defines it", why)
        elif job.owner is Owner.CODE:
            log.warning(
                "%s. If its function was renamed, %s on the new function keeps the job with its"
                " history. If its code is gone, remove the job",
                why,
                keeping_code(job),
            )
        else:
            log.warning("%s. Start a worker that has it, or remove the job", why)


def _what_runs(workers: Iterable[LiveWorker]) -> frozenset[tuple[str, str | None]]:
    """The handlers of the workers, each with a queue that a worker takes; None: all queues."""
    return frozenset(
        (handler, queue)
        for worker in workers
        for handler in worker.handlers
        for queue in (worker.queues or (None,))
    )


class DefaultHandler:
    """The names of handlers that runs are due for and that no worker has of its own.

    A name that belongs to a worker is never served here, not even while that worker restarts: those
    that this process has seen a worker have, and those of jobs that code defines. (The store keeps
    no other record of the handlers of workers that are gone.)
    """

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._search_at = 0.0
        self._of_workers = {HANDLER}  # webhooks, also where their extra is not installed
        self.names: frozenset[str] = frozenset()

    async def search(self) -> None:
        """Bring `names` up to date, if there is a default handler and the last search is long
        enough ago."""
        clock = self._engine.clock
        began = clock.monotonic()
        if self._engine.registry.default is None or began < self._search_at:
            return
        await self._engine.retrying_store.repeat("default handler", self._search)
        took = clock.monotonic() - began
        self._search_at = clock.monotonic() + max(LEAST_PAUSE, 20 * took)

    async def _search(self) -> None:
        store = self._engine.store
        due = (await store.counts()).due
        names = {*self.names, *(name for name in due if not is_node_handler(name))}
        self._of_workers |= self._engine.registry.names()
        for worker in await find_workers(store):
            self._of_workers |= worker.handlers
        unknown = await read_jobs(store, names - self._of_workers - self.names)
        self._of_workers |= {job.id for job in unknown.values() if job.owner is Owner.CODE}
        self.names = frozenset(names - self._of_workers)
