"""Claims runs, has them run, settles how they ended; renews what it holds; drains.

A run's way: `claim` → `_admit` → ready → `_begin` → runner → `_over` → `judge` → settler →
`_settled` → events. Everything here happens on the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from mainspring import states
from mainspring.context import RunContext
from mainspring.engine.breakers import Breakers, Turn
from mainspring.engine.parts import EVENT_OF, Parts
from mainspring.engine.resting import rest
from mainspring.engine.runner import Runner, Stop, Work
from mainspring.engine.settle import Settler
from mainspring.engine.verdict import Verdict, judge
from mainspring.model import (
    Run,
    State,
    replace,
)
from mainspring.states import Change
from mainspring.store import Claim, Held

__all__ = ["Worker"]

log = logging.getLogger("mainspring")

AHEAD_SECONDS = 0.05
"""How much work may wait in this process: what its places do in this time. Long handlers get
nothing ahead of their start; no-ops come in batches that pay for their commit."""

MOST_AHEAD = 1000
SELF_CANCEL = 0.8
"""The part of a lease after which a worker that could not renew stops its own handlers."""

LOOK_AGAIN = 0.25
"""Least seconds between two looks for cancel requests of other processes."""

DRAIN_GRACE = 2.0
"""Seconds for handlers to end once a drain has cancelled them."""

LEAST_SNOOZE = timedelta(seconds=0.1)
"""More than our time may lag behind the store's: else a snoozed run is due again at once, and
claimed and snoozed as fast as the store can."""


class Worker:
    """`finished(run_id)` is called when a run that was held here is over and recorded."""

    def __init__(self, parts: Parts, settler: Settler, finished: Callable[[str], None]) -> None:
        self._parts = parts
        self._settler = settler
        self._finished = finished
        self._settings = parts.settings
        self._breakers = Breakers()
        self._ready: deque[Work] = deque()
        self._active: dict[Work, None] = {}  # a run may be here twice: lost, and claimed again
        self._held: dict[str, Work] = {}
        self._stuck: set[Work] = set()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._claimed_last = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._handler_seconds = 1.0
        self.runner: Runner

    @property
    def running(self) -> int:
        return len(self._active)

    @property
    def stuck(self) -> int:
        """Threads that outlived their attempt and still take a place."""
        return len(self._stuck)

    def breaker_state(self, job_id: str) -> str:
        return self._breakers.state(job_id)

    def wake(self) -> None:
        """Something may be due, or may have changed."""
        self._wake.set()
        self._changed.set()

    def cancel(self, run: Run) -> None:
        """A cancel request that this process knows of before any hint."""
        self._heed([run])

    async def claiming(self) -> None:
        """Claim whenever there is room, until the worker drains."""
        while not self._draining:
            self._wake.clear()
            room = self._room()
            if room <= 0:
                await rest(self._wake, self._settings.poll.total_seconds())
            elif not await self._claim(room):
                await self._sleep_until_due()
        self._release_ready()
        self._claimed_last.set()

    async def renewing(self) -> None:
        """Renew every sixth of a lease; no handler can block the engine's loop."""
        while True:
            await asyncio.sleep(self._settings.lease.total_seconds() / 6)
            await self._renew(self._settings.lease)

    async def guarding(self) -> None:
        """Stop handlers before their lease lapses, also while a renewal hangs."""
        while True:
            await asyncio.sleep(self._settings.lease.total_seconds() / 12)
            self._give_up_unrenewed()

    async def watching(self) -> None:
        """After a hint, look for cancel requests of other processes. It only reads: a write
        would hint in turn, and two idle processes would keep each other awake."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._active:
                self._heed(await self._get(work.run.id for work in self._active))
            await asyncio.sleep(LOOK_AGAIN)

    async def drain(self, *, graceful: bool, timeout: float) -> None:
        """Stop claiming, give back what has not begun, wait for the rest, release it at last."""
        self._draining = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):  # a claim under way may still bring runs
            async with asyncio.timeout(DRAIN_GRACE):
                await self._claimed_last.wait()
        if graceful:
            await self._active_over(timeout)
        for work in list(self._active):
            self.runner.stop(work, Stop.DRAIN)
        await self._active_over(DRAIN_GRACE)
        for work in self._active:
            log.warning("run %s does not stop; it is rescued once its lease lapses", work.run.id)

    # Claiming

    def _free(self) -> int:
        return self._settings.workers - len(self._active) - len(self._stuck)

    def _room(self) -> int:
        """How many runs to claim. What waits ahead is refilled when half of it is gone: fewer
        and larger claims cost fewer commits."""
        free, ready = max(self._free(), 0), len(self._ready)
        asked = self._settings.workers / self._handler_seconds * AHEAD_SECONDS
        ahead = min(int(asked), MOST_AHEAD)
        return free + ahead - ready if free > ready or ready <= ahead // 2 else 0

    async def _claim(self, limit: int) -> bool:
        sent = self._parts.clock.monotonic()
        claim = self._asked(limit)
        runs = await self._parts.patience.call("claim", lambda: self._parts.store.claim(claim))
        if not runs:
            return False
        await self._admit(runs, sent)
        return True

    def _asked(self, limit: int) -> Claim:
        return Claim(
            worker=self._settings.worker_id,
            handlers=self._parts.registry.names(),
            queues=self._settings.queues,
            limit=limit,
            lease=self._settings.lease,
        )

    async def _sleep_until_due(self) -> None:
        claim = self._asked(1)
        due = await self._parts.patience.call("next due", lambda: self._parts.store.next_due(claim))
        seconds = self._settings.poll.total_seconds()
        if due is not None:
            seconds = min(seconds, (due - self._parts.time.now()).total_seconds())
        await rest(self._wake, max(seconds, 0.001))

    async def _admit(self, runs: list[Run], sent: float) -> None:
        """Turn claimed runs into work, or settle at once what will not run."""
        jobs = await self._parts.patience.call(
            "jobs", lambda: self._parts.jobs.get({run.job_id for run in runs})
        )
        results = await self._upstream_results(runs)
        for run in runs:
            job = jobs.get(run.job_id)
            if job is None:
                now = self._parts.time.now()
                self._settle_alone(run, states.cancelled(run, now, "job removed"))
                continue
            handler = self._parts.registry.get(run.handler)
            context = RunContext(run, self._parts.resources, results.get(run.id))
            work = Work(run, job, handler, context, sent)
            if not self._put_off(work):
                self._held[run.id] = work
                self._ready.append(work)
        self._begin()

    def _put_off(self, work: Work) -> bool:
        """Settle a run that is too late, or whose breaker is open."""
        run, now = work.run, self._parts.time.now()
        if run.start_by is not None and now > run.start_by:
            self._settle_alone(run, states.skipped(run, now, "expired"))
            return True
        breaker = work.job.policy.breaker
        if breaker is None:
            return False
        mono = self._parts.clock.monotonic()
        wait, turn = self._breakers.admit(run.job_id, breaker, mono)
        self._tell_breaker(run, turn)
        if wait is None:
            return False
        self._settle_alone(run, states.snoozed(run, now + max(wait, LEAST_SNOOZE)))
        return True

    async def _upstream_results(self, runs: list[Run]) -> dict[str, dict[str, Any]]:
        waited = {upstream for run in runs for upstream in run.after}
        if not waited:
            return {}
        found = {run.id: run for run in await self._get(waited)}
        return {
            run.id: {found[u].job_id: found[u].result for u in run.after if u in found}
            for run in runs
        }

    def _begin(self) -> None:
        count = min(self._free(), len(self._ready))
        if count <= 0 or self._draining:
            return
        batch: list[Work] = []
        oldest = self._oldest_safe()
        while len(batch) < count and self._ready:
            work = self._ready.popleft()
            if work.held_since < oldest:
                self._give_back(work)
                continue
            batch.append(work)
            self._active[work] = None
            self._parts.emit("run.started", work.run)
        self.runner.begin(batch)

    def _oldest_safe(self) -> float:
        """A lease last confirmed before this may be somebody else's by now."""
        lease = self._settings.lease.total_seconds()
        return self._parts.clock.monotonic() - lease * SELF_CANCEL

    def _give_back(self, work: Work) -> None:
        now = self._parts.time.now()
        self._settle(work, Verdict(states.released(work.run, now, began=False)))

    # Renewing

    async def _renew(self, lease: timedelta) -> None:
        works = list(self._held.values())
        if not works:
            return
        held = [Held(w.run.id, w.run.token, w.context.latest_progress) for w in works]
        sent = self._parts.clock.monotonic()
        try:
            async with asyncio.timeout(lease.total_seconds() / 3):
                mine = await self._parts.store.renew(held, lease)
        except Exception as error:  # also a store that does not answer in time
            self._parts.patience.failed("renew", error)
            return
        self._parts.patience.succeeded("renew")
        still = {run.id for run in mine}
        for work in works:
            if work.run.id in still:
                work.held_since = sent
                self._tell_progress(work)
            elif self._held.get(work.run.id) is work and not work.ended:
                self._lose(work)
        self._heed(mine)

    def _give_up_unrenewed(self) -> None:
        """Past most of its lease a run may be somebody else's: stop before it lapses."""
        oldest = self._oldest_safe()
        for work in list(self._held.values()):
            if work.held_since < oldest and not work.ended:
                self._lose(work)

    def _heed(self, runs: Iterable[Run]) -> None:
        """Stop what somebody asked to cancel, and what is no longer ours."""
        for run in runs:
            work = self._held.get(run.id)
            if work is None or work.ended or run.token < work.run.token:
                continue
            if run.token != work.run.token or run.state is not State.RUNNING:
                self._lose(work)
            elif run.cancel_requested:
                work.run = replace(work.run, reason=run.reason)
                if not self._unready(work):
                    self.runner.stop(work, Stop.CANCEL)
                    continue
                now = self._parts.time.now()
                self._settle(work, Verdict(states.cancelled(work.run, now, run.reason)))

    def _lose(self, work: Work) -> None:
        if work.stop is Stop.LOST:
            return
        log.warning("lost the lease of run %s; its handler is stopped", work.run.id)
        self._parts.emit("ownership.lost", work.run)
        if self._unready(work):
            self._let_go(work)
        else:
            self.runner.stop(work, Stop.LOST)

    def _unready(self, work: Work) -> bool:
        """Take work that has not begun out of the queue; False if it has begun."""
        if work in self._active:
            return False
        self._ready.remove(work)
        return True

    def _let_go(self, work: Work) -> None:
        """Renew it no more. The same run, claimed again meanwhile, is another work."""
        if self._held.get(work.run.id) is work:
            del self._held[work.run.id]

    def _release_ready(self) -> None:
        while self._ready:
            self._give_back(self._ready.popleft())

    async def _active_over(self, timeout: float) -> None:
        ends = self._parts.clock.monotonic() + timeout
        while self._active and (left := ends - self._parts.clock.monotonic()) > 0:
            self._wake.clear()
            await rest(self._wake, left)

    # Settling

    def over(self, works: list[Work]) -> None:
        """Attempts have ended: decide what becomes of each run, and have it committed."""
        now = self._parts.time.now()
        for work in works:
            self._active.pop(work, None)
            if work.lingering:
                self._note_stuck(work)
            if work.stop is Stop.LOST:
                self._let_go(work)
                self._breakers.abandon(work.run.job_id)
                continue
            self._settle(work, judge(work, now, self._parts.rng))
        self._note_pace(works)
        self._begin()
        self._wake.set()

    def freed(self, work: Work) -> None:
        """A thread that had outlived its attempt has ended: its place is free again."""
        self._stuck.discard(work)
        self._begin()
        self._wake.set()

    def _settle(self, work: Work, verdict: Verdict) -> None:
        work.ended = True
        self._settler.put(verdict.change, lambda kept: self._settled(work, verdict, kept))

    def _settle_alone(self, run: Run, change: Change) -> None:
        """Record a run that was claimed but never became work."""

        def settled(kept: bool) -> None:
            if kept and (name := EVENT_OF.get(change.set["state"])) is not None:
                self._parts.emit(name, change.after(run))
                self._finished(run.id)

        self._settler.put(change, settled)

    def _settled(self, work: Work, verdict: Verdict, kept: bool) -> None:
        if not kept:
            self._later(self._refused(work))
            return
        self._let_go(work)
        change, hooks = verdict.change, work.handler.hooks
        state = change.set["state"]
        if verdict.problem is not None:
            work.context.will_retry = verdict.will_retry
            self.runner.tell(hooks.on_error, work.context, verdict.problem.exception)
        elif state is State.SUCCEEDED:
            self.runner.tell(hooks.on_success, work.context, work.result)
        self._count(work, ok=verdict.problem is None)
        name = "run.retrying" if verdict.will_retry else EVENT_OF.get(state)
        if name is not None:
            error = verdict.problem.exception if verdict.problem else None
            if self._parts.events.wanted(name):
                self._parts.emit(name, change.after(work.run), error)
            if not verdict.will_retry:
                self._finished(work.run.id)

    async def _refused(self, work: Work) -> None:
        """Our outcome did not stand: a cancel came first, or the run is somebody else's."""
        for run in await self._get([work.run.id]):
            if run.token == work.run.token and run.state is State.RUNNING and run.cancel_requested:
                now, log_lines = self._parts.time.now(), work.context.log_lines
                change = states.cancelled(work.run, now, run.reason, log_lines)
                self._settle(work, Verdict(change))
                return
        self._let_go(work)
        if work.stop is not Stop.LOST:
            log.warning("run %s was taken over; its outcome here is dropped", work.run.id)
            self._parts.emit("ownership.lost", work.run)

    def _count(self, work: Work, *, ok: bool) -> None:
        breaker = work.job.policy.breaker
        if breaker is None:
            return
        if work.stop in (Stop.CANCEL, Stop.DRAIN):
            self._breakers.abandon(work.run.job_id)
            return
        now = self._parts.clock.monotonic()
        turn = self._breakers.record(work.run.job_id, breaker, now, ok=ok)
        self._tell_breaker(work.run, turn)

    def _note_pace(self, works: list[Work]) -> None:
        """A running mean of what a handler takes, which sets how far ahead to claim."""
        now = self._parts.time.now()
        for work in works:
            if work.began_at is not None:
                seconds = max((now - work.began_at).total_seconds(), 1e-4)
                self._handler_seconds += (seconds - self._handler_seconds) * 0.05

    def _note_stuck(self, work: Work) -> None:
        self._stuck.add(work)
        if work.stop is Stop.TIMEOUT:
            log.warning(
                "run %s timed out but its thread goes on and keeps its place (%d of %d are taken"
                ' so); isolation="process" can be stopped for real',
                work.run.id,
                len(self._stuck),
                self._settings.workers,
            )

    def _tell_breaker(self, run: Run, turn: Turn | None) -> None:
        if turn is not None:
            self._parts.emit(f"breaker.{turn}", run)

    def _tell_progress(self, work: Work) -> None:
        progress = work.context.latest_progress
        if progress is not None and progress is not work.told_progress:
            work.told_progress = progress
            self._parts.emit("run.progress", replace(work.run, progress=progress))

    async def _get(self, ids: Iterable[str]) -> list[Run]:
        wanted = list(ids)
        found = await self._parts.patience.call("get", lambda: self._parts.store.get(wanted))
        return list(found.values())

    def _later(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
