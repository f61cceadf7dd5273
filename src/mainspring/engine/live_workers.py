"""Which workers are alive and what they can run, so that jobs that nobody can run are noticed.

Each worker keeps a note in the store that names its handlers and expires unless it is refreshed. A
scheduled job whose handler no live worker has, such as one whose function was renamed, is reported
and after a grace no longer fired. Nothing is written for it: its slots count as missed, as if no
scheduler had run, and its misfire policy decides what runs once a worker has the handler again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Iterable
from datetime import timedelta

from msgspec import Struct, convert, to_builtins

from mainspring.core.model import Job, Note, Owner
from mainspring.engine.context import EngineContext
from mainspring.stores.protocol import JobQuery, NoteQuery, NoteWrite, Store
from mainspring.stores.url_redaction import without_password

__all__ = [
    "LiveWorker",
    "LiveWorkers",
    "find_workers",
    "lacks_only_queue",
    "removal_command",
    "why_no_worker",
    "without_worker",
]

log = logging.getLogger("mainspring")

NOTE_KIND = "worker"
LIFETIME = timedelta(seconds=60)
"""How long a worker that was killed still counts as alive."""

REFRESH_SECONDS = 20.0

GRACE_SECONDS = 60.0
"""How long a job's slots are fired although no live worker has its handler: a deploy may be under
way."""

MOST_WARNINGS = 10


class LiveWorker(Struct, frozen=True, kw_only=True):
    """A process that works on runs. `queues=None` takes every queue."""

    id: str
    handlers: frozenset[str]
    queues: frozenset[str] | None = None

    def takes(self, handler: str, queue: str) -> bool:
        return handler in self.handlers and (self.queues is None or queue in self.queues)


async def find_workers(store: Store) -> list[LiveWorker]:
    """The workers that are alive by the notes in the store, by id."""
    found: list[LiveWorker] = []
    cursor = None
    while True:
        page = await store.notes(NoteQuery(kind=NOTE_KIND, limit=1000, cursor=cursor))
        for note in page.items:
            with contextlib.suppress(ValueError, TypeError):  # written by another version
                found.append(convert({**note.value, "id": note.name}, LiveWorker))
        if (cursor := page.cursor) is None:
            return found


def without_worker(jobs: Iterable[Job], workers: list[LiveWorker]) -> list[Job]:
    """Those of the jobs that none of the workers can run."""
    return [
        job
        for job in jobs
        if job.unreadable is None
        and not any(worker.takes(job.handler, job.policy.queue) for worker in workers)
    ]


def lacks_only_queue(job: Job, workers: Iterable[LiveWorker]) -> bool:
    """Whether a job that none of the workers can run lacks only one that takes its queue."""
    return any(job.handler in worker.handlers for worker in workers)


def why_no_worker(job: Job, workers: Iterable[LiveWorker]) -> str:
    if lacks_only_queue(job, workers):
        return f"no running worker takes queue {job.policy.queue!r} of job {job.id}"
    return f"no running worker has the handler {job.handler!r} of job {job.id}"


def removal_command(job: Job, store_url: str | None) -> str:
    """The command line that removes a job whose code is gone."""
    words = ["mainspring", "jobs", "remove", job.id]
    if job.owner is Owner.CODE:
        words.append("--force")
    if store_url is not None:
        words += ["--store", without_password(store_url)]
    return shlex.join(words)


class LiveWorkers:
    """What this process knows of all workers of its store, itself included."""

    def __init__(self, engine: EngineContext, store_url: str | None) -> None:
        self._engine = engine
        self._store_url = store_url
        self._workers: list[LiveWorker] = []
        self._read_at: float | None = None
        self._without_worker_since: dict[str, float] = {}
        self._not_fired: set[str] = set()

    @property
    def not_fired(self) -> tuple[str, ...]:
        """The ids of the jobs that are not fired, because no live worker has their handler."""
        return tuple(sorted(self._not_fired))

    async def announce_periodically(self) -> None:
        """Keep this worker's note fresh, and read those of the others."""
        await self._announce()
        await self._engine.retrying_store.repeat("jobs", self._warn_at_start)
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self._announce()

    async def current(self) -> list[LiveWorker]:
        """The live workers by the store, and this one even before its first note."""
        found = await find_workers(self._engine.store)
        myself = self.myself()
        if self._engine.settings.workers > 0:
            found = [worker for worker in found if worker.id != myself.id] + [myself]
        return found

    async def withdraw(self) -> None:
        await self._engine.store.put_notes(
            [NoteWrite.drop(NOTE_KIND, self._engine.settings.worker_id)]
        )

    def may_fire(self, job: Job, myself: LiveWorker) -> bool:
        """Whether to fire a job that is due. True while it is not known who is alive. `myself` is
        made once for many jobs: it names all handlers."""
        if self._has_worker(job, myself) is not False:
            self._without_worker_since.pop(job.id, None)
            if job.id in self._not_fired:
                self._not_fired.discard(job.id)
                log.warning("job %s is fired again: a worker can run it", job.id)
            return True
        now = self._engine.clock.monotonic()
        since = self._without_worker_since.get(job.id)
        if since is None:
            self._report_without_worker(job, myself)
            return True
        if now - since < GRACE_SECONDS:
            return True
        if job.id not in self._not_fired:
            self._not_fired.add(job.id)
            log.warning(
                "job %s is not fired any more: %s. It is fired again as soon as one does",
                job.id,
                why_no_worker(job, [myself, *self._workers]),
            )
        return False

    def _has_worker(self, job: Job, myself: LiveWorker) -> bool | None:
        if myself.takes(job.handler, job.policy.queue):
            return True
        age = None if self._read_at is None else self._engine.clock.monotonic() - self._read_at
        if age is None or age > LIFETIME.total_seconds():
            return None
        return not without_worker([job], self._workers)

    def myself(self) -> LiveWorker:
        settings = self._engine.settings
        return LiveWorker(
            id=settings.worker_id, handlers=self._engine.registry.names(), queues=settings.queues
        )

    async def _announce(self) -> None:
        await self._engine.retrying_store.repeat("announce", self._write_and_read)

    async def _write_and_read(self) -> None:
        myself = self.myself()
        facts = to_builtins(myself)
        value = {"handlers": sorted(facts["handlers"]), "queues": facts["queues"]}
        note = Note(
            kind=NOTE_KIND,
            name=myself.id,
            value=value,
            expires_at=self._engine.time.now() + LIFETIME,
        )
        # Nobody else writes this note, so whatever version it has is replaced.
        await self._engine.store.put_notes([NoteWrite(note.kind, note.name, None, note)])
        self._workers = await find_workers(self._engine.store)
        self._read_at = self._engine.clock.monotonic()
        await self._forget_removed()

    async def _forget_removed(self) -> None:
        if ids := frozenset(self._not_fired):
            page = await self._engine.store.jobs(JobQuery(ids=ids, limit=len(ids)))
            for job_id in ids - {job.id for job in page.items if job.enabled}:
                self._without_worker_since.pop(job_id, None)
                self._not_fired.discard(job_id)

    async def _warn_at_start(self) -> None:
        cursor = None
        while True:
            page = await self._engine.store.jobs(JobQuery(enabled=True, limit=1000, cursor=cursor))
            myself = self.myself()
            for job in without_worker(page.items, [myself, *self._workers]):
                if job.schedule is not None and job.id not in self._without_worker_since:
                    self._report_without_worker(job, myself)
            if (cursor := page.cursor) is None:
                return

    def _report_without_worker(self, job: Job, myself: LiveWorker) -> None:
        self._without_worker_since[job.id] = self._engine.clock.monotonic()
        if len(self._without_worker_since) > MOST_WARNINGS:
            return
        workers = [myself, *self._workers]
        why = why_no_worker(job, workers)
        if lacks_only_queue(job, workers):
            log.warning("%s: start one that does", why)
        else:
            log.warning(
                "%s. If its function was renamed or removed, remove the job: %s",
                why,
                removal_command(job, self._store_url),
            )
