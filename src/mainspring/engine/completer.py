"""Commits the outcomes of attempts in batches, then emits events and calls hooks.

Ended attempts, and attempts that are about to begin, queue a change here. One task commits what has
queued up, in one store call: the more attempts end at once, the less each costs. Hooks, events and
circuit breakers hear of an outcome only after the store has it. Everything here happens on the
engine's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Run, State
from mainspring.core.transitions import Change
from mainspring.engine.attempt import Stop, Work
from mainspring.engine.breakers import Breakers, Turn
from mainspring.engine.context import EVENT_OF, EngineContext
from mainspring.engine.leases import Leases
from mainspring.engine.outcome import Verdict
from mainspring.stores.protocol import RunQuery

__all__ = ["Completer"]

log = logging.getLogger("mainspring")

LARGEST_BATCH = 1000
BUSY_BATCH = 32
GATHER_SECONDS = 0.003
"""After a batch of `BUSY_BATCH` the next one waits so long, so that it is larger: fewer commits for
the same runs. A single outcome never waits."""

OnCommitted = Callable[[bool], None]
CallHook = Callable[..., None]


class Completer:
    """`finished(run_id)` is called when a run of this worker has ended and the store has it.

    `call_hook(hook, *arguments)` is set when the dispatcher is made.
    """

    def __init__(
        self, engine: EngineContext, leases: Leases, finished: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._finished = finished
        self._queued: list[tuple[Change, OnCommitted]] = []
        self._filled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.breakers = Breakers()
        self.call_hook: CallHook

    def complete(self, work: Work, verdict: Verdict) -> None:
        """Queue the outcome of an attempt."""
        work.ended = True
        if work.committed:
            _warn_of_dropped_outcome(work)
            self._completed(work, verdict, True)
            return
        self._queue(verdict.change, lambda kept: self._completed(work, verdict, kept))

    def complete_unstarted(self, run: Run, change: Change) -> None:
        """Queue a change of a claimed run that has no attempt here."""

        def committed(kept: bool) -> None:
            if not kept:
                self._start(self._cancel_unstarted(run))
            elif (name := EVENT_OF.get(change.set["state"])) is not None:
                self._engine.emit(name, change.after(run))
                self._finished(run.id)

        self._queue(change, committed)

    def record_begin(self, work: Work, recorded: OnCommitted) -> None:
        """Queue the record that a handler begins. `recorded(False)`: the run is not this worker's
        any more, or somebody cancelled it; the completer ends the attempt."""

        def committed(kept: bool) -> None:
            recorded(kept)
            if not kept:
                self._start(self._end_refused(work))

        self._queue(transitions.beginning(work.run), committed)

    def emit_breaker(self, run: Run, turn: Turn | None) -> None:
        if turn is not None:
            self._engine.emit(f"breaker.{turn}", run)

    async def committing(self) -> None:
        """Commit what is queued, one batch at a time, until the engine stops."""
        busy = False
        while True:
            await self._filled.wait()
            if busy:
                await asyncio.sleep(GATHER_SECONDS)
            busy = await self._commit_batch() >= BUSY_BATCH

    async def flushed(self) -> None:
        """Wait until everything that was queued is committed."""
        await self._idle.wait()

    # Committing

    def _queue(self, change: Change, committed: OnCommitted) -> None:
        self._queued.append((change, committed))
        self._idle.clear()
        self._filled.set()

    async def _commit_batch(self) -> int:
        batch = self._queued[:LARGEST_BATCH]
        del self._queued[:LARGEST_BATCH]
        if not self._queued:
            self._filled.clear()
        done = await self._commit([change for change, _ in batch])
        for (_, committed), kept in zip(batch, done, strict=True):
            committed(kept)
        if not self._queued:
            self._idle.set()
        return len(batch)

    async def _commit(self, changes: Sequence[Change]) -> list[bool]:
        try:
            return await self._engine.retrying_store.commit(changes)
        except Exception:
            # One change that the store cannot take must not hold up the others.
            return [await self._commit_alone(change) for change in changes]

    async def _commit_alone(self, change: Change) -> bool:
        try:
            [kept] = await self._engine.retrying_store.commit([change])
        except Exception as error:
            log.exception("the store refused to record run %s", change.id)
            self._engine.emit("scheduler.error", error=error)
            return False
        return kept

    # After the commit

    def _completed(self, work: Work, verdict: Verdict, kept: bool) -> None:
        if not kept:
            self._start(self._end_refused(work))
            return
        self._leases.let_go(work)
        change, hooks = verdict.change, work.handler.hooks
        state = change.set["state"]
        if verdict.problem is not None:
            work.context.will_retry = verdict.will_retry
            self.call_hook(hooks.on_error, work.context, verdict.problem.exception)
        elif state is State.SUCCEEDED and hooks.on_success is not None:
            self.call_hook(hooks.on_success, work.context, change.set["result"])
        judged = verdict.problem is not None or state is State.SUCCEEDED
        turn = self._count_in_breaker(work, judged=judged, ok=verdict.problem is None)
        name = "run.retrying" if verdict.will_retry else EVENT_OF.get(state)
        if name is not None:
            error = verdict.problem.exception if verdict.problem else None
            if self._engine.events.wanted(name):
                data = {"breaker": turn} if turn == "opened" and verdict.will_retry else {}
                self._engine.emit(name, change.after(work.run), error, **data)
            if not verdict.will_retry:
                self._finished(work.run.id)

    async def _end_refused(self, work: Work) -> None:
        """End an attempt whose change the store refused: somebody cancelled the run first, or
        another worker has it."""
        query = RunQuery(ids=frozenset({work.run.id}))
        for run in (await self._engine.retrying_store.find(query)).items:
            mine = run.token == work.run.token
            if mine and run.state is State.SUCCEEDED and work.completion is not None:
                # The handler's transaction was committed after all; only the answer was lost.
                self._completed(work, Verdict(work.completion), True)
                return
            if mine and run.state is State.RUNNING and run.cancel_requested:
                now, context = self._engine.time.now(), work.context
                change = transitions.cancelled(
                    work.run, now, run.reason, context.log_lines, context.detail
                )
                self.complete(work, Verdict(change))
                return
        self._leases.let_go(work)
        if work.stop is not Stop.LOST:
            log.warning("run %s was taken over; its outcome here is dropped", work.run.id)
            self._engine.emit("ownership.lost", work.run)

    async def _cancel_unstarted(self, run: Run) -> None:
        """Cancel a run without an attempt here if somebody requested it. Otherwise the run would
        stay running until its lease lapses."""
        query = RunQuery(ids=frozenset({run.id}))
        for now in (await self._engine.retrying_store.find(query)).items:
            if now.token == run.token and now.state is State.RUNNING and now.cancel_requested:
                change = transitions.cancelled(now, self._engine.time.now(), now.reason)
                self.complete_unstarted(now, change)

    def _count_in_breaker(self, work: Work, *, judged: bool, ok: bool) -> Turn | None:
        """Count the outcome in the job's circuit breaker; return how that changed its state."""
        breaker = work.job.policy.breaker
        if breaker is None:
            return None
        if not judged or work.stop in (Stop.CANCEL, Stop.DRAIN):
            self.breakers.abandon(work.run.job_id)
            return None
        now = self._engine.clock.monotonic()
        turn = self.breakers.record(work.run.job_id, breaker, now, ok=ok)
        self.emit_breaker(work.run, turn)
        return turn

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _warn_of_dropped_outcome(work: Work) -> None:
    """A transaction has ended the run: what the handler raises or returns after it is dropped."""
    if work.stop is None and work.problem is not None:
        log.warning(
            "run %s was completed by its transaction; the error that its handler raised after it is"
            " dropped: %s",
            work.run.id,
            work.problem.error,
        )
    elif work.result is not None:
        log.warning(
            "run %s was completed by its transaction; what its handler returned is dropped: set"
            " ctx.result in the block instead",
            work.run.id,
        )
