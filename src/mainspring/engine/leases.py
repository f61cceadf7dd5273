"""The leases this process holds: renewed, watched, and let go.

A run is held from its claim until its outcome is recorded, also while it waits its turn and
while it is being settled. `lose` and `cancel` are what the worker does about a run that is
somebody else's by now, and about one that somebody asked to stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from mainspring.core.context import RunContext
from mainspring.core.model import Run, State, replace
from mainspring.engine.attempt import LocalAttempt, StopReason
from mainspring.engine.context import EngineContext
from mainspring.errors import StoreUnavailable, TransactionAborted
from mainspring.stores.protocol import Held, Renewed, RunQuery

__all__ = ["Leases"]

log = logging.getLogger("mainspring")

SELF_CANCEL = 0.8
"""The part of a lease after which a worker that could not renew stops its own handlers."""

YOUNG = 0.1
"""The part of a lease for which it needs no renewal. What waits for its turn among a thousand
no-ops, or ends soon, is over by then: it would be written once more for nothing."""

LOOK_AGAIN = 0.25
"""Least seconds between two looks for cancel requests of other processes."""


class Leases:
    def __init__(
        self,
        engine: EngineContext,
        *,
        lose: Callable[[LocalAttempt], None],
        cancel: Callable[[LocalAttempt], None],
    ) -> None:
        self._engine = engine
        self._lose = lose
        self._cancel = cancel
        self._held: dict[str, LocalAttempt] = {}
        self._changed = asyncio.Event()

    def hold(self, attempt: LocalAttempt) -> None:
        self._held[attempt.run.id] = attempt

    def let_go(self, attempt: LocalAttempt) -> None:
        """Renew it no more. The same run, claimed again meanwhile, is another attempt."""
        if self._held.get(attempt.run.id) is attempt:
            del self._held[attempt.run.id]

    def of(self, context: RunContext) -> LocalAttempt:
        """The attempt that this context belongs to. From any thread."""
        attempt = self._held.get(context.run_id)
        if attempt is None or attempt.context is not context:
            raise TransactionAborted(f"run {context.run_id} is no longer this worker's")
        return attempt

    def look(self) -> None:
        """Something has changed in the store, perhaps by another process."""
        self._changed.set()

    def is_safe(self, attempt: LocalAttempt) -> bool:
        """Whether its lease was confirmed so lately that it cannot have lapsed on the way."""
        lease = self._engine.settings.lease.total_seconds()
        return attempt.held_since >= self._engine.clock.monotonic() - lease * SELF_CANCEL

    def apply_remote_changes(self, runs: Iterable[Run]) -> None:
        """Stop what somebody asked to cancel, and what is no longer ours."""
        for run in runs:
            attempt = self._held.get(run.id)
            if attempt is None or _over(attempt) or run.token < attempt.run.token:
                continue
            if run.token != attempt.run.token or run.state is not State.RUNNING:
                self._lost(attempt)
            elif run.cancel_requested:
                attempt.run = replace(attempt.run, reason=run.reason)
                self._cancel(attempt)

    async def renewing(self) -> None:
        """Renew each lease when about a sixth of it is gone; no handler can block the engine's
        loop. After a failure soon again: the end of an outage must not be slept through with the
        lease running out."""
        lease = self._engine.settings.lease.total_seconds()
        answered = True
        while True:
            await asyncio.sleep(lease / (12 if answered else 60))
            answered = await self._renew()

    async def guarding(self) -> None:
        """Stop handlers before their lease lapses, also while a renewal hangs."""
        while True:
            await asyncio.sleep(self._engine.settings.lease.total_seconds() / 12)
            for attempt in list(self._held.values()):
                if not _over(attempt) and not self.is_safe(attempt):
                    self._lost(attempt)

    async def watching(self) -> None:
        """After a hint, look for cancel requests of other processes. It only reads: a write
        would hint in turn, and two idle processes would keep each other awake."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            # What was claimed a moment ago may be over a moment later: it is looked at then.
            before = self._engine.clock.monotonic() - LOOK_AGAIN
            held = [attempt for attempt in self._held.values() if not attempt.ended]
            old = [attempt.run.id for attempt in held if attempt.held_since < before]
            if old:
                query = RunQuery(ids=frozenset(old), brief=True)
                self.apply_remote_changes((await self._engine.retrying_store.find(query)).items)
            if len(old) < len(held):
                self._changed.set()
            await asyncio.sleep(LOOK_AGAIN)

    async def _renew(self) -> bool:
        """Whether the store has answered, as far as it was asked."""
        lease = self._engine.settings.lease
        sent = self._engine.clock.monotonic()
        young = sent - lease.total_seconds() * YOUNG
        attempts = [attempt for attempt in self._held.values() if _wants_renewal(attempt, young)]
        if not attempts:  # what could not be renewed is over: that fails no more
            self._engine.outages.succeeded("renew")
            return True
        held = [Held(w.run.id, w.run.token, w.context.latest_progress) for w in attempts]
        try:
            async with asyncio.timeout(lease.total_seconds() / 3):
                mine, refused = await self._renew_apart(held)
        except Exception as error:  # also a store that does not answer in time
            self._engine.outages.failed("renew", error)
            return False
        if len(refused) == len(held):  # it is not about these runs: the store takes nothing
            self._engine.outages.failed("renew", next(iter(refused.values())))
            return False
        for run_id, refusal in refused.items():
            log.error("the lease of run %s cannot be renewed: %s", run_id, refusal)
        self._engine.outages.succeeded("renew")
        still = {run.id for run in mine}
        for attempt in attempts:
            if attempt.run.id in refused:
                continue
            if attempt.run.id in still:
                attempt.held_since = sent
                self._emit_progress(attempt)
            elif self._held.get(attempt.run.id) is attempt and not _over(attempt):
                self._lost(attempt)
        asked = {attempt.run.id: attempt for attempt in attempts}
        for one in mine:
            attempt = asked[one.id]
            if one.cancel_requested and self._held.get(one.id) is attempt and not _over(attempt):
                attempt.run = replace(attempt.run, reason=one.reason)
                self._cancel(attempt)
        return True

    async def _renew_apart(self, held: list[Held]) -> tuple[list[Renewed], dict[str, Exception]]:
        """Renew all of these at once. Where the store cannot take that, find out which of them it
        cannot take, so that the leases of the others do not lapse for it. Such a one is renewed
        without its progress. The second answer are those that are refused even so."""
        try:
            return await self._engine.store.renew(held, self._engine.settings.lease), {}
        except (StoreUnavailable, TimeoutError):
            raise
        except Exception as error:
            if len(held) > 1:
                half = len(held) // 2
                first, refused = await self._renew_apart(held[:half])
                second, more = await self._renew_apart(held[half:])
                return first + second, refused | more
            [one] = held
            if one.progress is None:
                return [], {one.id: error}
            log.warning("the progress of run %s cannot be kept: %s", one.id, error)
            if (attempt := self._held.get(one.id)) is not None:
                attempt.context.latest_progress = None
            return await self._renew_apart([Held(one.id, one.token)])

    def _lost(self, attempt: LocalAttempt) -> None:
        if attempt.stop_reason is not StopReason.LOST:
            self._lose(attempt)

    def _emit_progress(self, attempt: LocalAttempt) -> None:
        progress = attempt.context.latest_progress
        if _has_news(attempt):
            attempt.emitted_progress = progress
            self._engine.emit("run.progress", replace(attempt.run, progress=progress))


def _has_news(attempt: LocalAttempt) -> bool:
    progress = attempt.context.latest_progress
    return progress is not None and progress is not attempt.emitted_progress


def _wants_renewal(attempt: LocalAttempt, young: float) -> bool:
    """A run in its transaction is left alone: the two writes would come into conflict, and the
    transaction is over long before the lease is."""
    if attempt.context.in_transaction:
        return False
    return attempt.held_since <= young or _has_news(attempt)


def _over(attempt: LocalAttempt) -> bool:
    """Whether nothing about the attempt can be lost or cancelled any more: it has ended, or it is
    being completed by its transaction, whose own fence decides."""
    return attempt.ended or attempt.completion is not None
