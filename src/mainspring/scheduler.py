"""The public object: register jobs, enqueue and control runs, start and stop.

Every method exists once, as `async def`; `scheduler.blocking` offers the same to plain code.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from mainspring import reports
from mainspring.blocking import Blocking
from mainspring.clock import Clock, SystemClock
from mainspring.decorated import DecoratedJob, JobDecorator
from mainspring.drafts import draft_job, edited
from mainspring.durations import duration
from mainspring.engine.engine import Engine
from mainspring.engine.portal import LoopThread, Portal
from mainspring.errors import InvalidInput, InvalidState, NotStarted
from mainspring.events import Events, Listener
from mainspring.handlers import Handler, Hooks, Registry, name_of
from mainspring.model import Job, Owner, Page, Run, Source, State
from mainspring.options import Options
from mainspring.policy import Span
from mainspring.reports import JobHealth, JobMetrics, SchedulerHealth, Stats
from mainspring.schedules import Schedule
from mainspring.schedules.zones import zone_named
from mainspring.settings import Settings
from mainspring.signals import run_until_signal
from mainspring.store import JobQuery, RunQuery, Store
from mainspring.stores import open_store

__all__ = ["Scheduler"]

T = TypeVar("T")
ScheduleLike = Schedule | str | float | timedelta | datetime | None


class Scheduler:
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
        self._events = Events()
        self._drafts: dict[str, Job] = {}
        self._portal: Portal | None = None
        self._engine: Engine | None = None
        self._home: LoopThread | None = None
        self._stopping: concurrent.futures.Future[None] | None = None
        self._registering: set[concurrent.futures.Future[Job]] = set()
        self._home_loop: asyncio.AbstractEventLoop
        self.blocking = Blocking(self)

    # Registering

    def job(
        self,
        schedule: ScheduleLike = None,
        *,
        id: str | None = None,
        on_start: Callable[..., Any] | None = None,
        on_success: Callable[..., Any] | None = None,
        on_error: Callable[..., Any] | None = None,
        **policy: Any,
    ) -> JobDecorator:
        """Make a function a job: `@scheduler.job("0 9 * * 1-5", timezone="Asia/Kolkata")`.

        Its id is the function's name, or `id`. Without a schedule it runs when enqueued,
        triggered, or `after` other jobs. May be used after start too.
        """
        if callable(schedule) and not isinstance(schedule, Schedule):
            raise InvalidInput("write @scheduler.job() with its brackets")
        hooks = Hooks(on_start, on_success, on_error)

        def decorate(function: Callable[..., Any]) -> DecoratedJob[Any, Any, Any]:
            if isinstance(function, DecoratedJob):  # one function under two ids
                function = function.handler.function
            handler = Handler(id if id is not None else name_of(function), function, hooks)
            zone = self._timezone
            draft = draft_job(handler.name, handler, Owner.CODE, zone, schedule=schedule, **policy)
            self._registry.add(handler)
            self._drafts[draft.id] = draft
            self._define_later(draft)
            return DecoratedJob(self, handler)

        return decorate

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
    def queues(self) -> frozenset[str] | None:
        """The queues this process takes from; None is all of them."""
        return self._settings.queues

    def configure(
        self,
        *,
        workers: int | None = None,
        queues: Iterable[str] | None = None,
        wait_for_store: Span | None = None,
    ) -> Self:
        """Set what an operator may choose over the code, before start; None leaves it."""
        if self._portal is not None:
            raise InvalidState("the scheduler is running: configure it before start")
        self._settings = self._settings.changed(
            workers=workers, queues=queues, wait_for_store=wait_for_store
        )
        return self

    # Life

    async def start(self) -> Self:
        """Open the store, store the decorated jobs, begin to work."""
        await self._start(asyncio.get_running_loop())
        return self

    async def stop(self, *, graceful: bool = True, timeout: Span = "30s") -> None:
        """Stop claiming, wait for running work (at most `timeout`), give the rest back."""
        seconds = duration(timeout, what="timeout").total_seconds()
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
            await portal.close()
        finally:
            self._stopping = None
            stopping.set_result(None)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def run(self) -> None:
        """Start, and work until SIGTERM or SIGINT; a second signal ends at once."""
        asyncio.run(run_until_signal(self))

    # Jobs

    async def add_job(
        self,
        id: str,
        *,
        handler: str | DecoratedJob[Any, Any, Any],
        schedule: ScheduleLike = None,
        payload: Any = None,
        **policy: Any,
    ) -> Job:
        """Store a job for a registered handler. One of that id is an error."""
        name = handler.id if isinstance(handler, DecoratedJob) else handler
        known = self._registry.get(name)
        zone = self._timezone
        draft = draft_job(id, known, Owner.API, zone, schedule=schedule, payload=payload, **policy)
        return await self._call(self._running().control.create(draft))

    async def update_job(self, id: str, **changes: Any) -> Job:
        """Change fields of a job made by `add_job`; what is not named stays."""
        zone = self._timezone
        registry = self._registry
        return await self._call(
            self._running().control.edit(
                id, lambda job, now: edited(job, changes, registry, zone, now)
            )
        )

    async def remove_job(self, id: str, *, force: bool = False) -> None:
        """Delete a job, cancel its pending runs, let running ones end. `force` also removes a
        job that code owns: for one whose code is gone."""
        await self._call(self._running().control.remove(id, force=force))

    async def pause_job(self, id: str) -> Job:
        """No more slots until it is resumed; it can still be triggered."""
        return await self._call(self._running().control.switch(id, False))

    async def resume_job(self, id: str) -> Job:
        return await self._call(self._running().control.switch(id, True))

    async def get_job(self, id: str) -> Job:
        return await self._call(self._running().control.job(id))

    async def list_jobs(
        self, *, tag: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Job]:
        query = JobQuery(tag=tag, limit=_page(limit), cursor=cursor)
        return await self._call(self._running().control.jobs(query))

    # Runs

    async def enqueue(self, job_id: str, payload: Any = None, **options: Any) -> Run:
        """Queue one run. Options: delay, at, priority, queue, dedupe_key, dedupe_for, after."""
        [run] = await self._enqueue(job_id, [payload], _options(options))
        return run

    async def enqueue_many(self, job_id: str, payloads: Iterable[Any], **options: Any) -> list[Run]:
        """Queue a run for each payload, in one commit; answers in their order."""
        return await self._enqueue(job_id, list(payloads), _options(options))

    async def trigger(self, job_id: str, payload: Any = None) -> Run:
        """Run a job now, also a paused one."""
        [run] = await self._enqueue(job_id, [payload], Options(), Source.TRIGGER)
        return run

    async def get_run(self, run_id: str) -> Run:
        return await self._call(self._running().control.run(run_id))

    async def list_runs(
        self,
        *,
        job: str | None = None,
        state: State | str | Iterable[State | str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Newest first; `cursor` of one page fetches the next."""
        query = RunQuery(job=job, states=_states(state), limit=_page(limit), cursor=cursor)
        return await self._call(self._running().control.runs(query))

    async def wait(self, run_id: str, timeout: Span | None = None) -> Run:
        """The run once it is finished; TimeoutError if that takes longer."""
        seconds = None if timeout is None else duration(timeout, what="timeout").total_seconds()
        return await self._call(self._running().control.wait(run_id, seconds))

    async def cancel(self, run_id: str, *, reason: str = "cancelled by request") -> bool:
        """Cancel a run; it stays cancelled. False if it had ended already."""
        return await self._call(self._running().control.cancel(run_id, reason))

    async def retry(self, run_id: str) -> Run:
        """Try a failed or cancelled run again: the same run, its failures forgotten."""
        return await self._call(self._running().control.retry(run_id))

    # How it stands

    @property
    def is_leader(self) -> bool:
        return self._engine is not None and self._engine.keeper.leads

    async def stats(self) -> Stats:
        return await self._call(reports.stats(self._running(), self._settings))

    async def health(self) -> SchedulerHealth:
        return await self._call(reports.health(self._running(), self._settings))

    async def job_health(self, id: str) -> JobHealth:
        return await self._call(reports.job_health(self._running(), id))

    async def job_metrics(self, id: str) -> JobMetrics:
        return await self._call(reports.job_metrics(self._running(), id))

    # Steps

    def _running(self) -> Engine:
        if self._engine is None:
            raise NotStarted(
                "the scheduler is not started (or was stopped): use `async with scheduler:`,"
                " `await scheduler.start()`, `scheduler.blocking.start()` or `scheduler.run()`"
            )
        return self._engine

    def _open_portal(self) -> Portal:
        self._running()
        assert self._portal is not None
        return self._portal

    async def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        while self._registering:
            await self._registered()
        return await self._open_portal().call(coroutine)

    async def _enqueue(
        self,
        job_id: str,
        payloads: Sequence[Any],
        options: Options,
        source: Source = Source.ENQUEUE,
    ) -> list[Run]:
        control = self._running().control
        return await self._call(control.enqueue(job_id, payloads, options, self._zone, source))

    async def _start(self, home: asyncio.AbstractEventLoop) -> None:
        if self._portal is not None:
            raise InvalidState("the scheduler is running already")
        self._portal = Portal(inline=self._inline)
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
        )
        await engine.start(home, list(self._drafts.values()), inline=self._inline)
        return engine

    def _define_later(self, draft: Job) -> None:
        """Store a job that was decorated after start; whatever is asked next waits for it."""
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
        self._home = LoopThread("mainspring-handlers")
        try:
            self._home.wait_for(self._start(self._home.loop))
        except BaseException:
            self._home.close()
            self._home = None
            raise

    def _stop_alone(self, **how: Any) -> None:
        if self._engine is None:
            return
        asyncio.run_coroutine_threadsafe(self.stop(**how), self._home_loop).result()
        if self._home is not None:
            self._home.close()
            self._home = None


def _options(given: dict[str, Any]) -> Options:
    unknown = given.keys() - {field.name for field in fields(Options)}
    if unknown:
        raise InvalidInput(f"unknown option {', '.join(sorted(unknown))}")
    return Options(**given)


def _states(given: State | str | Iterable[State | str] | None) -> frozenset[State] | None:
    if given is None:
        return None
    try:
        return frozenset(State(name) for name in ([given] if isinstance(given, str) else given))
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{error}; states are {', '.join(State)}") from None


def _page(limit: int) -> int:
    if not isinstance(limit, int) or not 1 <= limit <= 1000:
        raise InvalidInput(f"limit is 1 to 1000, not {limit!r}")
    return limit
