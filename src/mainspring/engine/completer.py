"""Commits the outcomes of attempts in batches, then emits events and calls hooks.

Ended attempts, and attempts that are about to begin, queue a change here. One task commits what has
queued up, in one store call: the more attempts end at once, the less each costs. Outcomes of jobs
with a circuit breaker are then counted, also in one step for the batch; that of a trial is counted
first. The completer emits events and calls hooks only after the store has committed the outcome.
Everything here happens on the engine's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from mainspring.core import transitions
from mainspring.core.model import Run, State, replace
from mainspring.core.transitions import Change
from mainspring.engine.attempt import LocalAttempt, StopReason
from mainspring.engine.breakers import BreakerEvent, Breakers, JobOutcome
from mainspring.engine.context import EVENT_OF, EngineContext
from mainspring.engine.leases import Leases
from mainspring.engine.outcome import Decision, decide
from mainspring.stores.protocol import RunQuery

log = logging.getLogger("mainspring")

LARGEST_BATCH = 1000
BUSY_BATCH = 32
GATHER_SECONDS = 0.003
"""Seconds to wait after a batch of at least `BUSY_BATCH` changes, so that the next batch is larger
and the same runs need fewer commits. A single outcome never waits."""

OnCommitted = Callable[[bool], None]
CallHook = Callable[..., None]


class Queued(NamedTuple):
    """A change to commit, and what to do then: call `committed`, or complete an attempt.

    An attempt is kept here and not in a closure: that makes five objects for the garbage collector,
    which took an eighth of a drain."""

    change: Change | None
    """None: the handler's transaction has committed it."""
    committed: OnCommitted | None = None
    attempt: LocalAttempt | None = None
    decision: Decision | None = None
    outcome: JobOutcome | None = None
    """What the job's breaker counts."""


