"""Cancels, retries or deletes many runs: all that match a query, or those of given ids.

Each page of runs is one commit. A run that somebody changed meanwhile is tried once more, alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

from msgspec import Struct

from mainspring.core import transitions
from mainspring.core.model import FINISHED, LIVE, Run, State, replace
from mainspring.engine.context import EngineContext
from mainspring.engine.run_operations import RunOperations
from mainspring.errors import Conflict, NotFound
from mainspring.stores.protocol import RunQuery

PAGE = 500
_REVIVABLE = frozenset({State.FAILED, State.CANCELLED})


class Matched(Struct, frozen=True):
    """How many runs matched, how many were changed, and whether more match than the limit."""

    matched: int
    done: int
    more: bool


class BulkOperations:
    """`query.limit` is the most runs that are changed; `ids` names single runs instead."""

    def __init__(self, engine: EngineContext, run_operations: RunOperations) -> None:
        self._engine = engine
        self._run_operations = run_operations

    async def cancel(self, query: RunQuery, ids: list[str] | None, reason: str) -> Matched:
        matched = done = 0
        chosen = _Chosen(query, ids, LIVE)
        async for runs in self._pages(chosen):
            matched += len(runs)
            now = await self._engine.store.now()
            changes = [transitions.cancelled_or_requested(run, now, reason) for run in runs]
            kept = await self._engine.store.commit(changes)
            for run, change, was_kept in zip(runs, changes, kept, strict=True):
                if was_kept:
                    self._run_operations.announce_cancel(change.after(run))
                done += was_kept or await _once_more(self._run_operations.cancel(run.id, reason))
        return Matched(matched, done, chosen.more)

    async def retry(self, query: RunQuery, ids: list[str] | None) -> Matched:
        """Try the runs again, the oldest first: a run waits for those that it comes after only if
        they are tried again before it, or with it."""
        done, operations = 0, self._run_operations
        chosen = _Chosen(query, ids, _REVIVABLE)
        matching = [run async for runs in self._pages(chosen, brief=True) for run in runs]
        # A follower may have the same time as its root.
        matching.sort(key=lambda run: (run.created_at, bool(run.after)))
        oldest_first = _Chosen(query, [run.id for run in matching], _REVIVABLE)
        async for runs in self._pages(oldest_first):
            without = await operations.find_not_revivable(runs)
            runs = [run for run in runs if run.id not in without]
            changes = await operations.make_retries(runs)
            kept = await operations.commit_retries(runs, changes)
            for run, change, was_kept in zip(runs, changes, kept, strict=True):
                if was_kept:
                    self._engine.emit("run.enqueued", change.after(run))
                done += was_kept or await _once_more(operations.retry(run.id))
        return Matched(len(matching), done, chosen.more)

    async def remove(self, query: RunQuery, ids: list[str] | None) -> Matched:
        matched = done = 0
        chosen = _Chosen(query, ids, FINISHED)
        async for runs in self._pages(chosen, brief=True):
            matched += len(runs)
            done += sum(await self._engine.store.commit([transitions.deleted(run) for run in runs]))
        return Matched(matched, done, chosen.more)

    async def _pages(self, chosen: _Chosen, *, brief: bool = False) -> AsyncIterator[list[Run]]:
        if chosen.ids is not None:
            for start in range(0, len(chosen.ids), PAGE):
                ids = frozenset(chosen.ids[start : start + PAGE])
                page = await self._engine.store.find(RunQuery(ids=ids, brief=brief))
                yield [run for run in page.items if run.state in chosen.states]
            return
        query, left = chosen.query, chosen.query.limit
        cursor = query.cursor
        while left > 0 and chosen.states:
            page = await self._engine.store.find(
                replace(query, brief=brief, limit=min(PAGE, left), cursor=cursor)
            )
            left -= len(page.items)
            yield page.items
            if (cursor := page.cursor) is None:
                return
        if cursor is not None:
            one_more = replace(query, brief=True, limit=1, cursor=cursor)
            chosen.more = bool((await self._engine.store.find(one_more)).items)


class _Chosen:
    """Which runs to change: the query or the ids, and the states that the change applies to."""

    def __init__(self, query: RunQuery, ids: list[str] | None, fit: frozenset[State]) -> None:
        self.states = fit if query.states is None else fit & query.states
        self.query = replace(query, states=self.states)
        self.ids = None if ids is None else list(dict.fromkeys(ids))
        self.more = False


async def _once_more(change: Awaitable[object]) -> bool:
    try:
        return bool(await change)
    except (Conflict, NotFound):
        return False
