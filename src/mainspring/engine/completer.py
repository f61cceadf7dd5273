"""Has outcomes recorded and, once they are durable, tells everybody: hooks, events, breakers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Run, State
from mainspring.core.transitions import Change
from mainspring.engine.attempt import Stop, Work
from mainspring.engine.breakers import Breakers, Turn
from mainspring.engine.commit_batcher import Settler
from mainspring.engine.context import EVENT_OF, EngineContext
from mainspring.engine.leases import Leases
from mainspring.engine.outcome import Verdict

__all__ = ["Record"]

log = logging.getLogger("mainspring")

Tell = Callable[..., None]


class Record:
    """`finished(run_id)` is called when a run that was held here is over and recorded."""

    def __init__(
        self,
        engine: EngineContext,
        settler: Settler,
        leases: Leases,
        finished: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._settler = settler
        self._leases = leases
        self._finished = finished
        self._tasks: set[asyncio.Task[None]] = set()
        self.breakers = Breakers()
        self.tell: Tell

    def settle(self, work: Work, verdict: Verdict) -> None:
        """Have the outcome of an attempt committed."""
        work.ended = True
        if work.committed:
            _warn_of_afterthoughts(work)
            self._settled(work, verdict, True)
            return
        self._settler.put(verdict.change, lambda kept: self._settled(work, verdict, kept))

    def begin(self, work: Work, recorded: Callable[[bool], None]) -> None:
        """Have it recorded that a handler begins. `recorded` hears whether the run is still ours
        to begin; where it is not, what is left to do is done here."""

        def settled(kept: bool) -> None:
            recorded(kept)
            if not kept:
                self._later(self._refused(work))

        self._settler.put(transitions.beginning(work.run), settled)

    def settle_alone(self, run: Run, change: Change) -> None:
        """Record a run that was claimed but never became work."""

        def settled(kept: bool) -> None:
            if not kept:
                self._later(self._refused_alone(run))
            elif (name := EVENT_OF.get(change.set["state"])) is not None:
                self._engine.emit(name, change.after(run))
                self._finished(run.id)

        self._settler.put(change, settled)

    def tell_breaker(self, run: Run, turn: Turn | None) -> None:
        if turn is not None:
            self._engine.emit(f"breaker.{turn}", run)

    def _settled(self, work: Work, verdict: Verdict, kept: bool) -> None:
        if not kept:
            self._later(self._refused(work))
            return
        self._leases.let_go(work)
        change, hooks = verdict.change, work.handler.hooks
        state = change.set["state"]
        if verdict.problem is not None:
            work.context.will_retry = verdict.will_retry
            self.tell(hooks.on_error, work.context, verdict.problem.exception)
        elif state is State.SUCCEEDED and hooks.on_success is not None:
            self.tell(hooks.on_success, work.context, change.set["result"])
        judged = verdict.problem is not None or state is State.SUCCEEDED
        turn = self._count(work, judged=judged, ok=verdict.problem is None)
        name = "run.retrying" if verdict.will_retry else EVENT_OF.get(state)
        if name is not None:
            error = verdict.problem.exception if verdict.problem else None
            if self._engine.events.wanted(name):
                data = {"breaker": turn} if turn == "opened" and verdict.will_retry else {}
                self._engine.emit(name, change.after(work.run), error, **data)
            if not verdict.will_retry:
                self._finished(work.run.id)

    async def _refused(self, work: Work) -> None:
        """Our outcome did not stand: a cancel came first, or the run is somebody else's."""
        for run in (await self._engine.retrying_store.get([work.run.id])).values():
            mine = run.token == work.run.token
            if mine and run.state is State.SUCCEEDED and work.completion is not None:
                # Its transaction was committed after all; only the answer was lost.
                self._settled(work, Verdict(work.completion), True)
                return
            if mine and run.state is State.RUNNING and run.cancel_requested:
                now, context = self._engine.time.now(), work.context
                change = transitions.cancelled(
                    work.run, now, run.reason, context.log_lines, context.detail
                )
                self.settle(work, Verdict(change))
                return
        self._leases.let_go(work)
        if work.stop is not Stop.LOST:
            log.warning("run %s was taken over; its outcome here is dropped", work.run.id)
            self._engine.emit("ownership.lost", work.run)

    async def _refused_alone(self, run: Run) -> None:
        """A cancel that came first would else be heeded only when the lease lapses: nobody here
        works on the run, so it can end at once."""
        for now in (await self._engine.retrying_store.get([run.id])).values():
            if now.token == run.token and now.state is State.RUNNING and now.cancel_requested:
                change = transitions.cancelled(now, self._engine.time.now(), now.reason)
                self.settle_alone(now, change)

    def _count(self, work: Work, *, judged: bool, ok: bool) -> Turn | None:
        """Count the outcome in the job's breaker; return what it did to it."""
        breaker = work.job.policy.breaker
        if breaker is None:
            return None
        if not judged or work.stop in (Stop.CANCEL, Stop.DRAIN):
            self.breakers.abandon(work.run.job_id)
            return None
        now = self._engine.clock.monotonic()
        turn = self.breakers.record(work.run.job_id, breaker, now, ok=ok)
        self.tell_breaker(work.run, turn)
        return turn

    def _later(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _warn_of_afterthoughts(work: Work) -> None:
    """Its transaction ended the run: nothing behind it can be recorded."""
    if work.stop is None and work.problem is not None:
        log.warning(
            "run %s was completed by its transaction; what its handler raised behind it is"
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
