"""`Scheduler`: a client that also registers jobs, runs their handlers and fires their schedules."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from mainspring.core.clock import Clock
from mainspring.core.context import RunContext
from mainspring.core.durations import duration
from mainspring.core.events import running_loop
from mainspring.core.handlers import Around, Handler, Hooks, check_around, name_of
from mainspring.core.model import Job, Owner, Run, check_job_id
from mainspring.core.options import JobOptions, PolicyOptions
from mainspring.core.policy import Span
from mainspring.core.resources import check_resources
from mainspring.core.schedules import Schedule
from mainspring.engine.engine import Engine
from mainspring.engine.executors.child_main import refuse_while_loading
from mainspring.engine.run_operations import EnqueueBatch, EnqueueFacts, Target
from mainspring.engine.settings import Choices, Settings
from mainspring.errors import InvalidState
from mainspring.scheduler.blocking import BlockingMethod, refuse_running_loop
from mainspring.scheduler.client import BlockingClient, Client, ScheduleLike
from mainspring.scheduler.decorator import DecoratedJob, JobDecorator
from mainspring.scheduler.definitions import draft_job, refuse_unknown_options
from mainspring.scheduler.job_file import JobSet, install_notify, read_job_file, read_jobs
from mainspring.scheduler.run_forever import HOW_TO_STOP, run_until_signal, show, summary
from mainspring.stores import STORE_OF_ENVIRONMENT
from mainspring.stores.protocol import Store
from mainspring.webhooks.service import WebhookSettings

log = logging.getLogger("mainspring")

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=Mapping[str, Any])  # resources; with Any, the overloads would be ambiguous


class Scheduler(Client):
    """Jobs that run on time, once, everywhere.

    `store` is a URL (`sqlite:///jobs.db`, `memory://`) or a store object; without it, it is the
    URL in the environment variable `MAINSPRING_STORE`, or `sqlite:///mainspring.db`. `workers` is
    how many runs this process works on at once; with 0 it only enqueues. With `enabled=False` it
    fires no slots, and still runs what is enqueued. With a `memory_limit` ("1GB") it drains once it
    holds so much memory; `mainspring worker` and `serve` then replace it, `run()` ends. Handlers
    find `resources` as `ctx.resources`. `around(ctx)` returns a context manager that each attempt
    runs in. `defaults` are policy options, such as `{"retries": 3}`, of jobs that do not give them.
    `jobs` defines jobs as data: see `define_jobs`. `default_handler` runs what no worker has a
    handler of its own for. If the store cannot be reached, `start` waits for up to
    `wait_for_store`.
    """

    _name = "scheduler"
    warns_of_new_store = False
    opens_itself = False
    _how_to_start = (
        "the scheduler is not started (or was stopped): use `async with scheduler:`,"
        " `await scheduler.start()`, `scheduler.blocking.start()` or `scheduler.run()`. A"
        " program that only enqueues uses a `Client`, which opens at its first use, or calls"
        " `scheduler.configure(workers=0)` before the start"
    )

    def __init__(
        self,
        store: str | Store = STORE_OF_ENVIRONMENT,
        *,
        timezone: str = "UTC",
        queues: str | Iterable[str] | None = None,
        workers: int = 10,
        lease: Span = "30s",
        poll: Span = "1s",
        retention: Span = "30d",
        history: int | None = None,
        prune_every: Span = "1m",
        leader_election: bool = True,
        wait_for_store: Span = "30s",
        enabled: bool = True,
        memory_limit: int | str | None = None,
        defaults: PolicyOptions | None = None,
        jobs: Mapping[str, Mapping[str, Any]] | str | Path | None = None,
        resources: Mapping[str, Any] | None = None,
        default_handler: Callable[..., Any] | None = None,
        around: Around | None = None,
        webhooks: WebhookSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        inline: bool = False,
        **unknown: Never,
    ) -> None:
        self._refuse_unknown(unknown)
        super().__init__(
            store,
            timezone=timezone,
            defaults=defaults,
            webhooks=webhooks,
            clock=clock,
            rng=rng,
            inline=inline,
        )
        self._settings = Settings.make(
            self._settings.worker_id,
            workers=workers,
            queues=queues,
            lease=lease,
            poll=poll,
            retention=retention,
            history=history,
            prune_every=prune_every,
            leader_election=leader_election,
            wait_for_store=wait_for_store,
            enabled=enabled,
            memory_limit=memory_limit,
        )
        self._resources = check_resources(resources)
        check_around(around)
        self._registry.around = around
        if default_handler is not None:
            self._registry.default = Handler("default", default_handler)
            self._registry.default.around = around
        self._job_sets: list[JobSet] = []
        self._late_jobs: dict[str, concurrent.futures.Future[None]] = {}
        self._refused_late_jobs: dict[str, Exception] = {}
        if jobs is not None:
            self.define_jobs(jobs)

    @cached_property
    def blocking(self) -> BlockingScheduler:
        """The same methods for plain code: `scheduler.blocking.enqueue("job")`."""
        return BlockingScheduler(self)

    # Registering

    @overload
    def job(
        self, function: Callable[Concatenate[RunContext[C], P], Coroutine[Any, Any, T]], /
    ) -> DecoratedJob[P, Concatenate[RunContext[C], P], Coroutine[Any, Any, T], T]: ...

    @overload
    def job(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> DecoratedJob[P, P, Coroutine[Any, Any, T], T]: ...

    @overload
    def job(
        self, function: Callable[Concatenate[RunContext[C], P], T], /
    ) -> DecoratedJob[P, Concatenate[RunContext[C], P], T, T]: ...

    @overload
    def job(self, function: Callable[P, T], /) -> DecoratedJob[P, P, T, T]: ...

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
        refuse_unknown_options(
            options, JobOptions, ("schedule", "id", "on_start", "on_success", "on_error")
        )
        hooks = Hooks(on_start, on_success, on_error)
        when = None if _is_function(schedule) else schedule

        def decorate(function: Callable[..., Any]) -> DecoratedJob[Any, Any, Any, Any]:
            if isinstance(function, DecoratedJob):  # a second job for the same function
                function = function.handler.function
            handler = Handler(id if id is not None else name_of(function), function, hooks)
            zone = self._timezone
            draft = draft_job(
                handler.name,
                handler,
                Owner.CODE,
                zone,
                schedule=when,
                defaults=self._defaults,
                **options,
            )
            self._registry.add(handler)
            self._jobs_in_code[draft.id] = draft
            self._store_if_started(draft)
            return DecoratedJob(handler, self._enqueue_decorated, self._wait_for)

        return decorate(schedule) if _is_function(schedule) else decorate

    def draft(self, id: str, *, handler: Any = None, **options: Any) -> Job:
        """The job that `add_job` would store for the same arguments. Does not read the store. A
        function that is given as the handler is registered."""
        if (
            handler is None
            and options.get("webhook") is None
            and self._registry.default is not None
        ):
            handler = id
        if not callable(handler) or isinstance(handler, DecoratedJob):
            return super().draft(id, handler=handler, **options)
        own = Handler(id, handler)
        job = super().draft(id, handler=own, **options)
        self._registry.add(own)
        return job

    def add_handler(self, name: str, function: Callable[..., Any]) -> None:
        """Register a function under a name, without a job. Jobs that are made as data (`add_job`,
        the HTTP API, the dashboard) can name it."""
        self._registry.add(
            Handler(check_job_id(name, "the name of a handler", "handler"), function)
        )

    def define_jobs(self, jobs: Mapping[str, Mapping[str, Any]] | str | Path) -> None:
        """Define jobs as data, before the start: a mapping of options by job id, or the path of a
        file such as `mainspring.toml`. A handler is a function of the program, the name of one that
        it has registered, or `module:function`, which is imported.
        The jobs are stored at the start, as decorated ones are; `apply_jobs` also removes those
        that a file no longer lists."""
        if self._engine_loop is not None:
            raise InvalidState("the scheduler is running: define jobs before start")
        if isinstance(jobs, str | Path):
            job_set, owner = read_job_file(jobs), Owner.FILE
        else:
            job_set, owner = read_jobs(jobs), Owner.CODE
        made = self._draft_jobs(job_set, owner)
        self._job_sets.append(job_set)
        self._settings = self._settings.changed(prune_every=job_set.prune_every)
        install_notify(self, job_set)
        self._jobs_in_code |= {job.id: job for job in made}

    @property
    def retention(self) -> timedelta:
        """How long runs are kept after they have ended."""
        return self._settings.retention

    @property
    def queues(self) -> frozenset[str] | None:
        """The queues whose runs this process claims; None means all."""
        return self._settings.queues

    @property
    def enabled(self) -> bool:
        """Whether this process fires the slots of schedules."""
        return self._settings.enabled

    @property
    def handlers(self) -> list[str]:
        """The names of the handlers that this process has."""
        return sorted(self._registry.names())

    @property
    def code_jobs(self) -> list[Job]:
        """The jobs that this program's code defines, as the start would store them."""
        return [self._jobs_in_code[id] for id in self.code_job_ids]

    @property
    def code_job_ids(self) -> list[str]:
        """The ids of the jobs that this program's code defines."""
        return sorted(self._jobs_in_code)

    def configure(self, **choices: Unpack[Choices]) -> Self:
        """Change settings before the start, as an operator may; None changes nothing."""
        if self._engine_loop is not None:
            raise InvalidState("the scheduler is running: configure it before start")
        self._settings = self._settings.changed(**choices)
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            advice = f": write {_OTHER_NAMES[name]}" if name in _OTHER_NAMES else ""
            raise AttributeError(
                f"a Scheduler has no attribute {name!r}{advice}", name=name, obj=self
            )

    # Start and stop

    async def drain(self, *, timeout: Span = "30s") -> None:
        """Claim no more runs, wait for those that run (at most `timeout`), give the rest back.
        Until `stop`, every other method still works."""
        seconds = duration(timeout, what="timeout").total_seconds()
        await self._call(self._running().drain(timeout=seconds))

    def drain_soon(self, seconds: float) -> concurrent.futures.Future[None] | None:
        """Begin to drain, from a signal handler, also while a handler blocks the program's loop.
        None where nothing has started."""
        if not self.started or self._engine is None or self._engine_loop is None:
            return None
        if self._is_forked:
            return None
        drain = self._engine.drain(timeout=seconds)
        try:
            return asyncio.run_coroutine_threadsafe(drain, self._engine_loop.loop)
        except RuntimeError:  # the engine's loop was closed just now
            drain.close()
            return None

    def memory_drained(self) -> concurrent.futures.Future[None]:
        """Is done when this process has reached its memory limit and has drained, also while a
        handler blocks the program's loop."""
        return self._running().memory_drained

    async def stop(self, *, graceful: bool = True, timeout: Span = "30s") -> None:
        """Claim no more runs, wait for those that run (at most `timeout`), give the rest back,
        close the store. With `graceful=False` it waits for none."""
        seconds = duration(timeout, what="timeout").total_seconds()
        await self._stop(graceful=graceful, seconds=seconds)

    def run(self, *, drain_timeout: Span = "30s") -> None:
        """Start, and work until SIGTERM or SIGINT. Then running work has `drain_timeout` to end,
        and what is left is given back. A second signal ends the process at once. At its memory
        limit it drains too, and the process ends with exit code 1: what started it starts it again.
        """
        span = duration(drain_timeout, what="drain_timeout")
        if running_loop() is not None:
            raise InvalidState(
                "scheduler.run() runs an event loop, and one is running here already (a notebook,"
                " or an async function): write `await scheduler.start()` and later `await"
                " scheduler.stop()`, or `async with scheduler: …`"
            )
        self._settings = self._settings.changed(drain_timeout=span)
        signalled = asyncio.run(
            run_until_signal(
                self.start,
                self.stop,
                self.drain_soon,
                self.memory_drained,
                watch=self._wait_for_memory_limit,
                started=lambda: self._show_start(f" {HOW_TO_STOP}"),
                drain_timeout=span,
            )
        )
        if not signalled:
            raise SystemExit("the process has reached its memory limit: start it again")

    # Steps

    async def _wait_for_memory_limit(self) -> None:
        while self._engine is None or not self._engine.worker.memory_limit_reached:
            await asyncio.sleep(1)

    async def _start(
        self, program_loop: asyncio.AbstractEventLoop, jobs: Sequence[Job] = ()
    ) -> None:
        refuse_while_loading()
        await self._replace_former()
        if self.workers:
            self.webhooks.check_keys()
        with ExitStack() as error_places:
            for job_set in self._job_sets:
                error_places.enter_context(job_set.add_error_places())
            await super()._start(program_loop, jobs)
        _STARTED.add(self)

    async def _replace_former(self) -> None:
        """Stop the scheduler that the same cell of a notebook has started before: half of the runs
        would go on to the old functions."""
        for former in list(_STARTED):
            if former is self or not former.started or not self._shares_store_with(former):
                continue
            if names := former._registry.defined_again(self._registry):
                log.warning(
                    "this session defines %s again, in a new scheduler on %s: it replaces the"
                    " former scheduler, which is stopped",
                    ", ".join(names),
                    self.store.info().location,
                )
                await former._stop_from_elsewhere()

    def _shares_store_with(self, other: Scheduler) -> bool:
        here, there = self.store.info(), other.store.info()
        same_data = here.shared and (here.kind, here.location) == (there.kind, there.location)
        return self.store is other.store or same_data

    async def _stop_from_elsewhere(self) -> None:
        """Stop it from another loop than its program's."""
        loop, stop = self._program_loop, self.stop(timeout="5s")
        if loop is asyncio.get_running_loop() or not loop.is_running():
            await stop
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stop, loop))
        if self._own_loop is not None:
            await self._own_loop.close_from_loop()
            self._own_loop = None

    def _show_start(self, more: str = "") -> None:
        """Show one line that says what runs where. A program that only enqueues shows none."""
        if self.workers:
            store = type(self.store).__name__ if self.url is None else self.url
            line = summary(
                self.code_job_ids, store, self.workers, self.queues, enabled=self.enabled
            )
            show(line + more)

    def _store_if_started(self, draft: Job) -> None:
        """Store a job that was decorated after the start. Later calls wait for it (`_call`). If it
        cannot be stored, the log says so, and what enqueues it raises the error."""
        self._refuse_fork()
        if self._engine is not None and self._engine_loop is not None:
            self._refused_late_jobs.pop(draft.id, None)
            self._late_jobs[draft.id] = asyncio.run_coroutine_threadsafe(
                self._define_after_start(self._engine, draft), self._engine_loop.loop
            )

    async def _define_after_start(self, engine: Engine, draft: Job) -> None:
        if self._opening is not None:
            await self._wait_until_open(self._opening)
        await engine.define_after_start(draft)

    async def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop, after jobs decorated since the start are stored."""
        try:
            await self._settle_late_jobs()
        except BaseException:
            coroutine.close()
            raise
        return await super()._call(coroutine)

    async def _settle_late_jobs(self) -> None:
        while self._late_jobs:
            job_id, stored = next(iter(self._late_jobs.items()))
            try:
                await asyncio.shield(asyncio.wrap_future(stored))
            except Exception as error:  # the engine has logged it
                self._refused_late_jobs[job_id] = error
            if self._late_jobs.get(job_id) is stored:
                del self._late_jobs[job_id]

    async def _find_targets(self, job_ids: Sequence[str]) -> dict[str, Target]:
        targets: dict[str, Target] = {}
        others: list[str] = []
        for job_id in job_ids:
            draft = self._jobs_in_code.get(job_id)
            if draft is None or job_id in self._refused_late_jobs:
                others.append(job_id)
            else:  # what is stored has the handler and the payload that the code says
                targets[job_id] = self._registry.find(draft.handler), draft.payload
        return targets | await super()._find_targets(others) if others else targets

    def _facts_for_this_loop(self, batches: Sequence[EnqueueBatch]) -> EnqueueFacts | None:
        return None if self._late_jobs else super()._facts_for_this_loop(batches)

    async def _enqueue_decorated(self, batch: EnqueueBatch) -> list[Run]:
        """Queue runs of a decorated job; raise the error of one that could not be stored."""
        self._running()
        await self._settle_late_jobs()
        if (error := self._refused_late_jobs.get(batch.job_id)) is not None:
            raise error
        return await self._enqueue([batch], within=batch.options.within)


_STARTED: weakref.WeakSet[Scheduler] = weakref.WeakSet()

_OTHER_NAMES = {
    "scheduled_job": '@scheduler.job("5m")',
    "task": "@scheduler.job",
    "periodic_task": '@scheduler.job("5m")',
    "schedule": '@scheduler.job("5m") above a function, or scheduler.add_job(…)',
    "every": '@scheduler.job("5m") above a function',
    "cron": '@scheduler.job("0 9 * * *") above a function',
    "send_task": 'scheduler.enqueue("job", {…})',
    "run_job": 'scheduler.trigger("job")',
    "shutdown": "await scheduler.stop()",
    "get_jobs": "await scheduler.list_jobs()",
}
"""What other schedulers call a method, and what to write here."""


class BlockingScheduler(BlockingClient):
    """The methods of a scheduler for plain code: each calls the async one and waits."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._scheduler = scheduler

    def start(self) -> None:
        was_started = self._scheduler.started
        super().start()
        if not was_started:
            self._scheduler._show_start()

    def stop(self, *, graceful: bool = True, timeout: Span = "30s") -> None:
        refuse_running_loop("scheduler.blocking.stop", "scheduler.stop()")
        self._scheduler._stop_from_plain_code(
            lambda: self._scheduler.stop(graceful=graceful, timeout=timeout)
        )

    drain = BlockingMethod(Scheduler.drain)


def _is_function(candidate: object) -> bool:
    return callable(candidate) and not isinstance(candidate, Schedule)
