"""The public object: register jobs, enqueue and control runs, start and stop.

Every method exists once, as `async def`; `scheduler.blocking` offers the same to plain code.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from mainspring.core.clock import Clock, SystemClock
from mainspring.core.context import TRANSACTING, RunContext
from mainspring.core.durations import duration
from mainspring.core.enqueue_options import Options
from mainspring.core.events import Events, Listener
from mainspring.core.handlers import Handler, Hooks, Registry, name_of
from mainspring.core.job_options import EnqueueOptions, JobChanges, JobOptions, JobRef, job_id_of
from mainspring.core.model import Job, Owner, Run, Source, replace
from mainspring.core.policy import Span
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.zones import zone_named
from mainspring.engine.engine import Engine
from mainspring.engine.executors.child_main import refuse_while_loading
from mainspring.engine.loop_thread import LoopThread, Portal
from mainspring.engine.run_log import log_runs
from mainspring.engine.settings import Choices, Settings
from mainspring.errors import InvalidInput, InvalidState, MainspringError, NotStarted
from mainspring.scheduler import statistics
from mainspring.scheduler.decorator import DecoratedJob, JobDecorator
from mainspring.scheduler.definitions import draft_job, edited, new_job, refuse_unknown, replaced
from mainspring.scheduler.queries import Asking
from mainspring.scheduler.run_forever import run_until_signal
from mainspring.scheduler.start_message import announce
from mainspring.stores import open_store
from mainspring.stores.protocol import Store
from mainspring.webhooks.definition import Given
from mainspring.webhooks.handler import WebhookHandler
from mainspring.webhooks.service import Webhooks
from mainspring.webhooks.settings import WebhookSettings

__all__ = ["Scheduler"]

if TYPE_CHECKING:
    from mainspring.scheduler.blocking import Blocking

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
ScheduleLike = Schedule | str | float | timedelta | datetime | None


class Scheduler(Asking):
    """Jobs that run on time, once, everywhere.

    `store` is a URL (`sqlite:///jobs.db`, `memory://`) or a store object. `workers` is how
    many runs this process works on at once; 0 makes it a producer, which only enqueues.
    `resources` is handed to handlers as `ctx.resources`. A store that is away at the start is
    waited for, as long as `wait_for_store` says.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///mainspring.db",
        *,
        timezone: str = "UTC",
        queues: str | Iterable[str] | None = None,
        workers: int = 10,
        lease: Span = "30s",
        poll: Span = "1s",
        retention: Span = "30d",
        leader_election: bool = True,
        wait_for_store: Span = "30s",
        resources: Mapping[str, Any] | None = None,
        webhooks: WebhookSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        inline: bool = False,
    ) -> None:
        self._clock = clock or SystemClock()
        self._url = store if isinstance(store, str) else None
        self._store = open_store(store, self._clock) if isinstance(store, str) else store
        self._timezone = timezone
        self._zone = zone_named(timezone)
        self._rng = rng or random.SystemRandom()
        self._settings = Settings.make(
            self._rng,
            workers=workers,
            queues=queues,
            lease=lease,
            poll=poll,
            retention=retention,
            leader_election=leader_election,
            wait_for_store=wait_for_store,
        )
        self._resources: Mapping[str, Any] = dict(resources or {})
        self._inline = inline
        self._registry = Registry()
        self.webhooks = Webhooks(self._store, webhooks)
        if self.webhooks.available:
            self._registry.add(WebhookHandler(self.webhooks, self, self._clock))
        self._events = Events()
        log_runs(self._events, lambda: self._settings.log_each_run)
        self._drafts: dict[str, Job] = {}
        self._portal: Portal | None = None
        self._pid = 0  # the process that it was started in
        self._engine: Engine | None = None
        self._home: LoopThread | None = None
        self._stopping: concurrent.futures.Future[None] | None = None
        self._registering: set[concurrent.futures.Future[Job]] = set()
        self._home_loop: asyncio.AbstractEventLoop

    @cached_property
    def blocking(self) -> Blocking:
        """The same methods for plain code: `scheduler.blocking.enqueue("job")`."""
        # By name: it is made of this class, so it can only be imported after it.
        made: Blocking = import_module("mainspring.scheduler.blocking").Blocking(self)
        return made

    # Registering

    @overload
    def job(
        self, function: Callable[Concatenate[RunContext, P], R], /
    ) -> DecoratedJob[P, Concatenate[RunContext, P], R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> DecoratedJob[P, P, R]: ...

    @overload
    def job(
        self,
        schedule: ScheduleLike = None,
        *,
        id: str | None = None,
        on_start: Callable[..., Any] | None = None,
        on_success: Callable[..., Any] | None = None,
        on_error: Callable[..., Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> JobDecorator: ...

    def job(
        self,
        schedule: Any = None,
        *,
        id: str | None = None,
        on_start: Callable[..., Any] | None = None,
        on_success: Callable[..., Any] | None = None,
        on_error: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a job: `@scheduler.job("0 9 * * 1-5", timezone="Asia/Kolkata")`.

        Its id is the function's name, or `id`. Without a schedule (`@scheduler.job`) it runs when
        enqueued, triggered, or `after` other jobs. May be used after start too.
        """
        refuse_unknown(
            options, JobOptions, ("schedule", "id", "on_start", "on_success", "on_error")
        )
        hooks = Hooks(on_start, on_success, on_error)
        when = None if _is_function(schedule) else schedule

        def decorate(function: Callable[..., Any]) -> DecoratedJob[Any, Any, Any]:
            if isinstance(function, DecoratedJob):  # one function under two ids
                function = function.handler.function
            handler = Handler(id if id is not None else name_of(function), function, hooks)
            zone = self._timezone
            draft = draft_job(handler.name, handler, Owner.CODE, zone, schedule=when, **options)
            self._registry.add(handler)
            self._drafts[draft.id] = draft
            self._define_later(draft)
            return DecoratedJob(self, handler)

        return decorate(schedule) if _is_function(schedule) else decorate

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` (sync or async) with each `Event` of that name in this process."""
        return self._events.on(event, listener)

    @property
    def store(self) -> Store:
        return self._store

    @property
    def url(self) -> str | None:
        """The store's URL, where it was given as one."""
        return self._url

    @property
    def workers(self) -> int:
        return self._settings.workers

    @property
    def poll(self) -> timedelta:
        """How often the store is looked at where no hint came."""
        return self._settings.poll

    @property
    def retention(self) -> timedelta:
        """How long runs are kept that have ended."""
        return self._settings.retention

    @property
    def handlers(self) -> list[str]:
        """The names that jobs can be added for in this process."""
        return sorted(self._registry.names())

    @property
    def decorated(self) -> list[str]:
        """The ids of the jobs that this program's code defines."""
        return sorted(self._drafts)

    @property
    def timezone(self) -> str:
        """The zone of wall times where neither the schedule nor the job names one."""
        return self._timezone

    @property
    def started(self) -> bool:
        return self._engine is not None

    @property
    def queues(self) -> frozenset[str] | None:
        """The queues this process takes from; None is all of them."""
        return self._settings.queues

    def configure(self, **choices: Unpack[Choices]) -> Self:
        """Set what an operator may choose over the code, before start; None leaves it."""
        if self._portal is not None:
            raise InvalidState("the scheduler is running: configure it before start")
        self._settings = self._settings.changed(**choices)
        return self

    # Life

    async def start(self) -> Self:
        """Open the store, store the decorated jobs, begin to work."""
        await self._start(asyncio.get_running_loop())
        return self

    async def drain(self, *, timeout: Span = "30s") -> None:
        """Take no more work, wait for what runs (at most `timeout`), give the rest back. What is
        asked of the scheduler is still answered, until `stop`."""
        seconds = duration(timeout, what="timeout").total_seconds()
        await self._call(self._running().drain(timeout=seconds))

    async def stop(self, *, graceful: bool = True, timeout: Span = "30s") -> None:
        """Stop claiming, wait for running work (at most `timeout`), give the rest back."""
        seconds = duration(timeout, what="timeout").total_seconds()
        if self._is_forked:  # nothing of it runs here
            return
        while self._stopping is not None:  # somebody else's stop is under way
            await asyncio.shield(asyncio.wrap_future(self._stopping))
        if self._engine is None or self._portal is None:
            return
        engine, portal = self._engine, self._portal
        stopping = self._stopping = concurrent.futures.Future()
        try:
            await portal.call(engine.stop(graceful=graceful, timeout=seconds))
            self._engine = self._portal = None
            await asyncio.sleep(0)
            await self._events.drained()
            await portal.call(self.webhooks.close())
            await portal.close()
        finally:
            self._stopping = None
            stopping.set_result(None)

    def _drain_soon(self, seconds: float) -> concurrent.futures.Future[None] | None:
        """Have the engine take no more work and drain, from a signal handler: the program's loop
        may be blocked. None where nothing has started."""
        if self._engine is None or self._portal is None or self._is_forked:
            return None
        drain = self._engine.drain(timeout=seconds)
        try:
            return asyncio.run_coroutine_threadsafe(drain, self._portal.loop)
        except RuntimeError:  # its loop was closed just now
            drain.close()
            return None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def run(self, *, drain_timeout: Span = "30s") -> None:
        """Start, and work until SIGTERM or SIGINT. Then running work has `drain_timeout` to end,
        and what is left is given back. A second signal ends the process at once."""
        span = duration(drain_timeout, what="drain_timeout")
        if _in_a_loop():
            raise InvalidState(
                "scheduler.run() runs an event loop, and one is running here already (a notebook,"
                " or an async function): write `await scheduler.start()` and later `await"
                " scheduler.stop()`, or `async with scheduler: …`"
            )
        asyncio.run(
            run_until_signal(
                self,
                started=lambda: announce(self, stops_on_signal=True),
                drain_timeout=span,
            )
        )

    def asgi(self, *, auth: str | None = "keys", **settings: Any) -> Any:
        """The HTTP service as an ASGI application, to mount in one of yours. It needs an API key
        (`mainspring keys create`) unless you say `auth=None`, because you guard it yourself.
        Settings: rate_limit, body_limit, job_retry_attempts, job_retry_delay."""
        if auth not in ("keys", None):
            raise InvalidInput(f"auth is 'keys' or None, not {auth!r}")
        # By name: the service stands above the scheduler, and most programs never need it.
        import_module("mainspring.service").require_server()
        return import_module("mainspring.service.app").mounted(self, settings, open=auth is None)

    # Jobs

    async def add_job(
        self,
        id: str,
        *,
        handler: str | DecoratedJob[Any, Any, Any] | None = None,
        webhook: Given | None = None,
        schedule: ScheduleLike = None,
        replace: bool = False,
        dry_run: bool = False,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Store a job for a handler, or for a webhook: a URL, or an object with url, method,
        headers, body and so on (docs/webhooks.md).

        If there is a job of that id, it raises `JobExists`; with `replace=True` it puts the new
        definition in its place and keeps `enabled`, so a program may call it at every start. The
        handler must be registered here, except in a producer (`workers=0`), which takes the name
        of one that a worker has. A `dry_run` refuses what would be refused, and stores nothing.
        """
        draft = self.draft(id, handler=handler, webhook=webhook, schedule=schedule, **options)
        control = self._running().control
        if not replace:
            return await self._call(control.create(draft, keep=not dry_run))
        own_secret = isinstance(webhook, Mapping) and webhook.get("signing_secret") is not None

        def adapt(draft: Job, stored: Job) -> Job:
            return replaced(draft, stored, self.webhooks, own_secret=own_secret)

        return await self._call(control.put(draft, adapt, keep=not dry_run))

    async def update_job(
        self, id: JobRef, *, seen: Job | None = None, **changes: Unpack[JobChanges]
    ) -> Job:
        """Change fields of a job made by `add_job`; what is not named stays; a `signing_secret`
        takes the place of a webhook's own, as `rotate_secret` does it. With the job as it was
        `seen`, an edit that somebody made meanwhile raises `JobChanged`."""
        zone = self._timezone
        registry, webhooks, producer = self._registry, self.webhooks, not self.workers
        return await self._call(
            self._running().control.edit(
                job_id_of(id),
                lambda job, now: edited(
                    job, changes, registry, webhooks, zone, now, elsewhere=producer
                ),
                seen=seen,
            )
        )

    async def rotate_secret(self, id: str, *, keep: Span = "24h", secret: str | None = None) -> str:
        """Give a webhook job another signing secret, and show it this once. The former one signs
        beside it for `keep`, so that receivers have time to change."""
        shown: list[str] = []

        def rotate(job: Job, now: datetime) -> Job:
            webhook, made = self.webhooks.rotated(job, now, keep=keep, secret=secret)
            shown[:] = [made]
            return replace(job, webhook=webhook)

        await self._call(self._running().control.edit(id, rotate))
        return shown[0]

    async def reseal_secrets(self) -> int:
        """Encrypt every secret that is under an older key with the newest; say of how many jobs."""
        control, webhooks = self._running().control, self.webhooks
        return await self._call(control.edit_all(webhooks.stale, webhooks.resealed))

    async def remove_job(self, id: JobRef, *, force: bool = False, seen: Job | None = None) -> None:
        """Delete a job, cancel its pending runs, let running ones end (no more retries). `force`
        also removes a job that code owns, for one whose code is gone. `seen`: see `update_job`."""
        await self._call(self._running().control.remove(job_id_of(id), force=force, seen=seen))

    async def pause_job(self, id: JobRef, *, seen: Job | None = None) -> Job:
        """No more slots until it is resumed; but it can be triggered. `seen`: see `update_job`."""
        return await self._call(self._running().control.switch(job_id_of(id), False, seen=seen))

    async def resume_job(self, id: JobRef, *, seen: Job | None = None) -> Job:
        return await self._call(self._running().control.switch(job_id_of(id), True, seen=seen))

    async def pause_jobs(self, ids: Iterable[str]) -> dict[str, MainspringError | None]:
        """Pause many jobs, a thousand in one commit. Answers by id: None where it is paused, else
        the error that `pause_job` would raise; the others are paused all the same."""
        return await self._call(self._running().control.switch_many(ids, False))

    async def resume_jobs(self, ids: Iterable[str]) -> dict[str, MainspringError | None]:
        """Resume many jobs; answers as `pause_jobs` does."""
        return await self._call(self._running().control.switch_many(ids, True))

    async def remove_jobs(
        self, ids: Iterable[str], *, force: bool = False
    ) -> dict[str, MainspringError | None]:
        """Delete many jobs, as `remove_job` does; answers as `pause_jobs` does."""
        return await self._call(self._running().control.remove_many(ids, force=force))

    async def get_job(self, id: JobRef) -> Job:
        return await self._call(statistics.get_job(self._running(), job_id_of(id)))

    # Runs

    async def enqueue(
        self, job_id: JobRef, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run:
        """Queue one run. Options: delay, at, priority, queue, dedupe_key, dedupe_for, after."""
        [run] = await self._enqueue(job_id, [payload], Options.of(options))
        return run

    async def enqueue_many(
        self, job_id: JobRef, payloads: Iterable[Any], **options: Unpack[EnqueueOptions]
    ) -> list[Run]:
        """Queue a run for each payload, in one commit; answers in their order."""
        return await self._enqueue(job_id, list(payloads), Options.of(options))

    async def trigger(
        self, job_id: JobRef, payload: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Run:
        """Run a job now, also a paused one. Options are those of `enqueue`."""
        [run] = await self._enqueue(job_id, [payload], Options.of(options), Source.TRIGGER)
        return run

    async def get_run(self, run_id: str) -> Run:
        return await self._call(self._running().control.run(run_id))

    async def wait(self, run_id: str, timeout: Span | None = None) -> Run:
        """The run once it is finished; TimeoutError if that takes longer."""
        seconds = None if timeout is None else duration(timeout, what="timeout").total_seconds()
        return await self._call(self._running().awaited.wait(run_id, seconds))

    async def cancel(self, run_id: str, *, reason: str = "cancelled by request") -> bool:
        """Cancel a run; it stays cancelled. False if it had ended already."""
        return await self._call(self._running().control.cancel(run_id, reason))

    async def retry(self, run_id: str) -> Run:
        """Try a failed or cancelled run again: the same run, its failures forgotten."""
        return await self._call(self._running().control.retry(run_id))

    # Steps

    def draft(self, id: str, **given: Any) -> Job:
        """What `add_job` would store, by the same arguments; nothing is asked of the store."""
        return new_job(
            id,
            self._registry,
            self.webhooks,
            self._timezone,
            elsewhere=not self.workers,
            **given,
        )

    def store_time(self) -> datetime:
        """The store's time by its last reading; this machine's before start."""
        return self._clock.now() if self._engine is None else self._engine.time.now()

    @property
    def _is_forked(self) -> bool:
        """Whether it was started in another process, of which this one is a fork."""
        return self._portal is not None and self._pid != os.getpid()

    def _refuse_fork(self) -> None:
        if self._is_forked:
            raise InvalidState(
                f"this scheduler was started in process {self._pid}, and this is a fork of it"
                f" (process {os.getpid()}), which has none of its threads. Start a scheduler after"
                " the fork, in each process that needs it: with gunicorn without --preload, or in"
                ' its post_fork hook; with multiprocessing by the method "spawn", or in the child'
            )

    def _running(self) -> Engine:
        self._refuse_fork()
        if self._engine is None:
            raise NotStarted(
                "the scheduler is not started (or was stopped): use `async with scheduler:`,"
                " `await scheduler.start()`, `scheduler.blocking.start()` or `scheduler.run()`. A"
                " program that only enqueues calls `scheduler.configure(workers=0)` first"
            )
        return self._engine

    def _open_portal(self) -> Portal:
        self._running()
        assert self._portal is not None
        return self._portal

    async def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._refuse_fork()
        except InvalidState:
            coroutine.close()
            raise
        while self._registering:
            await self._registered()
        return await self._open_portal().call(coroutine)

    async def _enqueue(
        self,
        job: JobRef,
        payloads: Sequence[Any],
        options: Options,
        source: Source = Source.ENQUEUE,
        checked_by: Handler | None = None,
    ) -> list[Run]:
        context = TRANSACTING.get()
        if context is not None and context.in_transaction:
            raise InvalidState(
                f"run {context.run_id} is in its transaction, and what is enqueued would be no part"
                " of it: enqueue before the block, or have a job come after this one"
            )
        job_id, control = job_id_of(job), self._running().control
        if checked_by is None and (checked_by := self._registry.find(job_id)) is not None:
            # Here and not on the engine's loop: making the arguments runs the program's own code.
            payloads = [checked_by.stored(payload) for payload in payloads]
            for payload in payloads:
                if payload is not None:
                    checked_by.check(payload)
        return await self._call(
            control.enqueue(job_id, payloads, options, self._zone, source, checked_by)
        )

    async def _start(self, home: asyncio.AbstractEventLoop) -> None:
        self._refuse_fork()
        refuse_while_loading()
        if self._portal is not None:
            raise InvalidState("the scheduler is running already")
        if self.workers:
            self.webhooks.check_keys()
        self._portal = Portal(inline=self._inline)
        self._pid = os.getpid()
        self._home_loop = home
        self._events.deliver_on(home)
        try:
            self._engine = await self._portal.call(self._engine_started(home))
        except BaseException:
            await self._portal.close()
            self._portal = None
            raise

    async def _engine_started(self, home: asyncio.AbstractEventLoop) -> Engine:
        engine = Engine(
            self._store,
            self._clock,
            self._registry,
            self._settings,
            events=self._events,
            rng=self._rng,
            resources=self._resources,
            store_url=self._url,
        )
        await engine.start(home, list(self._drafts.values()), inline=self._inline)
        return engine

    def _define_later(self, draft: Job) -> None:
        """Store a job that was decorated after start; whatever is asked next waits for it."""
        self._refuse_fork()
        if self._engine is not None and self._portal is not None:
            coroutine = self._engine.control.define_late(draft)
            self._registering.add(asyncio.run_coroutine_threadsafe(coroutine, self._portal.loop))

    async def _registered(self) -> None:
        for one in list(self._registering):
            try:
                await asyncio.shield(asyncio.wrap_future(one))
            finally:
                self._registering.discard(one)

    def _start_alone(self) -> None:
        """Start from plain code: async handlers get a loop of their own."""
        self._refuse_fork()
        self._home = LoopThread("mainspring-handlers")
        try:
            self._home.wait_for(self._start(self._home.loop))
            announce(self)
        except BaseException:
            self._home.close()
            self._home = None
            raise

    def _stop_alone(self, **how: Any) -> None:
        if self._engine is None or self._is_forked:
            return
        asyncio.run_coroutine_threadsafe(self.stop(**how), self._home_loop).result()
        if self._home is not None:
            self._home.close()
            self._home = None


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_function(given: object) -> bool:
    return callable(given) and not isinstance(given, Schedule)
