"""Renews the leases of this process, and stops attempts whose lease is lost or that are cancelled.

A run is held from its claim until its outcome is committed, also while it waits for capacity. The
worker passes two functions: `lose(attempt)` for a run that another worker may have, and
`cancel(attempt)` for one that somebody has cancelled.
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

log = logging.getLogger("mainspring")

STOP_HANDLER_AFTER = 0.8
"""The part of a lease after which a worker that could not renew stops its own handlers."""

RENEW_AFTER = 0.1
"""The part of a lease for which it is not renewed. Short attempts end within it, so that no
renewal is written for them."""

CANCEL_CHECK = 0.25
"""Least seconds between two searches for cancel requests of other processes."""


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
        self._safe_seconds = engine.settings.lease.total_seconds() * STOP_HANDLER_AFTER
        self._held: dict[str, LocalAttempt] = {}
        self._changed = asyncio.Event()

    def hold(self, attempt: LocalAttempt) -> None:
        self._held[attempt.run.id] = attempt

    def release(self, attempt: LocalAttempt) -> None:
        """Stop renewing. If this worker has claimed the run again, that attempt stays held."""
        if self._held.get(attempt.run.id) is attempt:
            del self._held[attempt.run.id]

    def attempt_of(self, context: RunContext) -> LocalAttempt:
        """Return the attempt of a run context. Called from any thread."""
        attempt = self._held.get(context.run_id)
        if attempt is None or attempt.context is not context:
            raise TransactionAborted(f"run {context.run_id} is no longer this worker's")
        return attempt

    def wake(self) -> None:
        """Search for cancel requests: another process may have changed a run."""
        self._changed.set()

    def is_safe(self, attempt: LocalAttempt) -> bool:
        """Whether its lease was confirmed so recently that it cannot have lapsed."""
        return attempt.held_since >= self._engine.clock.monotonic() - self._safe_seconds

    def apply_remote_changes(self, runs: Iterable[Run]) -> None:
        """Stop the attempts of runs that are cancelled, or that this worker no longer holds."""
        for run in runs:
            attempt = self._held.get(run.id)
            if attempt is None or _is_over(attempt) or run.token < attempt.run.token:
                continue
            if run.token != attempt.run.token or run.state is not State.RUNNING:
                self._lost(attempt)
            elif run.cancel_requested:
                attempt.run = replace(attempt.run, reason=run.reason)
                self._cancel(attempt)

    async def renew_periodically(self) -> None:
        """Renew each lease when about a sixth of it is over. After a failure try again soon, so
        that leases are renewed as soon as an outage ends."""
        lease = self._engine.settings.lease.total_seconds()
        answered = True
        while True:
            await asyncio.sleep(lease / (12 if answered else 60))
            answered = await self._renew()

    async def stop_before_lapse(self) -> None:
        """Stop handlers before their lease lapses, also while a renewal hangs."""
        while True:
            await asyncio.sleep(self._engine.settings.lease.total_seconds() / 12)
            for attempt in list(self._held.values()):
                if not _is_over(attempt) and not self.is_safe(attempt):
                    self._lost(attempt)

    async def watch_cancels(self) -> None:
        """After a hint, search for cancel requests of other processes. This only reads: a write
        would give a hint in turn, and two idle processes would keep each other awake."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._search_for_cancels()
            await asyncio.sleep(CANCEL_CHECK)

    async def _search_for_cancels(self) -> None:
        # Runs that were claimed a moment ago mostly end soon: they are checked next time.
        before = self._engine.clock.monotonic() - CANCEL_CHECK
        held = [attempt for attempt in self._held.values() if not attempt.ended]
        old = [attempt.run.id for attempt in held if attempt.held_since < before]
        if len(old) < len(held):
            self._changed.set()
        if old:
            query = RunQuery(ids=frozenset(old), brief=True)
            self.apply_remote_changes((await self._engine.retrying_store.find(query)).items)

    async def _renew(self) -> bool:
        """Renew what needs it; return False if the store did not answer."""
        lease = self._engine.settings.lease
        sent = self._engine.clock.monotonic()
        fresh_since = sent - lease.total_seconds() * RENEW_AFTER
        attempts = [
            attempt for attempt in self._held.values() if _wants_renewal(attempt, fresh_since)
        ]
        if not attempts:  # what could not be renewed has ended
            self._engine.outages.succeeded("renew")
            return True
        held = [Held(w.run.id, w.run.token, w.context.latest_progress) for w in attempts]
        try:
            async with asyncio.timeout(lease.total_seconds() / 3):
                mine, refused = await self._renew_in_halves(held)
        except Exception as error:  # also a store that does not answer in time
            self._engine.outages.failed("renew", error)
            return False
        if len(refused) == len(held):  # the store refuses all: it is not about these runs
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
            elif self._held.get(attempt.run.id) is attempt and not _is_over(attempt):
                self._lost(attempt)
        asked = {attempt.run.id: attempt for attempt in attempts}
        for renewed in mine:
            attempt = asked[renewed.id]
            if (
                renewed.cancel_requested
                and self._held.get(renewed.id) is attempt
                and not _is_over(attempt)
            ):
                attempt.run = replace(attempt.run, reason=renewed.reason)
                self._cancel(attempt)
        return True

    async def _renew_in_halves(
        self, held: list[Held]
    ) -> tuple[list[Renewed], dict[str, Exception]]:
        """Renew all of these at once. If the store refuses, find by halves which of them it
        refuses, so that the leases of the others do not lapse, and renew that one without its
        progress. Also return those that are refused even so, with the error."""
        try:
            return await self._engine.store.renew(held, self._engine.settings.lease), {}
        except (StoreUnavailable, TimeoutError):
            raise
        except Exception as error:
            if len(held) > 1:
                half = len(held) // 2
                first, refused = await self._renew_in_halves(held[:half])
                second, more = await self._renew_in_halves(held[half:])
                return first + second, refused | more
            [single] = held
            if single.progress is None:
                return [], {single.id: error}
            log.warning("the progress of run %s cannot be kept: %s", single.id, error)
            if (attempt := self._held.get(single.id)) is not None:
                attempt.context.latest_progress = None
            return await self._renew_in_halves([Held(single.id, single.token)])

    def _lost(self, attempt: LocalAttempt) -> None:
        if attempt.stop_reason is not StopReason.LOST:
            self._lose(attempt)

    def _emit_progress(self, attempt: LocalAttempt) -> None:
        progress = attempt.context.latest_progress
        if _has_progress_to_emit(attempt):
            attempt.emitted_progress = progress
            self._engine.emit("run.progress", replace(attempt.run, progress=progress))


def _has_progress_to_emit(attempt: LocalAttempt) -> bool:
    progress = attempt.context.latest_progress
    return progress is not None and progress is not attempt.emitted_progress


def _wants_renewal(attempt: LocalAttempt, fresh_since: float) -> bool:
    """Whether to renew now. Not during a handler's transaction: the two writes would conflict, and
    the transaction ends long before the lease does."""
    if attempt.context.in_transaction:
        return False
    return attempt.held_since <= fresh_since or _has_progress_to_emit(attempt)


def _is_over(attempt: LocalAttempt) -> bool:
    """Whether the attempt can no longer be lost or cancelled: it has ended, or its transaction is
    completing it, and the fence of that commit decides."""
    return attempt.ended or attempt.completion is not None
