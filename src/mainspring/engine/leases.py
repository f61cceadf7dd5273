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
from mainspring.engine.attempt import Stop, Work
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
        self, engine: EngineContext, *, lose: Callable[[Work], None], cancel: Callable[[Work], None]
    ) -> None:
        self._engine = engine
        self._lose = lose
        self._cancel = cancel
        self._held: dict[str, Work] = {}
        self._changed = asyncio.Event()

    def hold(self, work: Work) -> None:
        self._held[work.run.id] = work

    def let_go(self, work: Work) -> None:
        """Renew it no more. The same run, claimed again meanwhile, is another work."""
        if self._held.get(work.run.id) is work:
            del self._held[work.run.id]

    def of(self, context: RunContext) -> Work:
        """The work that this context belongs to. From any thread."""
        work = self._held.get(context.run_id)
        if work is None or work.context is not context:
            raise TransactionAborted(f"run {context.run_id} is no longer this worker's")
        return work

    def look(self) -> None:
        """Something has changed in the store, perhaps by another process."""
        self._changed.set()

    def safe(self, work: Work) -> bool:
        """Whether its lease was confirmed so lately that it cannot have lapsed on the way."""
        lease = self._engine.settings.lease.total_seconds()
        return work.held_since >= self._engine.clock.monotonic() - lease * SELF_CANCEL

    def heed(self, runs: Iterable[Run]) -> None:
        """Stop what somebody asked to cancel, and what is no longer ours."""
        for run in runs:
            work = self._held.get(run.id)
            if work is None or _over(work) or run.token < work.run.token:
                continue
            if run.token != work.run.token or run.state is not State.RUNNING:
                self._lost(work)
            elif run.cancel_requested:
                work.run = replace(work.run, reason=run.reason)
                self._cancel(work)

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
            for work in list(self._held.values()):
                if not _over(work) and not self.safe(work):
                    self._lost(work)

    async def watching(self) -> None:
        """After a hint, look for cancel requests of other processes. It only reads: a write
        would hint in turn, and two idle processes would keep each other awake."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            # What was claimed a moment ago may be over a moment later: it is looked at then.
            before = self._engine.clock.monotonic() - LOOK_AGAIN
            held = [work for work in self._held.values() if not work.ended]
            old = [work.run.id for work in held if work.held_since < before]
            if old:
                query = RunQuery(ids=frozenset(old), brief=True)
                self.heed((await self._engine.retrying_store.find(query)).items)
            if len(old) < len(held):
                self._changed.set()
            await asyncio.sleep(LOOK_AGAIN)

    async def _renew(self) -> bool:
        """Whether the store has answered, as far as it was asked."""
        lease = self._engine.settings.lease
        sent = self._engine.clock.monotonic()
        young = sent - lease.total_seconds() * YOUNG
        works = [work for work in self._held.values() if _wants_renewal(work, young)]
        if not works:  # what could not be renewed is over: that fails no more
            self._engine.outages.succeeded("renew")
            return True
        held = [Held(w.run.id, w.run.token, w.context.latest_progress) for w in works]
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
        for work in works:
            if work.run.id in refused:
                continue
            if work.run.id in still:
                work.held_since = sent
                self._tell_progress(work)
            elif self._held.get(work.run.id) is work and not _over(work):
                self._lost(work)
        asked = {work.run.id: work for work in works}
        for one in mine:
            work = asked[one.id]
            if one.cancel_requested and self._held.get(one.id) is work and not _over(work):
                work.run = replace(work.run, reason=one.reason)
                self._cancel(work)
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
            if (work := self._held.get(one.id)) is not None:
                work.context.latest_progress = None
            return await self._renew_apart([Held(one.id, one.token)])

    def _lost(self, work: Work) -> None:
        if work.stop is not Stop.LOST:
            self._lose(work)

    def _tell_progress(self, work: Work) -> None:
        progress = work.context.latest_progress
        if _has_news(work):
            work.told_progress = progress
            self._engine.emit("run.progress", replace(work.run, progress=progress))


def _has_news(work: Work) -> bool:
    progress = work.context.latest_progress
    return progress is not None and progress is not work.told_progress


def _wants_renewal(work: Work, young: float) -> bool:
    """A run in its transaction is left alone: the two writes would come into conflict, and the
    transaction is over long before the lease is."""
    if work.context.in_transaction:
        return False
    return work.held_since <= young or _has_news(work)


def _over(work: Work) -> bool:
    """Whether nothing about the work can be lost or cancelled any more: it has ended, or it is
    being completed by its transaction, whose own fence decides."""
    return work.ended or work.completion is not None