class Completer:
    """`call_hook(hook, *arguments)` is set when the dispatcher is made."""

    def __init__(self, engine: EngineContext, leases: Leases) -> None:
        self._engine = engine
        self._leases = leases
        self._queued: list[Queued] = []
        self._filled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.breakers = Breakers(engine)
        self._breaker_events: dict[str, BreakerEvent] = {}
        """How runs of the batch that was committed last changed their job's breaker."""
        self.call_hook: CallHook

    def complete(self, attempt: LocalAttempt, decision: Decision) -> None:
        """Queue the outcome of an attempt."""
        attempt.ended = True
        if attempt.committed:
            _warn_of_dropped_outcome(attempt)
        change = None if attempt.committed else decision.change
        self._queue_outcome(change, attempt, decision)

    def complete_without_attempt(self, run: Run, change: Change) -> None:
        """Queue a change of a claimed run that has no attempt here."""

        def committed(kept: bool) -> None:
            if not kept:
                self._start(self._cancel_without_attempt(run))
            elif (name := EVENT_OF.get(change.set["state"])) is not None:
                self._engine.emit(name, change.after(run))
                self._engine.run_ended(run.id)

        self._queue(Queued(change, committed))

    def record_begin(self, attempt: LocalAttempt, recorded: OnCommitted) -> None:
        """Queue the change that records that the handler begins. `recorded(False)`: this worker no
        longer holds the run, or somebody cancelled it; the completer ends the attempt."""

        def committed(kept: bool) -> None:
            recorded(kept)
            if not kept:
                self._start(self._end_refused(attempt))

        self._queue(Queued(transitions.began(attempt.run), committed))

    async def commit_batches(self) -> None:
        """Commit what is queued, one batch at a time, until the engine stops."""
        busy = False
        while True:
            await self._filled.wait()
            if busy:
                await asyncio.sleep(GATHER_SECONDS)
            busy = await self._commit_batch() >= BUSY_BATCH

    async def flush(self) -> None:
        """Wait until everything that was queued is committed, and what followed from it: a change
        that the store refused is read again, and may be followed by another."""
        while self._tasks or not self._idle.is_set():
            await self._idle.wait()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Cancel what `flush` did not wait for: the store was away for too long."""
        for task in self._tasks:
            task.cancel()

    # Committing

    def _queue(self, queued: Queued) -> None:
        self._queued.append(queued)
        self._idle.clear()
        self._filled.set()

    def _queue_outcome(
        self, change: Change | None, attempt: LocalAttempt, decision: Decision
    ) -> None:
        outcome = _breaker_outcome(attempt, decision)
        self._queue(Queued(change, None, attempt, decision, outcome))

    async def _commit_batch(self) -> int:
        batch = self._queued[:LARGEST_BATCH]
        del self._queued[:LARGEST_BATCH]
        if not self._queued:
            self._filled.clear()
        outcomes = [queued.outcome for queued in batch if queued.outcome is not None]
        trials = [outcome for outcome in outcomes if self.breakers.is_trial(outcome.run)]
        events = await self.breakers.record(trials, is_sure=True) if trials else {}
        changes = [queued.change for queued in batch if queued.change is not None]
        answers = iter(await self._commit(changes) if changes else ())
        pairs = [(queued, queued.change is None or next(answers)) for queued in batch]
        outcomes = [
            outcome
            for queued, kept in pairs
            if kept and (outcome := queued.outcome) is not None and outcome not in trials
        ]
        # The events of runs that failed say whether they opened their breaker. Successes are
        # counted after their events and hooks.
        if any(not outcome.ok for outcome in outcomes):
            events |= await self.breakers.record(outcomes)
            outcomes = []
        self._breaker_events = events
        for queued, kept in pairs:
            if queued.attempt is not None and queued.decision is not None:
                self._completed(queued.attempt, queued.decision, kept)
            elif queued.committed is not None:
                queued.committed(kept)
        if outcomes:
            await self.breakers.record(outcomes)
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
            return kept
        except Exception as error:
            log.exception("the store refused the outcome of run %s", change.id)
            self._engine.emit("scheduler.error", error=error)
            reduced = _without_values(change, error)
        if reduced is None:
            return False
        try:
            [kept] = await self._engine.retrying_store.commit([reduced])
        except Exception:
            log.exception("the store refused the outcome of run %s without its values", change.id)
            return False
        log.warning("run %s is recorded without its result, log and detail", change.id)
        return kept

    # After the commit

    def _completed(self, attempt: LocalAttempt, decision: Decision, kept: bool) -> None:
        self.breakers.settle(attempt)
        if not kept:
            self._start(self._end_refused(attempt))
            return
        self._leases.release(attempt)
        change, hooks = decision.change, attempt.handler.hooks
        state = change.set["state"]
        if decision.error is not None:
            attempt.context.will_retry = decision.will_retry
            self.call_hook(hooks.on_error, attempt.context, decision.error.exception)
        elif state is State.SUCCEEDED and hooks.on_success is not None:
            self.call_hook(hooks.on_success, attempt.context, change.set["result"])
        name = "run.retrying" if decision.will_retry else EVENT_OF.get(state)
        if name is not None:
            error = decision.error.exception if decision.error else None
            if self._engine.events.wanted(name):
                opened = self._breaker_events.get(attempt.run.id) == "opened"
                opened = opened and decision.will_retry
                data = {"breaker": "opened"} if opened else {}
                self._engine.emit(name, change.after(attempt.run), error, **data)
            if not decision.will_retry:
                self._engine.run_ended(attempt.run.id)

    async def _end_refused(self, attempt: LocalAttempt) -> None:
        """End an attempt whose change the store refused: somebody cancelled the run first, another
        worker has it, or the store cannot keep the change."""
        query = RunQuery(ids=frozenset({attempt.run.id}))
        lost = f"run {attempt.run.id} was taken over by another worker"
        for run in (await self._engine.retrying_store.find(query)).items:
            mine = run.token == attempt.run.token
            if mine and run.state is State.SUCCEEDED and attempt.completion is not None:
                # The handler's transaction was committed after all; only the answer was lost.
                self._queue_outcome(None, attempt, Decision(attempt.completion))
                return
            if mine and run.state is State.RUNNING and run.cancel_requested:
                attempt.run = replace(attempt.run, reason=run.reason)
                attempt.stop_reason = StopReason.CANCEL
                self.complete(attempt, decide(attempt, self._engine.time.now(), self._engine.rng))
                return
            if mine and run.state is State.RUNNING:  # `_commit_alone` has logged why
                log.warning("run %s is tried again when its lease lapses", run.id)
                self._leases.release(attempt)
                return
            if mine:
                lost = f"run {run.id} is {run.state} by now"
        self._leases.release(attempt)
        if attempt.stop_reason is not StopReason.LOST:
            log.warning("%s; its outcome here is dropped", lost)
            self._engine.emit("ownership.lost", attempt.run)

    async def _cancel_without_attempt(self, run: Run) -> None:
        """Cancel a run without an attempt here if somebody requested it. Otherwise the run would
        stay running until its lease lapses."""
        query = RunQuery(ids=frozenset({run.id}))
        for now in (await self._engine.retrying_store.find(query)).items:
            if now.token == run.token and now.state is State.RUNNING and now.cancel_requested:
                change = transitions.cancelled(now, self._engine.time.now(), now.reason)
                self.complete_without_attempt(now, change)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _breaker_outcome(attempt: LocalAttempt, decision: Decision) -> JobOutcome | None:
    """What the breaker of the job counts; None if it has none, or if the end of the attempt says
    nothing about the job: it was cancelled, drained, released, rolled back or snoozed."""
    breaker = attempt.job.policy.breaker
    if breaker is None or attempt.stop_reason in (StopReason.CANCEL, StopReason.DRAIN):
        return None
    ok = decision.change.set["state"] is State.SUCCEEDED
    if not ok and (decision.error is None or decision.change.set.get("reason") == transitions.LOST):
        return None
    return JobOutcome(attempt.run, attempt.job, breaker, ok)


def _without_values(change: Change, error: Exception) -> Change | None:
    """The same outcome without what the handler has written: its result, log lines and detail. A
    handler that has ended must not run again because of a value that the store cannot keep. None
    if the change has no such values."""
    attempts = change.set.get("attempts")
    if not attempts:
        return None
    why = _plain_text(f"the store refused the result, the log or the detail: {error}")
    last = replace(
        attempts[-1],
        log=(why,),
        detail=None,
        error=_plain_text(attempts[-1].error),
        traceback=None,
    )
    put = {name: _plain_text(value) for name, value in change.set.items()}
    put |= {"attempts": (*attempts[:-1], last), "progress": None}
    if "result" in put:
        put["result"] = None
    return Change(change.id, change.expect, put, ending=change.ending)


def _plain_text(value: Any) -> Any:
    """A text in characters that every store keeps; any other value as it is."""
    if type(value) is not str:
        return value
    return value.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")


def _warn_of_dropped_outcome(attempt: LocalAttempt) -> None:
    """A transaction has ended the run: what the handler raises or returns after it is dropped."""
    if attempt.stop_reason is None and attempt.error is not None:
        log.warning(
            "run %s was completed by its transaction; the error that its handler raised after it is"
            " dropped: %s",
            attempt.run.id,
            attempt.error.message,
        )
    elif attempt.result is not None:
        log.warning(
            "run %s was completed by its transaction; what its handler returned is dropped: set"
            " ctx.result in the block instead",
            attempt.run.id,
        )
