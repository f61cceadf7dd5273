"""Puts the components of one process together, starts and stops them.

These are the worker with its executors, the leader, the slot firer, the rescuer, the
releaser of followers, the pruner, and the operations on jobs and runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from mainspring.core.clock import CarriedClock, Clock, thread_cpu
from mainspring.core.durations import humanize
from mainspring.core.events import Events
from mainspring.core.handlers import Registry
from mainspring.core.model import Job
from mainspring.engine.context import EngineContext
from mainspring.engine.executors.dispatcher import Dispatcher
from mainspring.engine.executors.loop import LoopExecutor, LoopWatch
from mainspring.engine.follower_releaser import FollowerReleaser
from mainspring.engine.job_cache import JobCache
from mainspring.engine.job_operations import JobOperations, KeepFromStored
from mainspring.engine.jobs_without_worker import JobsWithoutWorker
from mainspring.engine.leader import Leader
from mainspring.engine.live_workers import LiveWorkers
from mainspring.engine.memory import MemoryWatch, megabytes, refuse_low_limit
from mainspring.engine.pruner import Pruner
from mainspring.engine.rescuer import Rescuer
from mainspring.engine.run_operations import RunOperations, RunWaiters
from mainspring.engine.settings import Settings
from mainspring.engine.slot_firer import SlotFirer
from mainspring.engine.store_retry import Outages, RetryingStore, reason_of, wait_for_store
from mainspring.engine.telemetry import Telemetry
from mainspring.engine.worker import Worker
from mainspring.errors import StoreMissing
from mainspring.stores.protocol import Store

log = logging.getLogger("mainspring")

CANCEL_AGAIN_AFTER = 0.5

RETIRE_SECONDS = 2.0
"""Seconds that a stop waits for a firing to end."""


class Engine:
    """Made, started, used and stopped on one loop: the engine's own or, inline, the program's."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        registry: Registry,
        settings: Settings,
        *,
        events: Events,
        rng: random.Random,
        resources: Mapping[str, Any],
        warn_of_new_store: bool = False,
    ) -> None:
        time = CarriedClock(clock)
        outages = Outages(clock, time, events)
        retrying_store = RetryingStore(store, outages, rng)
        self.context = EngineContext(
            store=store,
            retrying_store=retrying_store,
            outages=outages,
            clock=clock,
            time=time,
            events=events,
            rng=rng,
            registry=registry,
            jobs=JobCache(store, clock),
            settings=_with_idle_poll(settings, store.info().idle_poll),
            resources=resources,
        )
        self._warn_of_new_store = warn_of_new_store
        self._tasks: list[asyncio.Task[None]] = []
        self._draining: asyncio.Future[None] | None = None
        self.memory_drained: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.worker = Worker(self.context)
        self.live_workers = LiveWorkers(
            self.context,
            running=lambda: self.worker.running,
            memory_limit_reached=lambda: self.worker.memory_limit_reached,
        )
        self.jobs_without_worker = JobsWithoutWorker(self.context, self.live_workers)
        self.leader = Leader(self.context, lambda: self.slot_firer.jobs_changed())
        self.follower_releaser = FollowerReleaser(self.context, self.leader)
        self.slot_firer = SlotFirer(
            self.context,
            self.live_workers,
            self.jobs_without_worker,
            self.leader,
            self.follower_releaser,
        )
        self.run_waiters = RunWaiters(self.context.store)
        self.context.on_run_end[:] = [
            self.run_waiters.finished,
            self.follower_releaser.run_ended,
            self.slot_firer.run_ended,
        ]
        self.job_operations = JobOperations(self.context, self.slot_firer)
        self.run_operations = RunOperations(
            self.context,
            self.job_operations,
            self.worker,
            self.follower_releaser,
            self.run_waiters,
            self.live_workers,
        )

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def time(self) -> CarriedClock:
        """The store's time, carried on between readings."""
        return self.context.time

    async def start(
        self,
        program_loop: asyncio.AbstractEventLoop,
        drafts: Sequence[Job],
        *,
        inline: bool,
        keep_from_stored: KeepFromStored | None = None,
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the store, define the jobs of the code, and start all components.
        `keep_from_stored` says what of a stored job stays, as for `JobOperations.put`. `opened` is
        called before the first handler can run: from then on the operations can be used.

        `program_loop` is the loop that async handlers run on.
        """
        context = self.context
        if context.settings.workers > 0 and (limit := context.settings.memory_limit) is not None:
            refuse_low_limit(limit)
        await wait_for_store(
            lambda: self._open(drafts, keep_from_stored),
            context.settings.wait_for_store,
            context.clock,
        )
        telemetry = self.worker.telemetry = Telemetry.find()
        program = self._loop_executor(program_loop, None if inline else thread_cpu)
        watch = LoopWatch(program, blocked=self.worker.loop_blocked, freed=self.worker.loop_freed)
        self.worker.set_dispatcher(
            Dispatcher(
                context,
                program,
                self._loop_executor(asyncio.get_running_loop(), None),
                inline=inline,
                ended=self.worker.ended,
                handler_ended=self.worker.handler_ended,
                telemetry=telemetry,
            )
        )
        opened()
        try:
            await self._start_components(watch, drafts)
        except BaseException:
            await self.stop(graceful=False, timeout=0)
            raise

    async def _start_components(self, watch: LoopWatch, drafts: Sequence[Job]) -> None:
        context = self.context
        self._start_component(self._pass_on_hints)
        self._start_component(self.follower_releaser.release_periodically)
        if context.settings.workers > 0:
            for part in (
                self.worker.completer.commit_batches,
                self.worker.claim_repeatedly,
                watch.watch_periodically,
                self.worker.leases.renew_periodically,
                self.worker.leases.stop_before_lapse,
                self.worker.leases.watch_cancels,
                self.leader.elect_periodically,
                *([self.slot_firer.fire_periodically] if context.settings.enabled else []),
                Rescuer(context, self.leader).rescue_periodically,
                Pruner(context, self.leader).prune_periodically,
                self.live_workers.announce_periodically,
                self.jobs_without_worker.search_periodically,
            ):
                self._start_component(part)
            if (limit := context.settings.memory_limit) is not None:
                self._start_component(
                    MemoryWatch(
                        limit,
                        self._memory_limit_reached,
                        exceeded=lambda: self.worker.limit_drain(0.0),
                    ).watch_periodically
                )
            log.info("worker %s started", context.settings.worker_id)
            context.emit("worker.started", worker=context.settings.worker_id)
            await self._run_on_start(drafts)
        context.emit("scheduler.started")

    async def define_after_start(self, draft: Job) -> None:
        """Store a job that was decorated after the start, and give it its run at the start. An
        error is logged and emitted too: the caller may not wait for the answer."""
        try:
            # The jobs that it runs after may come later.
            await self.job_operations.check_order([draft], all_known=False)
            await self.job_operations.define_code([draft])
            await self._run_on_start([draft])
        except Exception as error:
            log.error("job %s, defined after the start, cannot be stored: %s", draft.id, error)
            self.context.emit("scheduler.error", error=error, job_id=draft.id)
            raise

    async def _run_on_start(self, drafts: Sequence[Job]) -> None:
        settings = self.context.settings
        job_ids = [draft.id for draft in drafts if draft.policy.run_on_start]
        if job_ids and settings.workers > 0 and settings.enabled:
            await self.live_workers.announce()  # so that nodes that start too know of this one
            await self.run_operations.run_on_start(job_ids)

    def _loop_executor(
        self, loop: asyncio.AbstractEventLoop, thread_cpu: Callable[[], float] | None
    ) -> LoopExecutor:
        return LoopExecutor(
            self.context,
            loop,
            thread_cpu=thread_cpu,
            can_begin=self.worker.can_begin,
            ran=self.worker.completer.breakers.handler_ended,
            ended=self.worker.ended,
            ended_late=self.worker.ended_late,
            telemetry=self.worker.telemetry,
        )

    async def drain(self, *, timeout: float) -> None:
        """Claim no more runs, and wait for those that run. Queries still work."""
        if self.context.settings.workers > 0:
            await self._drain_once(graceful=True, timeout=timeout)

    async def _drain_once(self, *, graceful: bool, timeout: float) -> None:
        """Drain, or wait for the drain that has begun, so that no handler is cancelled twice: after
        a signal both the signal's handler and the program's `stop` drain. The shorter of the two
        timeouts counts."""
        self.worker.limit_drain(timeout if graceful else 0.0)
        if self._draining is None or self._draining.done():
            self._draining = asyncio.ensure_future(self._drain())
        await asyncio.shield(self._draining)

    async def _drain(self) -> None:
        await self._retire()  # first: nobody here would run what it fires
        await self.worker.drain()
        await self._flush()

    def _memory_limit_reached(self, used: int) -> None:
        """Drain: fire no more slots, give back what has not begun, and let the rest end in time."""
        settings = self.context.settings
        assert settings.memory_limit is not None
        log.error(
            "this process holds %s of memory, and its limit is %s: it claims no more runs, and"
            " those that run have %s to end. Then the process must be replaced",
            megabytes(used),
            megabytes(settings.memory_limit),
            humanize(settings.drain_timeout),
        )
        self.worker.memory_limit_reached = True
        self.context.emit("worker.memory_limit", used=used, limit=settings.memory_limit)
        self._start_component(self.live_workers.announce)
        self._start_component(self._drain_at_memory_limit)

    async def _drain_at_memory_limit(self) -> None:
        await self.drain(timeout=self.context.settings.drain_timeout.total_seconds())
        self.memory_drained.set_result(None)

    async def _retire(self) -> None:
        """Fire no more slots and let another node lead: this process takes no more runs.

        Returns once a firing under way has ended; if the store is away, after a few seconds.
        """
        if self.leader.retired:
            return
        self.leader.retire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETIRE_SECONDS):
                await self.slot_firer.stop()
                with self.context.outages.suppressed("elect"):
                    await self.leader.resign()

    async def stop(self, *, graceful: bool, timeout: float) -> None:
        """Drain, commit the last outcomes, and close the store. Leases are renewed meanwhile."""
        context = self.context
        if context.settings.workers > 0:
            await self._drain_once(graceful=graceful, timeout=timeout)
            log.info("worker %s stopped", context.settings.worker_id)
            context.emit("worker.stopped", worker=context.settings.worker_id)
        # A store's driver may turn a cancellation into another error, and then the task continues.
        # So the engine cancels the tasks until all have ended.
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CANCEL_AGAIN_AFTER)
        await self.worker.close()
        try:
            await self.follower_releaser.release_last()
        except Exception as error:
            log.warning(
                "could not release the runs that wait for this process's last runs; the leader"
                " releases them within 10 s: %s",
                reason_of(error),
            )
        await self._leave_cluster()
        context.emit("scheduler.stopped")
        try:
            await context.store.close()
        except Exception as error:
            log.warning("the store could not be closed: %s", error)

    async def _leave_cluster(self) -> None:
        """End this node's term and delete its worker note. One that fails does not keep the other
        from being tried."""
        steps: list[Callable[[], Awaitable[None]]] = [self.leader.resign]
        if self.context.settings.workers > 0:
            steps.append(self.live_workers.withdraw)
        errors = []
        for step in steps:
            try:
                await step()
            except Exception as error:
                errors.append(error)
        self.leader.close()
        if errors:
            log.warning(
                "could not end this node's term or delete its worker note; other nodes count it as"
                " alive until its note expires: %s",
                reason_of(errors[0]),
            )

    async def _open(self, drafts: Sequence[Job], keep_from_stored: KeepFromStored | None) -> None:
        context = self.context
        await self._open_store()
        try:
            context.time.correct(await context.store.now())
            await self.job_operations.check_order(drafts)
            await self.job_operations.define_code(drafts, keep_from_stored)
        except BaseException:
            await context.store.close()
            raise

    async def _open_store(self) -> None:
        store = self.context.store
        if not self._warn_of_new_store:
            await store.open()
            return
        try:
            await store.open(create=False)
        except StoreMissing as missing:
            await store.open()
            log.warning(
                "%s, so an empty store was made there. If your workers use another one, check the"
                " store's URL",
                missing,
            )

    async def _flush(self) -> None:
        """Commit the last outcomes. If the store is away, give up after the length of a lease: the
        program must be able to stop, and the runs are rescued."""
        try:
            async with asyncio.timeout(self.context.settings.lease.total_seconds()):
                await self.worker.completer.flush()
        except TimeoutError:
            log.warning(
                "the store did not answer, so the last outcomes were not committed; another worker"
                " rescues these runs when their leases lapse"
            )

    async def _pass_on_hints(self) -> None:
        """Without workers, only who waits for the end of a run needs hints. A program that only
        enqueues would be woken by each of its own commits."""
        poll = self.context.settings.poll.total_seconds()
        while True:
            if self.context.settings.workers == 0:
                await self.run_waiters.wait_for_waiter()
            if await self.context.retrying_store.wait(poll):
                self.worker.wake()
                self.slot_firer.wake()
                self.run_waiters.wake()

    def _start_component(self, part: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._restart_on_error(part)))

    async def _restart_on_error(self, part: Callable[[], Awaitable[None]]) -> None:
        """Restart a component after an unexpected error, which is logged and emitted."""
        while True:
            try:
                await part()
                return
            except Exception as error:
                log.exception("a component of the engine failed and is started again")
                self.context.emit("scheduler.error", error=error)
                await asyncio.sleep(1)


def _with_idle_poll(settings: Settings, idle_poll: timedelta | None) -> Settings:
    """The settings, with polls that are not more frequent than the store wants them."""
    if idle_poll is None or idle_poll <= settings.poll:
        return settings
    return dataclasses.replace(settings, poll=idle_poll)
