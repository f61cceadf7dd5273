"""Releases waiting runs when the runs that they wait for have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from mainspring.core import transitions
from mainspring.core.model import Run, Source, State, replace
from mainspring.engine.context import EngineContext
from mainspring.engine.revival import complete_retries
from mainspring.stores.paging import pages
from mainspring.stores.protocol import RunQuery

RELEASE_INTERVAL = 0.1
"""Least seconds between two searches for runs to release."""

BATCH = 1000


class FollowerReleaser:
    """`finished(run_id)` is called for runs that are skipped instead of released."""

    def __init__(self, engine: EngineContext, finished: Callable[[str], None]) -> None:
        self._engine = engine
        self._finished = finished
        self.run_has_ended = asyncio.Event()
        self._ended: dict[str, None] = {}  # runs whose followers are to be released, in order
        self.any_waiting = False
        """Whether the last search found a run that waits."""

    def run_ended(self, run_id: str) -> None:
        """Release the runs that wait for this one, with the next search."""
        self._ended[run_id] = None
        self.run_has_ended.set()

    async def release_periodically(self) -> None:
        """Release the runs that wait for those which this process has cancelled, until the engine
        stops: for a process without workers, which does not sweep."""
        while True:
            await self.run_has_ended.wait()
            await self._engine.retrying_store.repeat("unblock", self.release_ended)
            await asyncio.sleep(RELEASE_INTERVAL)

    async def release_last(self) -> None:
        """Release the followers of the last runs of a process that stops."""
        while self._ended:
            await self.release_ended()

    async def release_all(self) -> None:
        """Look through all waiting runs for those that a dead process left waiting; first complete
        its retries."""
        await complete_retries(self._engine)
        self.any_waiting = await self._release_found(RunQuery(states=frozenset({State.WAITING})))

    async def release_ended(self) -> None:
        """Release the runs that wait for those which have ended since the last call."""
        self.run_has_ended.clear()
        ended = list(self._ended)[:BATCH]
        if ended:
            self.any_waiting = await self.release_followers(ended)
            for run_id in ended:
                self._ended.pop(run_id, None)
        if self._ended:
            self.run_has_ended.set()

    async def release_followers(self, upstream: Iterable[str]) -> bool:
        """Release the runs that wait for these and for nothing else; return whether any wait."""
        waiting = frozenset({State.WAITING})
        return await self._release_found(RunQuery(upstream=frozenset(upstream), states=waiting))

    async def _release_found(self, query: RunQuery) -> bool:
        any_waiting = False
        query = replace(query, brief=True, limit=BATCH)
        async for runs in pages(self._engine.store.find, query):
            any_waiting = True
            await self._release(runs)
        return any_waiting

    async def _release(self, waiting: list[Run]) -> None:
        waiting = [run for run in waiting if run.unreadable is None]
        if not waiting:
            return
        names = {name for run in waiting for name in run.after}
        upstream = await self._read_upstream(names)
        passed_over = {run.id: await self._earlier_slots(run, upstream) for run in waiting}
        known = {run.id: run.state for run in upstream.values()}
        now = self._engine.time.now()
        pairs = [
            (run, transitions.waiting_for_earlier_slot(run, earlier))
            if (earlier := passed_over[run.id])
            else (run, transitions.unblocked(run, now, known))
            for run in waiting
        ]
        runs = [run for run, change in pairs if change is not None]
        changes = [change for _, change in pairs if change is not None]
        changed = await self._engine.change_runs(runs, changes)
        for run in changed:
            if run.finished:
                self._finished(run.id)
        await self._engine.emit_ended(changed)
        for name in {name for earlier in passed_over.values() for name in earlier}:
            self.run_ended(name)  # it may have ended before the slot waited for it

    async def _read_upstream(self, names: Iterable[str]) -> dict[str, Run]:
        page = await self._engine.store.find(RunQuery(ids=frozenset(names), brief=True))
        return {run.id: run for run in page.items}

    async def _earlier_slots(self, run: Run, upstream: dict[str, Run]) -> tuple[str, ...]:
        """The unfinished slots that a queued slot has to wait for because the one that it waited
        for was cancelled (or skipped) before its turn. What is read here is put into `upstream`."""
        names = run.after if run.source is Source.SCHEDULE else ()
        while True:
            slots = [upstream[name] for name in names if name in upstream]
            if any(not slot.finished for slot in slots):
                return () if names == run.after else names
            passed = [slot for slot in slots if slot.state in (State.CANCELLED, State.SKIPPED)]
            names = tuple(dict.fromkeys(name for slot in passed for name in slot.after))
            if not names:
                return ()
            upstream |= await self._read_upstream(set(names) - upstream.keys())
