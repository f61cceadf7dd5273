"""`Client`: enqueues and controls runs, edits jobs, answers questions and keeps notes.

A client works on a store that other processes work on. It runs no handlers and fires no slots.
Every method exists once, as `async def`; `client.blocking` has the same methods for plain code.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import inspect
import os
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Never, NoReturn, Self, TypeVar, Unpack, overload

from mainspring.core import note_kinds
from mainspring.core.clock import Clock, SystemClock
from mainspring.core.context import CONTEXT_IN_TRANSACTION
from mainspring.core.durations import duration
from mainspring.core.events import Events, Listener
from mainspring.core.forecast import Forecast, add_overruns, forecast_load
from mainspring.core.handlers import Registry
from mainspring.core.model import Job, Note, Owner, Page, R, Run, Source, State, check_key, replace
from mainspring.core.options import (
    CheckedEnqueueOptions,
    Enqueue,
    EnqueueOptions,
    JobChanges,
    JobLike,
    JobOptions,
    JobRef,
    PolicyOptions,
    RunFilter,
    RunRef,
    job_id_of,
    run_id_of,
)
from mainspring.core.policy import Policy, Span, check_defaults
from mainspring.core.resources import ResourceKeeper
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.zones import check_zone, zone_named
from mainspring.core.trace_context import current_trace
from mainspring.engine.backfill import Backfill, BackfillPlan
from mainspring.engine.breakers import BreakerStatus, open_breakers
from mainspring.engine.engine import Engine
from mainspring.engine.job_operations import JobOperations
from mainspring.engine.live_workers import LiveWorker, make_worker_id
from mainspring.engine.loop_thread import EngineLoop, LoopThread, call_on, run_in_this_thread
from mainspring.engine.run_log import log_runs
from mainspring.engine.run_operations import (
    EnqueueBatch,
    EnqueueFacts,
    Matched,
    RunOperations,
    Target,
    check_payloads,
)
from mainspring.engine.settings import Settings
from mainspring.errors import (
    InvalidInput,
    InvalidState,
    MainspringError,
    NotStarted,
    UnknownOption,
    refused,
)
from mainspring.scheduler import statistics
from mainspring.scheduler.blocking import BlockingMethod, refuse_running_loop, wait_in_plain_code
from mainspring.scheduler.definitions import (
    AppliedJobs,
    adopt_job,
    applied_jobs,
    edit_job,
    keep_secrets,
    new_job,
    replace_job,
)
from mainspring.scheduler.explanation import Explanation, explain
from mainspring.scheduler.job_file import JobSet, read_job_file
from mainspring.scheduler.queries import (
    aware_time,
    find_timed_out,
    find_unreadable,
    job_order,
    matching_runs,
    named_ids,
    page_limit,
    page_offset,
    state_set,
)
from mainspring.scheduler.statistics import JobHealth, JobMetrics, SchedulerHealth, Stats
from mainspring.scheduler.workflow import SEARCHED_RUNS, Workflow, read_workflow
from mainspring.stores import DEFAULT_STORE, STORE_OF_ENVIRONMENT, open_store
from mainspring.stores.paging import read_note
from mainspring.stores.protocol import (
    Counts,
    JobOrder,
    JobQuery,
    NoteQuery,
    NoteWrite,
    RunQuery,
    Store,
)
from mainspring.stores.url import without_password
from mainspring.webhooks.definition import Given
from mainspring.webhooks.handler import WebhookHandler
from mainspring.webhooks.service import Webhooks, WebhookSettings

T = TypeVar("T")
L = TypeVar("L", bound=Listener)
ScheduleLike = Schedule | str | float | timedelta | datetime | None


class Client:
    """Enqueues and controls runs in a store, and reads what is there.

        async with Client("sqlite:///jobs.db") as client:
            run = await client.enqueue("send_email", {"to": "ada@example.org"})

    `store` is a URL (`sqlite:///jobs.db`, `mongodb://…`) or a store object; without it, it is the
    URL in the environment variable `MAINSPRING_STORE`, or `sqlite:///mainspring.db`. `timezone` is
    the zone of times that name none. If the store cannot be reached, `start` waits for up to
    `wait_for_store`. `poll` is how often `wait` looks at the store where no hint comes. `defaults`
    are policy options, such as `{"retries": 3}`, of jobs made here that give none.

    A client may also be used without `async with`: it opens at its first use, in each process of
    a server that forks, and closes when the process ends. Listeners then run on an event loop of
    its own.

    A store that does not exist yet is made, so that a producer may start before the first worker.
    The log warns of it, with the absolute path of a file: the URL may be mistyped, and a client
    usually expects an existing store. (A scheduler names its store when it starts.)
    """

    _name = "client"
    warns_of_new_store = True
    """Whether the log warns if the store is new. A subclass may set it."""
    opens_itself = True
    """Whether the first use opens it."""
    _how_to_start = (
        "the client was closed: open it again with `await client.start()`, or in plain code"
        " `client.blocking.start()`"
    )

    def __init__(
        self,
        store: str | Store = STORE_OF_ENVIRONMENT,
        *,
        timezone: str = "UTC",
        poll: Span = "1s",
        wait_for_store: Span = "30s",
        defaults: PolicyOptions | None = None,
        webhooks: WebhookSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        inline: bool = False,
        **unknown: Never,
    ) -> None:
        self._refuse_unknown(unknown)
        self._clock = clock or SystemClock()
        if store == STORE_OF_ENVIRONMENT:
            store = os.environ.get("MAINSPRING_STORE") or DEFAULT_STORE
        self._url = store if isinstance(store, str) else None
        self._store: Store
        if store is None or isinstance(store, str | os.PathLike):
            self._store = open_store(store, self._clock)
        else:
            self._store = store
        self._timezone = check_zone(timezone)
        self._zone = zone_named(self._timezone)
        self._defaults = check_defaults(defaults)
        self._own_secrets: set[str] = set()  # jobs that are given a signing secret as data
        self._rng = rng or random.SystemRandom()
        self._settings = Settings.make(
            make_worker_id(self._rng), poll=poll, wait_for_store=wait_for_store
        )
        self._inline = inline
        self._takes_within = False  # not yet known
        self._jobs_in_code: dict[str, Job] = {}
        self._resources: Mapping[str, Any] = {}
        self._resource_keeper: ResourceKeeper | None = None
        self._registry = Registry()
        self.webhooks = Webhooks(self._store, webhooks)
        if self.webhooks.available:
            self._registry.add(WebhookHandler(self.webhooks, self, self._clock))
        self._events = Events()
        log_runs(self._events, lambda: self._settings.log_each_run)
        self._engine_loop: EngineLoop | None = None
        self._pid = 0  # the process in which it was started
        self._engine: Engine | None = None
        # While it starts. Until `_opening` is done, calls wait for it.
        self._opening: concurrent.futures.Future[None] | None = None
        self._starting: concurrent.futures.Future[None] | None = None
        self._stopping: concurrent.futures.Future[None] | None = None
        self._own_loop: LoopThread | None = None
        self._program_loop: asyncio.AbstractEventLoop
        self._start_lock = threading.Lock()  # of starts in plain code and at the first use
        self._opened_itself = False
        self._was_stopped = False
        # Awaited by a stop after the drain, while the store is still open.
        self._before_close: list[Callable[[], Awaitable[None]]] = []
        self._entered: list[bool] = []  # for each `with` block, whether it started the client

    def _refuse_unknown(self, options: Mapping[str, object]) -> None:
        if options:
            names = inspect.signature(type(self)).parameters.keys() - {"unknown"}
            raise UnknownOption(options, names)

    @cached_property
    def blocking(self) -> BlockingClient:
        """The same methods for plain code: `client.blocking.enqueue("job")`."""
        return BlockingClient(self)

    @property
    def store(self) -> Store:
        """The store that holds the jobs and runs."""
        return self._store

    @property
    def url(self) -> str | None:
        """The store's URL, where it was given as one."""
        return self._url

    @property
    def timezone(self) -> str:
        """The zone of times for which neither the schedule nor the job names one."""
        return self._timezone

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The policy options of jobs made here that do not give them."""
        return dict(self._defaults)

    @property
    def poll(self) -> timedelta:
        """How often the store is looked at where no hint comes."""
        return self._settings.poll

    @property
    def workers(self) -> int:
        """How many runs this process works on at once; 0 for a client."""
        return self._settings.workers

    @property
    def started(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._engine is not None and self._opening is None

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader, which fires slots first; never true of a client."""
        return self._engine is not None and self._engine.leader.fires_first

    @overload
    def on(self, event: str) -> Callable[[L], L]: ...
    @overload
    def on(self, event: str, listener: Listener) -> Callable[[], None]: ...
    def on(
        self, event: str, listener: Listener | None = None
    ) -> Callable[[], None] | Callable[[L], L]:
        """Call `listener` (sync or async) with each `Event` of that name in this process. Returns
        a function that removes the listener. Without `listener` it is a decorator: the function
        below it listens, and stays as it is."""
        if listener is not None:
            return self._events.on(event, listener)

        def listen(function: L) -> L:
            self._events.on(event, function)
            return function

        return listen

    def __repr__(self) -> str:
        store = type(self.store).__name__ if self.url is None else without_password(self.url)
        return f"<{type(self).__name__} on {store}, {'started' if self.started else 'not started'}>"

    # Start and stop

    async def start(self) -> Self:
        """Open the store; a scheduler then stores its decorated jobs and begins to work. Does
        nothing if it is started. `async with` calls this, and `stop` at its end."""
        await self._start(asyncio.get_running_loop())
        return self

    async def stop(self) -> None:
        """Close the store."""
        await self._stop(graceful=True, seconds=0)

    def __enter__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is not opened by `with`: write `async with` in async code, or"
            " `with ….blocking:` in plain code"
        )

    def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> Self:
        starts = self._engine_loop is None
        await self.start()
        self._entered.append(starts)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._entered.pop():  # else another caller has started it, and stops it
            await self.stop()

    # Jobs

    def add_job(
        self,
        id: str,
        *others: Never,
        handler: str | JobLike | Callable[..., Any] | None = None,
        webhook: Given | None = None,
        schedule: ScheduleLike = None,
        replace: bool = False,
        dry_run: bool = False,
        defaults: PolicyOptions | None = None,
        **options: Unpack[JobOptions],
    ) -> Coroutine[Any, Any, Job]:
        """Store a job for a handler, or for a webhook: a URL, or an object with url, method,
        headers, body and so on (docs/reference/webhooks.md). A handler is the name of one, a
        decorated function, or any function, which a scheduler registers under the job's id.

        If there is a job of that id, it raises `JobExists`; with `replace=True` it replaces the
        definition and keeps `enabled`, so a program may call it at every start. A process that
        works on runs must have the handler itself; a client or a scheduler with `workers=0` may
        name one that another process has. A `dry_run` makes the same checks and stores nothing.
        `defaults` are policy options for this job that it does not give itself, instead of those
        of the scheduler.
        """
        if others or callable(id):  # at once: who writes this does not await it
            raise _other_form_of_add_job(id)
        definition = {"handler": handler, "webhook": webhook, "schedule": schedule, **options}

        def store(dry_run: bool) -> Coroutine[Any, Any, Job]:
            return self._store_job(id, definition, defaults, replace=replace, dry_run=dry_run)

        return store(dry_run) if webhook is None else self._store_webhooks(store, dry_run)

    async def _store_webhooks(
        self, store: Callable[[bool], Coroutine[Any, Any, T]], dry_run: bool
    ) -> T:
        """Store jobs with webhooks. A store's own key is made only for jobs that are stored, so
        they are checked without it first. `store` takes whether it is a dry run."""
        await self.load_secret_key(make=False)
        if self.webhooks.needs_store_key:
            with self.webhooks.vault.rehearse():
                rehearsed = await store(True)
            if dry_run:
                return rehearsed
            await self.load_secret_key()
        return await store(dry_run)

    async def _store_job(
        self,
        id: str,
        definition: Mapping[str, Any],
        defaults: PolicyOptions | None,
        *,
        replace: bool,
        dry_run: bool,
    ) -> Job:
        draft = self.draft(id, defaults=defaults, **definition)
        if not replace:
            return await self._call(self._jobs.create(draft, dry_run=dry_run))
        own_secret = _has_own_secret(definition)

        def keep_from_stored(draft: Job, stored: Job) -> Job:
            return replace_job(draft, stored, self.webhooks, own_secret=own_secret)

        return await self._call(self._jobs.put(draft, keep_from_stored, dry_run=dry_run))

    def draft(self, id: str, *, defaults: PolicyOptions | None = None, **definition: Any) -> Job:
        """The job that `add_job` would store for the same arguments. Does not read the store."""
        return new_job(
            id,
            self._registry,
            self.webhooks,
            self._timezone,
            defaults=self._defaults if defaults is None else check_defaults(defaults),
            handlers_elsewhere=self._may_name_any_handler,
            **definition,
        )

    @property
    def _may_name_any_handler(self) -> bool:
        """Whether a job may name a handler that this process does not have."""
        return not self.workers or self._registry.default is not None

    async def update_job(
        self, id: JobRef, *, expected_version: Job | None = None, **changes: Unpack[JobChanges]
    ) -> Job:
        """Change fields of a job made by `add_job`; what is not named stays. A `signing_secret`
        replaces that of a webhook, as `rotate_secret` does. `expected_version` is the job as you
        read it: if it was edited since, `JobChanged` is raised (a slot that fired is no edit)."""

        if "webhook" in changes or "signing_secret" in changes:
            await self.load_secret_key()

        def edit(job: Job, now: datetime) -> Job:
            return self.edited(job, now, changes)

        return await self._call(
            self._jobs.edit(job_id_of(id), edit, expected_version=expected_version)
        )

    def edited(self, job: Job, now: datetime, changes: Mapping[str, Any]) -> Job:
        """The job that `update_job` would store for these changes. Does not read the store."""
        return edit_job(
            job,
            changes,
            self._registry,
            self.webhooks,
            self._timezone,
            now,
            handlers_elsewhere=self._may_name_any_handler,
        )

    async def apply_jobs(
        self,
        file: str | Path,
        *,
        dry_run: bool = False,
        take_over: bool = False,
        with_handlers: bool = True,
    ) -> AppliedJobs:
        """Make the stored jobs of a file (docs/reference/mainspring-toml.md) equal to what the file
        says now: add, change and remove jobs, in one step, after everything was checked. Only jobs
        that came from a file of the same name are removed, and only if the file states its `name`.
        Returns what was done; with `dry_run` what would be.

        `take_over` also replaces jobs of these ids that code, the API or another file defines.
        `with_handlers=False` does not import the handlers: for a machine without their code.
        """
        jobs = read_job_file(file)

        def store(dry_run: bool) -> Coroutine[Any, Any, AppliedJobs]:
            return self._apply(
                jobs, dry_run=dry_run, take_over=take_over, with_handlers=with_handlers
            )

        has_webhook = any("webhook" in options for options in jobs.jobs.values())
        return await (self._store_webhooks(store, dry_run) if has_webhook else store(dry_run))

    async def _apply(
        self, jobs: JobSet, *, dry_run: bool, take_over: bool, with_handlers: bool
    ) -> AppliedJobs:
        drafts = self._draft_jobs(jobs, Owner.FILE, with_handlers=with_handlers)

        def keep_from_stored(draft: Job, stored: Job) -> Job:
            return adopt_job(
                draft,
                stored,
                self.webhooks,
                own_secret=draft.id in self._own_secrets,
                take_over=take_over,
            )

        kept: dict[str, Job] = {}

        def belongs(job: Job) -> bool:
            if job.owner is not Owner.FILE or job.file != jobs.name:
                return False
            if not jobs.states_name and job.id not in jobs.jobs:
                kept[job.id] = job
            return jobs.states_name

        with jobs.add_error_places():
            pairs = await self._call(
                self._jobs.replace_all(drafts, keep_from_stored, belongs, dry_run=dry_run)
            )
        return applied_jobs(jobs.name or "", pairs, list(kept.values()), dry_run=dry_run)

    def _draft_jobs(self, jobs: JobSet, owner: Owner, *, with_handlers: bool = True) -> list[Job]:
        """The jobs of a set, checked; their handlers are imported and registered."""
        if with_handlers:
            jobs.register_handlers(self._registry)
        self._own_secrets |= {id for id, options in jobs.jobs.items() if _has_own_secret(options)}
        defaults = {**self._defaults, **jobs.defaults}

        def draft(id: str, **options: Any) -> Job:
            return new_job(
                id,
                self._registry,
                self.webhooks,
                jobs.timezone or self._timezone,
                defaults=defaults,
                owner=owner,
                file=jobs.name,
                handlers_elsewhere=self._may_name_any_handler,
                **options,
            )

        return jobs.collect(draft)

    def _keep_secrets(self, draft: Job, stored: Job) -> Job:
        own_secret = draft.id in self._own_secrets
        return keep_secrets(draft, stored, self.webhooks, own_secret=own_secret)

    async def load_secret_key(self, *, make: bool = True) -> None:
        """Get ready to encrypt and decrypt secrets of webhooks: on a shared store without
        MAINSPRING_SECRET_KEY the key is in the store, and is made if need be. Methods that store a
        webhook do it. `make=False`: only read it."""
        self._running()
        if self.webhooks.can_read_store_key:  # else a trip to the engine's loop for nothing
            await self._call(self.webhooks.load_store_key(make=make))

    async def rotate_secret(
        self, id: str, *, old_valid_for: Span = "24h", secret: str | None = None
    ) -> str:
        """Give a webhook job another signing secret, and return it; it is not shown again. For
        `old_valid_for` requests are also signed with the old one, so that receivers have time to
        change."""
        await self.load_secret_key()
        shown: list[str] = []

        def rotate(job: Job, now: datetime) -> Job:
            webhook, new_secret = self.webhooks.rotate_secret(
                job, now, old_valid_for=old_valid_for, secret=secret
            )
            shown[:] = [new_secret]
            return replace(job, webhook=webhook)

        await self._call(self._jobs.edit(id, rotate))
        return shown[0]

    async def reseal_secrets(self) -> int:
        """Encrypt again, with the newest key, every secret that an older key encrypted. Returns
        the number of jobs changed."""
        await self.load_secret_key()
        webhooks = self.webhooks
        return await self._call(self._jobs.edit_all(webhooks.has_old_secrets, webhooks.reseal))

    async def remove_job(
        self, id: JobRef, *, force: bool = False, expected_version: Job | None = None
    ) -> None:
        """Delete a job and cancel its pending runs. Running ones may end, but are not retried.
        `force` also removes a job that code owns, for when that code is gone. `expected_version`:
        see `update_job`."""
        await self._call(
            self._jobs.remove(job_id_of(id), force=force, expected_version=expected_version)
        )

    async def pause_job(self, id: JobRef, *, expected_version: Job | None = None) -> Job:
        """Fire no slots of the job until it is resumed. It can still be triggered.
        `expected_version`: see `update_job`."""
        return await self._call(
            self._jobs.set_enabled(job_id_of(id), False, expected_version=expected_version)
        )

    async def resume_job(self, id: JobRef, *, expected_version: Job | None = None) -> Job:
        """Fire slots of a paused job again, from now on. `expected_version`: see `update_job`."""
        return await self._call(
            self._jobs.set_enabled(job_id_of(id), True, expected_version=expected_version)
        )

    async def reset_breaker(self, id: JobRef) -> bool:
        """Close the circuit breaker of a job by hand, on all nodes: its failures are forgotten, and
        the runs that it has put off start now. Returns whether it was open or half-open;
        `InvalidState` if the job has no breaker."""
        return await self._call(self._jobs.reset_breaker(job_id_of(id)))

    async def open_breakers(self) -> dict[str, BreakerStatus]:
        """The circuit breakers that are open or half-open, by job id, as all nodes see them."""
        return await self._call(open_breakers(self._running().store))

    async def pause_jobs(self, ids: JobRef | Iterable[JobRef]) -> dict[str, MainspringError | None]:
        """Pause many jobs, up to 1,000 in one commit. Returns for each id None, or the error that
        `pause_job` would raise; an error of one job does not stop the others."""
        return await self._set_many_enabled(ids, False)

    async def resume_jobs(
        self, ids: JobRef | Iterable[JobRef]
    ) -> dict[str, MainspringError | None]:
        """Resume many jobs. Returns what `pause_jobs` returns."""
        return await self._set_many_enabled(ids, True)

    async def _set_many_enabled(
        self, ids: JobRef | Iterable[JobRef], enabled: bool
    ) -> dict[str, MainspringError | None]:
        return await self._call(self._jobs.set_many_enabled(named_ids(ids, "ids"), enabled))

    async def remove_jobs(
        self, ids: JobRef | Iterable[JobRef], *, force: bool = False
    ) -> dict[str, MainspringError | None]:
        """Delete many jobs as `remove_job` does. Returns what `pause_jobs` returns."""
        return await self._call(self._jobs.remove_many(named_ids(ids, "ids"), force=force))

    async def prune_orphans(self, *, dry_run: bool = False, force: bool = False) -> list[Job]:
        """Delete the jobs that code defined and whose handler no live worker has: their function
        was renamed or removed. Their pending runs are cancelled. Returns the jobs; a `dry_run`
        deletes none. Jobs made by `add_job` or the HTTP API are never among them. While no worker
        is alive this raises `InvalidState`; `force` deletes even then."""
        engine = self._running()

        async def prune() -> list[Job]:
            workers = await engine.live_workers.read_workers()
            return await engine.job_operations.prune_orphans(workers, dry_run=dry_run, force=force)

        return await self._call(prune())

    async def pause_all(self) -> datetime:
        """Fire no slots of any job, on any node, until `resume_all`. Jobs are not changed, and what
        is enqueued or triggered still runs. Every node sees it within about a second, also one that
        starts later. Returns since when all firing is paused."""
        return await self._call(self._jobs.pause_firing())

    async def resume_all(self) -> bool:
        """Fire slots again, from now on: those that have passed meanwhile do not run, and each job
        keeps one skipped run that counts them. A job that is paused by itself stays paused. False
        if firing was not paused."""
        return await self._call(self._jobs.resume_firing())

    async def paused_since(self) -> datetime | None:
        """Since when all firing is paused by `pause_all`, or None."""
        return await self._call(self._jobs.paused_since())

    async def get_job(self, id: JobRef) -> Job:
        """The job of this id; `JobNotFound` if there is none."""
        return await self._call(statistics.get_job(self._running(), job_id_of(id)))

    async def list_jobs(
        self,
        *,
        ids: JobRef | Iterable[JobRef] | None = None,
        tag: str | None = None,
        queue: str | None = None,
        enabled: bool | None = None,
        search: str | None = None,
        order: JobOrder = "id",
        descending: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        offset: int = 0,
        with_total: bool = False,
        last_runs: bool = True,
    ) -> Page[Job]:
        """Jobs in the order of their ids, or of another field that `order` names; jobs without a
        value of it come last. By `last_run_at` they are ordered by the last slot that fired.
        `search` looks into ids and descriptions. The `cursor` of one page fetches the next (only
        in the order of ids), or `offset` skips that many. `with_total` also counts all that match,
        as the page's `total`. `last_runs=False` saves the lookup of each job's last run:
        `last_run_at` is then the last slot that fired."""
        query = JobQuery(
            ids=None if ids is None else frozenset(named_ids(ids, "ids")),
            tag=tag,
            queue=queue,
            enabled=enabled,
            text=search,
            order=job_order(order, descending=descending, cursor=cursor),
            descending=descending,
            limit=page_limit(limit),
            cursor=cursor,
            offset=page_offset(offset),
            with_total=with_total,
        )
        return await self._call(statistics.list_jobs(self._running(), query, last_runs=last_runs))

    # Runs

    async def enqueue(
        self, job_id: JobRef, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run:
        """Queue one run. Options: delay, at, priority, queue, dedupe_key, dedupe_for, after,
        after_failure, within."""
        within = options.pop("within", None)
        [run] = await self._enqueue([_batch(job_id, [payload], options)], within=within)
        return run

    async def enqueue_many(
        self,
        job_id: JobRef | Iterable[Enqueue],
        payloads: Iterable[Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[Run]:
        """Queue a run for each payload, all in one commit. Returns the runs in the same order.

        For runs of several jobs, or with options of their own, give a list instead:
        `enqueue_many([Enqueue("mail", {"to": "ada"}, delay="5m"), Enqueue("report")])`."""
        within = options.pop("within", None)
        if payloads is None:
            return await self._enqueue(_batches(job_id, options), within=within)
        return await self._enqueue([_batch(job_id, list(payloads), options)], within=within)

    async def chain(
        self,
        *links: JobRef | tuple[JobRef, Any],
        after_failure: Literal["skip", "run"] | None = None,
    ) -> list[Run]:
        """Queue a run of each job, each after the one before it, all in one commit. Returns the
        runs in order.

        A link is a job, or a job with its payload: `chain(extract, ("load", {"table": "orders"}))`.
        If a run does not succeed, those after it are skipped; with `after_failure="run"` they run.
        Without it each job's own `after_failure` decides.
        """
        if not links:
            raise InvalidInput("a chain needs at least one job", field="links")
        if after_failure is not None:
            Policy.make(after_failure=after_failure)
        self._refuse_in_transaction()
        named = [link if isinstance(link, tuple) else (link, None) for link in links]
        for link in named:
            if len(link) != 2:
                rule = "is a job, or a job and its payload"
                raise refused("links", link, rule, subject="a link of a chain")
        batches = traced([_batch(job, [payload], {}) for job, payload in named])
        checked = await self._checked(batches)
        return await self._call(self._runs.chain(checked, after_failure, self._zone))

    async def workflow(self, id: JobRef, *, searched: int = SEARCHED_RUNS) -> Workflow:
        """The workflow that a job or a run belongs to, as a graph. `id` is a job or a run id.
        `print(workflow.text())` draws it; `workflow.to_dict()` is for programs.

        Of the newest runs, `searched` are searched for those that were enqueued with `after` and
        have ended. Where that did not reach back far enough, `complete` is False."""
        if isinstance(searched, bool) or not isinstance(searched, int) or searched < 0:
            raise refused("searched", searched, "is a number of runs, 0 or more")
        return await self._call(read_workflow(self._running(), job_id_of(id), searched))

    async def trigger(
        self, job_id: JobRef, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run:
        """Run a job now, also a paused one. Options are those of `enqueue`."""
        within = options.pop("within", None)
        batch = _batch(job_id, [payload], options)
        [run] = await self._enqueue([batch], Source.TRIGGER, within=within)
        return run

    async def backfill(
        self,
        job_id: JobRef,
        start: datetime,
        end: datetime,
        *,
        limit: int | None = None,
        priority: int = 0,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backfill:
        """Run the slots of a job from `start` up to, but not at, `end` that have not run.

        Each slot has one run (`ctx.scheduled_at` is the slot), so a call that is repeated, or that
        was stopped half-way, adds what is missing. Runs that exist are left alone; a slot that was
        skipped gets a run beside the skipped one. `limit` is how many runs to add, earliest slot
        first; without it at most 1,000 slots are allowed. Overlap does not apply, `concurrency`
        does. A `dry_run` adds nothing. `progress(done, total)` is called after each batch of slots,
        on the caller's event loop or, from plain code, in its thread; its error ends the backfill.
        """
        first, last = aware_time(start, "start"), aware_time(end, "end")
        if first is None or last is None:
            missing = "start" if first is None else "end"
            why = (
                f"a backfill needs `start` and `end` (aware datetimes), and `{missing}` is missing"
            )
            raise InvalidInput(why, field=missing)
        plan = BackfillPlan(start=first, end=last, limit=limit, priority=priority, dry_run=dry_run)
        loop = asyncio.get_running_loop()

        async def report(done: int, total: int) -> None:
            if progress is not None:
                await call_on(loop, progress, done, total)

        return await self._call(self._runs.backfill(job_id_of(job_id), plan, report))

    @overload
    async def get_run(self, run_id: Run[R]) -> Run[R]: ...
    @overload
    async def get_run(self, run_id: str) -> Run: ...
    async def get_run(self, run_id: RunRef) -> Run:
        """The run of this id, or a `Run` as it is now; `RunNotFound` if there is none."""
        return await self._call(self._runs.get_run(run_id_of(run_id)))

    async def list_runs(
        self,
        *,
        job: JobRef | None = None,
        state: State | str | Iterable[State | str] | None = None,
        failing: bool = False,
        timed_out: bool = False,
        tried: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        brief: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Runs, newest first. The `cursor` of one page fetches the next. `since` and `until` bound
        when they were created. `failing`: only those with a failed attempt, however they ended.
        `timed_out`: only those of which an attempt timed out; they are searched among those with a
        failed attempt, so a page may have fewer runs than `limit`, and still a cursor. `tried`:
        only those with an attempt, also one under way. `brief` leaves out `payload`, `result` and
        `attempts` with their logs, which can be 2 MB for one run."""
        query = RunQuery(
            job=None if job is None else job_id_of(job),
            states=state_set(state),
            failing=failing,
            tried=tried,
            brief=brief,
            since=aware_time(since, "since"),
            until=aware_time(until, "until"),
            limit=page_limit(limit),
            cursor=cursor,
        )
        store = self._running().store
        return await self._call(find_timed_out(store, query) if timed_out else store.find(query))

    async def newest_runs(
        self,
        jobs: Iterable[JobRef],
        *,
        state: State | str | Iterable[State | str] | None = None,
        limit: int = 100,
    ) -> dict[str, list[Run]]:
        """The newest runs of each of these jobs, at most `limit` of each, at the cost of one read
        of the store. They are brief, as in `list_runs`. A job without runs is left out."""
        query = RunQuery(
            jobs=frozenset(map(job_id_of, jobs)),
            states=state_set(state),
            brief=True,
            limit=page_limit(limit),
        )
        by_job: dict[str, list[Run]] = {}
        for run in (await self._call(self._running().store.find(query))).items:
            by_job.setdefault(run.job_id, []).append(run)
        return by_job

    @overload
    async def wait(self, run_id: Run[R], timeout: Span | None = None) -> Run[R]: ...
    @overload
    async def wait(self, run_id: str, timeout: Span | None = None) -> Run: ...
    async def wait(self, run_id: RunRef, timeout: Span | None = None) -> Run:
        """Wait until the run (a `Run` or its id) has ended, and return it. Raises TimeoutError
        after `timeout`."""
        seconds = None if timeout is None else duration(timeout, what="timeout").total_seconds()
        return await self._call(self._running().run_waiters.wait(run_id_of(run_id), seconds))

    async def cancel(self, run_id: RunRef, *, reason: str = "cancelled by request") -> bool:
        """Cancel a run; it stays cancelled. False if it had ended already."""
        return await self._call(self._runs.cancel(run_id_of(run_id), reason))

    async def retry(self, run_id: RunRef) -> Run:
        """Make a failed or cancelled run pending again. It is the same run, and its failures no
        longer count."""
        return await self._call(self._runs.retry(run_id_of(run_id)))

    # Many runs: those named, or all that match (at most 10,000 in a call)

    async def cancel_runs(
        self,
        ids: Iterable[str] | None = None,
        *,
        reason: str = "cancelled by request",
        **matching: Unpack[RunFilter],
    ) -> Matched:
        """Cancel runs by id, or all that match `job`, `state`, `failing`, `since`, `until`."""
        query, named = matching_runs(ids, matching)
        return await self._call(self._runs.cancel_many(query, named, reason))

    async def retry_runs(
        self, ids: Iterable[str] | None = None, **matching: Unpack[RunFilter]
    ) -> Matched:
        """Try failed and cancelled runs again, by id or all that match."""
        return await self._call(self._runs.retry_many(*matching_runs(ids, matching)))

    async def remove_runs(
        self, ids: Iterable[str] | None = None, **matching: Unpack[RunFilter]
    ) -> Matched:
        """Delete finished runs, by id or all that match. A run that still holds a dedupe key stays
        until the key is free, and one that an unfinished run comes after stays until that one has
        finished."""
        return await self._call(self._runs.remove_many(*matching_runs(ids, matching)))

    # State of jobs, runs and workers

    async def stats(self) -> Stats:
        """How many jobs there are, how many runs are unfinished and how many have ever ended, by
        state, and what this process does."""
        return await self._call(statistics.stats(self._running(), self._settings))

    async def counts(
        self, since: datetime | None = None, jobs: JobRef | Iterable[JobRef] | None = None
    ) -> Counts:
        """Unfinished runs by job and state, what is due of each handler, how many runs have ended
        in each state, and how many of them in the minutes `since` a moment. With `jobs`, only what
        was counted of the ended runs of these jobs, `since` a moment by the hour."""
        names = None if jobs is None else frozenset(named_ids(jobs, "jobs"))
        return await self._call(self._running().store.counts(aware_time(since, "since"), names))

    async def health(self) -> SchedulerHealth:
        """Whether the store answers and this process does its work."""
        return await self._call(statistics.health(self._running(), self._settings))

    async def job_health(self, id: JobRef) -> JobHealth:
        """The health of a job: healthy, failing too often, overdue, paused, or without a worker.
        Costs the same however many runs the job had."""
        return await self._call(statistics.job_health(self._running(), job_id_of(id)))

    async def jobs_health(self, jobs: Sequence[Job]) -> list[JobHealth]:
        """The same of each of these jobs, as they were read. It costs a few reads of the store for
        all of them together."""
        return await self._call(statistics.jobs_health(self._running(), jobs))

    async def job_metrics(self, id: JobRef, window: Span = "24h") -> JobMetrics:
        """How often a job succeeded, how long it took and how late it started, within a window of
        1 hour to 8 days up to now. Costs the same however many runs the job had."""
        return await self._call(statistics.job_metrics(self._running(), job_id_of(id), window))

    async def explain(self, job_or_run: JobRef, at: datetime | None = None) -> Explanation:
        """Why a run has not run, or not yet; why a job does not run now; or, with `at`, why it did
        not run at that moment. The answer has a `code` for programs, a `sentence` for people, and
        the `facts` behind it."""
        moment = aware_time(at, "at")
        return await self._call(explain(self._running(), job_id_of(job_or_run), moment))

    async def list_workers(self) -> list[LiveWorker]:
        """The processes that work on this store's runs: their handlers and queues, node, version,
        capacity, memory and last sign of life, and which of them leads. One that was killed is
        listed for up to a minute."""
        return await self._call(self._running().live_workers.list_workers())

    async def list_unreadable(self, limit: int = 100) -> tuple[list[Job], list[Run]]:
        """Jobs and runs whose records this version cannot read (damaged, or written by a newer
        version): up to `limit` of each, with the cause in `unreadable`. No process changes them.
        All jobs are searched; of runs those set aside and the newest 1,000 of each state."""
        return await self._call(find_unreadable(self._running().store, page_limit(limit)))

    async def forecast(
        self, days: int = 30, *, start: datetime | None = None, timezone: str | None = None
    ) -> Forecast:
        """The load that the stored jobs' schedules make in the next `days`, or from `start` on:
        by hour and weekday, what collides, what changes of the clocks do, which jobs take longer
        than their interval, and how to spread them. Hours are those of `timezone`, by default the
        client's. It reads jobs and runs, and changes nothing."""
        begin = aware_time(start, "start") or await self.now()
        jobs = await self._call(statistics.all_jobs(self._running()))
        zone = timezone or self._timezone
        # In a thread: thousands of jobs take seconds, and this loop may have other work.
        forecast = await asyncio.to_thread(forecast_load, jobs, begin, days, zone)
        durations = await self._call(statistics.p95_durations(self._running(), forecast.jobs))
        return add_overruns(forecast, jobs, durations)

    # Notes: small values that a program keeps beside its jobs

    async def note(self, kind: str, name: str) -> Note | None:
        """The note of this kind and name, or None."""
        return await self._call(read_note(self._running().store, kind, name))

    async def list_notes(
        self, kind: str, *, limit: int = 1000, cursor: str | None = None
    ) -> Page[Note]:
        """The notes of a kind, by name; `cursor` of one page fetches the next."""
        query = NoteQuery(kind=kind, limit=page_limit(limit), cursor=cursor)
        return await self._call(self._running().store.notes(query))

    async def put_note(self, note: Note) -> int | None:
        """Write a note by compare-and-set: its new version, or None if another came first.
        Mainspring's own kinds (`mainspring.…`, `breaker`, `rate`, `worker`) are refused."""
        check_key(note.kind, "a note's kind")
        _refuse_reserved(note.kind)
        check_key(note.name, "a note's name")
        [version] = await self._call(self._running().store.put_notes([NoteWrite.put(note)]))
        return version

    async def remove_note(self, kind: str, name: str) -> bool:
        """Delete a note. False if there was none. Kinds are refused as by `put_note`."""
        _refuse_reserved(kind)
        write = NoteWrite.drop(kind, name)
        [version] = await self._call(self._running().store.put_notes([write]))
        return version is not None

    # Time

    async def now(self) -> datetime:
        """The time by the store's clock."""
        return await self._call(self._running().store.now())

    def store_time(self) -> datetime:
        """The store's time, from its last reading; before start, this machine's time."""
        return self._clock.now() if self._engine is None else self._engine.time.now()

    # In another application

    def asgi(self, *, auth: str | None = "keys", **settings: Any) -> Any:
        """The HTTP API and the dashboard as an ASGI application, to mount in one of yours. It needs
        an API key (`mainspring keys create`) unless you say `auth=None`, because you guard it
        yourself.
        Settings: rate_limit, body_limit, job_retry_attempts, job_retry_delay."""
        if auth not in ("keys", None):
            raise InvalidInput(f"auth is 'keys' or None, not {auth!r}", field="auth", given=auth)
        # By name: both are layers above this one, and most programs never need them.
        import_module("mainspring.service").require_server()
        return import_module("mainspring.dashboard.app").create_mounted_app(
            self, settings, without_keys=auth is None
        )

    # Steps

    async def _enqueue(
        self,
        batches: Sequence[EnqueueBatch],
        source: Source = Source.ENQUEUE,
        *,
        within: Any = None,
    ) -> list[Run]:
        """Queue a run for each payload of each batch."""
        batches = traced(batches)
        if within is not None:
            return await self._enqueue_within(batches, source, within)
        self._refuse_in_transaction()
        self._running()
        checked = await self._checked(batches)
        if (facts := self._facts_for_this_loop(checked)) is not None:
            return await self._runs.add(checked, facts, self._zone, source)
        return await self._call(self._runs.enqueue(checked, self._zone, source))

    async def _checked(self, batches: Sequence[EnqueueBatch]) -> list[EnqueueBatch]:
        """The batches, checked in the caller's thread by the handlers that this process has."""
        unchecked = {batch.job_id for batch in batches if batch.checked_by is None}
        targets = await self._find_targets(list(unchecked)) if unchecked else {}
        checked = []
        for batch in batches:
            handler, job_payload = targets.get(batch.job_id, (None, None))
            if batch.checked_by is None and handler is not None:
                payloads = check_payloads(handler, batch.payloads, job_payload)
                batch = dataclasses.replace(batch, payloads=payloads, checked_by=handler)
            checked.append(batch)
        return checked

    def _facts_for_this_loop(self, batches: Sequence[EnqueueBatch]) -> EnqueueFacts | None:
        """What an enqueue needs to know, if it needs no turn of the engine's loop."""
        ready = self._opening is None and self._stopping is None
        return self._runs.facts_for_any_loop(batches) if ready else None

    async def _enqueue_within(
        self, batches: Sequence[EnqueueBatch], source: Source, within: Any
    ) -> list[Run]:
        """The same in the caller's transaction. Its connection belongs to this thread or loop, so
        the store sends its statements from here. Most enqueues need no turn of the engine's loop:
        that took longer than they do."""
        if not (self._takes_within and self.started):
            self._check_within()
        job_ids = {batch.job_id for batch in batches}
        facts = self._runs.known_facts(job_ids)
        if facts is None:
            facts = await self._call(self._runs.read_facts(job_ids, source))
        plan = self._runs.plan(batches, facts, self._zone, source)
        return plan.results(await self._running().store.add(plan.runs, within=within))

    async def _find_targets(self, job_ids: Sequence[str]) -> dict[str, Target]:
        """The handlers and payloads of jobs, to check what is enqueued in the caller's thread."""
        handlers = map(self._registry.get, self._registry.names())
        if all(handler.built_in for handler in handlers):  # of no use: these are checked there
            return dict.fromkeys(job_ids, (None, None))
        return await self._call(self._runs.find_targets(job_ids))

    def _refuse_in_transaction(self) -> None:
        context = CONTEXT_IN_TRANSACTION.get()
        if context is not None and context.in_transaction:
            raise InvalidState(
                f"run {context.run_id} is in its transaction, and what is enqueued would be no part"
                " of it: give the block's session as `within`, enqueue before the block, or have a"
                " job come after this one"
            )

    def _check_within(self) -> None:
        info = self._store.info()
        if info.within is None:
            raise InvalidInput(
                f"within cannot be used: {info.location} takes part in no transaction of yours."
                " The stores on PostgreSQL, SQLite and MongoDB do",
                field="within",
            )
        if info.file is not None and not self.started:
            raise NotStarted(
                "to open the file, Mainspring has to write to it, and your transaction may hold its"
                f" lock: start the {self._name} before your transaction begins"
            )
        self._takes_within = True

    @property
    def _jobs(self) -> JobOperations:
        return self._running().job_operations

    @property
    def _runs(self) -> RunOperations:
        return self._running().run_operations

    async def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop, once the store is open."""
        if self._opening is not None:
            try:
                await self._wait_until_open(self._opening)
            except BaseException:
                coroutine.close()
                raise
        if self._engine_loop is None:
            coroutine.close()
            raise NotStarted(self._how_to_start)
        return await self._engine_loop.call(coroutine)

    def _running(self) -> Engine:
        """The engine, perhaps still opening its store: only `_call` uses it, which waits."""
        self._refuse_fork()
        return self._open_at_first_use() if self._engine is None else self._engine

    def _wait_for(self, coroutine: Coroutine[Any, Any, T], called: str, instead: str) -> T:
        """Run a coroutine of this client in plain code (see `WaitFor`)."""
        return wait_in_plain_code(coroutine, called, instead, self._running)

    @property
    def _is_forked(self) -> bool:
        """Whether it was started in another process, of which this one is a fork."""
        return self._engine_loop is not None and self._pid != os.getpid()

    def _refuse_fork(self) -> None:
        if self._is_forked:
            raise InvalidState(
                f"this {self._name} was started in process {self._pid}, and this is a fork of it"
                f" (process {os.getpid()}), which has none of its threads. Start a {self._name}"
                " after the fork, in each process that needs it: with gunicorn without --preload,"
                ' or in its post_fork hook; with multiprocessing by the method "spawn", or in the'
                " child"
            )

    async def _start(
        self, program_loop: asyncio.AbstractEventLoop, jobs: Sequence[Job] = ()
    ) -> None:
        """Start the engine on its own loop; it stores `jobs` first. Async handlers, listeners and
        hooks run on `program_loop`. Returns at once if it is started."""
        self._refuse_fork()
        await self._wait_for_others()
        if self._engine_loop is not None:
            if self._opening is not None:  # by its first use
                await self._wait_until_open(self._opening)
            return
        starting = self._starting = concurrent.futures.Future()
        try:
            resources: Mapping[str, Any] = {}
            if self._resources and self._settings.workers:
                self._resource_keeper = ResourceKeeper(self._resources)
                resources = await self._resource_keeper.open()
            engine, engine_loop = self._make_engine(program_loop, resources)
            jobs = [*jobs, *self._jobs_in_code.values()]  # also those of modules imported just now
            await engine_loop.call(self._start_engine(engine, jobs))
        except BaseException as error:
            await self._start_failed(error)
            raise
        finally:
            self._starting = None
            starting.set_result(None)

    def _open_at_first_use(self) -> Engine:
        """Make the engine and begin to open the store. `_call` waits until it is open."""
        with self._start_lock:
            if self._engine is not None:  # another thread was first
                return self._engine
            if self._inline or self._was_stopped or not self.opens_itself:
                raise NotStarted(self._how_to_start)
            self._settings = self._settings.changed(workers=0)  # it only enqueues and controls
            self._own_loop = LoopThread("mainspring-listeners")
            engine, engine_loop = self._make_engine(self._own_loop.loop, {})
            self._opened_itself = True
            atexit.register(self._close_at_exit)
            asyncio.run_coroutine_threadsafe(self._open_engine(engine), engine_loop.loop)
            return engine

    async def _open_engine(self, engine: Engine) -> None:
        try:
            await self._start_engine(engine, [*self._jobs_in_code.values()])
        except BaseException as error:
            self._fail_opening(error)

    async def _wait_until_open(self, opening: concurrent.futures.Future[None]) -> None:
        try:
            await asyncio.shield(asyncio.wrap_future(opening))
        except BaseException as error:
            # An explicit start cleans up itself; after a first use the first caller does.
            if opening.done() and self._opening is opening and self._starting is None:
                await self._start_failed(error)
            raise

    async def _start_failed(self, error: BaseException) -> None:
        engine_loop, own_loop = self._engine_loop, self._own_loop
        self._fail_opening(error)
        self._opening = self._engine = self._engine_loop = None
        if engine_loop is not None:
            await engine_loop.close()
        await self._close_resources()
        if own_loop is not None and self._opened_itself:
            self._own_loop, self._opened_itself = None, False
            await own_loop.close_from_loop()

    def _fail_opening(self, error: BaseException) -> None:
        if self._opening is not None and not self._opening.done():
            cancelled = NotStarted(f"the start of the {self._name} was cancelled")
            self._opening.set_exception(error if isinstance(error, Exception) else cancelled)

    def _close_at_exit(self) -> None:
        self._stop_from_plain_code(self.stop)

    def _make_engine(
        self, program_loop: asyncio.AbstractEventLoop, resources: Mapping[str, Any]
    ) -> tuple[Engine, EngineLoop]:
        self._was_stopped = False
        self._opening = concurrent.futures.Future()
        self._program_loop = program_loop
        engine_loop = self._engine_loop = EngineLoop(inline=self._inline)
        self._pid = os.getpid()
        self._events.deliver_on(program_loop)
        engine = self._engine = Engine(
            self._store,
            self._clock,
            self._registry,
            self._settings,
            events=self._events,
            rng=self._rng,
            resources=resources,
            warn_of_new_store=self.warns_of_new_store,
        )
        return engine, engine_loop

    async def _start_engine(self, engine: Engine, jobs: Sequence[Job]) -> None:
        opening = self._opening
        assert opening is not None

        def opened() -> None:
            self._opening = None
            opening.set_result(None)

        await engine.start(
            self._program_loop,
            jobs,
            inline=self._inline,
            keep_from_stored=self._keep_secrets,
            opened=opened,
        )

    async def _wait_for_others(self) -> None:
        """Wait for the end of another caller's start or stop that is under way."""
        while (under_way := self._starting or self._stopping) is not None:
            await asyncio.shield(asyncio.wrap_future(under_way))

    async def _stop(self, *, graceful: bool, seconds: float) -> None:
        if self._is_forked:  # its threads are in the other process
            return
        await self._wait_for_others()
        if self._opening is not None:
            with contextlib.suppress(Exception):  # its caller gets the error
                await self._wait_until_open(self._opening)
        if self._engine is None or self._engine_loop is None:
            return
        engine, engine_loop = self._engine, self._engine_loop
        stopping = self._stopping = concurrent.futures.Future()
        try:
            if self._before_close:
                await engine_loop.call(engine.drain(timeout=seconds if graceful else 0.0))
                calls = [call() for call in self._before_close]
                await asyncio.gather(*calls, return_exceptions=True)
            await engine_loop.call(engine.stop(graceful=graceful, timeout=seconds))
            self._was_stopped = True
            self._engine = self._engine_loop = None
            await asyncio.sleep(0)
            await self._events.drained()
            await self._close_resources()
            await engine_loop.call(self.webhooks.close())
            await engine_loop.close()
            if self._opened_itself:
                self._opened_itself = False
                atexit.unregister(self._close_at_exit)
                own_loop = self._own_loop
                if own_loop is not None and asyncio.get_running_loop() is not own_loop.loop:
                    self._own_loop = None
                    await own_loop.close_from_loop()
        finally:
            self._stopping = None
            stopping.set_result(None)

    async def _close_resources(self) -> None:
        keeper, self._resource_keeper = self._resource_keeper, None
        if keeper is not None:
            await keeper.close()

    def _start_from_plain_code(self) -> None:
        """Start with an event loop in a thread, for async handlers and listeners."""
        with self._start_lock:
            self._refuse_fork()
            if self._engine_loop is not None:
                run_in_this_thread(self._start(self._program_loop))  # waits until it has started
                return
            self._own_loop = LoopThread("mainspring-handlers")
            try:
                self._own_loop.wait_for(self._start(self._own_loop.loop))
            except BaseException:
                self._own_loop.close()
                self._own_loop = None
                raise

    def _stop_from_plain_code(self, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._engine_loop is None or self._is_forked:
            return
        asyncio.run_coroutine_threadsafe(stop(), self._program_loop).result()
        if self._own_loop is not None:
            self._own_loop.close()
            self._own_loop = None


def _refuse_reserved(kind: str) -> None:
    if note_kinds.is_reserved(kind):
        raise InvalidInput(
            f"notes of the kind {kind!r} belong to Mainspring: choose another kind",
            field="kind",
            given=kind,
        )


def _other_form_of_add_job(job: object) -> InvalidInput:
    """The error of `add_job(tick, "interval", seconds=5)`, which other schedulers take."""
    name = getattr(job, "__name__", "tick")
    return InvalidInput(
        "add_job takes the id of the job, and the rest by name: write `await"
        f' scheduler.add_job({name!r}, handler={name}, schedule="5m")`, or `@scheduler.job("5m")`'
        ' above the function. A schedule is an interval ("5m") or a cron expression'
        ' ("30 9 * * 1-5")',
        field="id",
    )


def _batch(job: Any, payloads: list[Any], options: EnqueueOptions) -> EnqueueBatch:
    return EnqueueBatch(job_id_of(job), payloads, CheckedEnqueueOptions.of(options))


def traced(batches: Sequence[EnqueueBatch]) -> Sequence[EnqueueBatch]:
    """The batches with the caller's trace context, if there is one."""
    trace = current_trace()
    return batches if trace is None else [dataclasses.replace(b, trace=trace) for b in batches]


def _batches(items: Any, options: EnqueueOptions) -> list[EnqueueBatch]:
    """A batch of each `Enqueue` that `enqueue_many` is given."""
    listed = list(items) if isinstance(items, Iterable) and not isinstance(items, str) else [items]
    if options or not all(isinstance(item, Enqueue) for item in listed):
        raise InvalidInput(
            "enqueue_many takes a job and a list of payloads, or a list of Enqueue(job, payload,"
            " …), each with options of its own",
            field="payloads",
        )
    if any(item.options.within is not None for item in listed):
        raise InvalidInput(
            "all runs of a call are added in one transaction: give within to enqueue_many itself",
            field="within",
        )
    return [EnqueueBatch(item.job_id, [item.payload], item.options) for item in listed]


def _has_own_secret(options: Mapping[str, Any]) -> bool:
    webhook = options.get("webhook")
    return isinstance(webhook, Mapping) and webhook.get("signing_secret") is not None


class BlockingClient:
    """The methods of a client for plain code: each calls the async one and waits for its result.

    Works in any thread that runs no event loop; sync handlers may use it too. `with
    client.blocking:` opens and closes the client.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = client._name

    def start(self) -> None:
        refuse_running_loop(f"{self.name}.blocking.start", f"{self.name}.start()")
        self.client._start_from_plain_code()

    def stop(self) -> None:
        refuse_running_loop(f"{self.name}.blocking.stop", f"{self.name}.stop()")
        self.client._stop_from_plain_code(self.client.stop)

    def __enter__(self) -> Self:
        starts = self.client._engine_loop is None
        self.start()
        self.client._entered.append(starts)
        return self

    def __exit__(self, *error: object) -> None:
        if self.client._entered.pop():
            self.stop()

    def wait_for(
        self,
        coroutine: Coroutine[Any, Any, T],
        called: str = "blocking.wait_for",
        instead: str = "the coroutine itself",
    ) -> T:
        """Run a coroutine in this thread and wait for its result. Where an event loop runs here,
        the error names `called`, and what to await `instead`."""
        return self.client._wait_for(coroutine, called, instead)

    @overload
    def get_run(self, run_id: Run[R]) -> Run[R]: ...
    @overload
    def get_run(self, run_id: str) -> Run: ...
    def get_run(self, run_id: RunRef) -> Run:
        name = self.name
        reading = self.client.get_run(run_id)
        return self.wait_for(reading, f"{name}.blocking.get_run", f"{name}.get_run(…)")

    @overload
    def wait(self, run_id: Run[R], timeout: Span | None = None) -> Run[R]: ...
    @overload
    def wait(self, run_id: str, timeout: Span | None = None) -> Run: ...
    def wait(self, run_id: RunRef, timeout: Span | None = None) -> Run:
        name = self.name
        waiting = self.client.wait(run_id, timeout)
        return self.wait_for(waiting, f"{name}.blocking.wait", f"{name}.wait(…)")

    # Jobs
    add_job = BlockingMethod(Client.add_job)
    apply_jobs = BlockingMethod(Client.apply_jobs)
    update_job = BlockingMethod(Client.update_job)
    remove_job = BlockingMethod(Client.remove_job)
    pause_job = BlockingMethod(Client.pause_job)
    resume_job = BlockingMethod(Client.resume_job)
    reset_breaker = BlockingMethod(Client.reset_breaker)
    open_breakers = BlockingMethod(Client.open_breakers)
    pause_jobs = BlockingMethod(Client.pause_jobs)
    resume_jobs = BlockingMethod(Client.resume_jobs)
    remove_jobs = BlockingMethod(Client.remove_jobs)
    pause_all = BlockingMethod(Client.pause_all)
    resume_all = BlockingMethod(Client.resume_all)
    paused_since = BlockingMethod(Client.paused_since)
    prune_orphans = BlockingMethod(Client.prune_orphans)
    get_job = BlockingMethod(Client.get_job)
    list_jobs = BlockingMethod(Client.list_jobs)
    rotate_secret = BlockingMethod(Client.rotate_secret)
    reseal_secrets = BlockingMethod(Client.reseal_secrets)
    load_secret_key = BlockingMethod(Client.load_secret_key)

    # Runs
    enqueue = BlockingMethod(Client.enqueue)
    enqueue_many = BlockingMethod(Client.enqueue_many)
    chain = BlockingMethod(Client.chain)
    workflow = BlockingMethod(Client.workflow)
    trigger = BlockingMethod(Client.trigger)
    backfill = BlockingMethod(Client.backfill)
    list_runs = BlockingMethod(Client.list_runs)
    newest_runs = BlockingMethod(Client.newest_runs)
    cancel = BlockingMethod(Client.cancel)
    retry = BlockingMethod(Client.retry)
    cancel_runs = BlockingMethod(Client.cancel_runs)
    retry_runs = BlockingMethod(Client.retry_runs)
    remove_runs = BlockingMethod(Client.remove_runs)

    # State of jobs, runs and workers
    stats = BlockingMethod(Client.stats)
    counts = BlockingMethod(Client.counts)
    health = BlockingMethod(Client.health)
    job_health = BlockingMethod(Client.job_health)
    jobs_health = BlockingMethod(Client.jobs_health)
    job_metrics = BlockingMethod(Client.job_metrics)
    explain = BlockingMethod(Client.explain)
    list_workers = BlockingMethod(Client.list_workers)
    list_unreadable = BlockingMethod(Client.list_unreadable)
    forecast = BlockingMethod(Client.forecast)
    now = BlockingMethod(Client.now)

    # Notes
    note = BlockingMethod(Client.note)
    list_notes = BlockingMethod(Client.list_notes)
    put_note = BlockingMethod(Client.put_note)
    remove_note = BlockingMethod(Client.remove_note)
