"""Cancels, retries or deletes many runs: all that match a query, or those of given ids.

Each page of runs is one commit. A run that somebody changed meanwhile is tried once more, alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from msgspec import Struct

from mainspring.core import transitions
from mainspring.core.model import FINISHED, LIVE, Run, State, replace
from mainspring.core.transitions import Change
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


async def _none(runs: list[Run]) -> set[str]:
    return set()


class BulkOperations:
    """`query.limit` is the most runs that are changed; `ids` names single runs instead."""

    def __init__(self, engine: EngineContext, run_operations: RunOperations) -> None:
        self._engine = engine
        self._run_operations = run_operations

    async def cancel(self, query: RunQuery, ids: list[str] | None, reason: str) -> Matched:
        return await self._all(
            _Chosen(query, ids, LIVE),
            make_changes=partial(self._make_cancels, reason=reason),
            tell=self._run_operations.announce_cancel,
            alone=lambda run_id: self._run_operations.cancel(run_id, reason),
            commit=lambda _, changes: self._engine.store.commit(changes),
        )

    async def _make_cancels(self, runs: list[Run], reason: str) -> list[Change]:
        now = await self._engine.store.now()
        return [transitions.cancelled_or_requested(run, now, reason) for run in runs]

    async def retry(self, query: RunQuery, ids: list[str] | None) -> Matched:
        """Try the runs again, the oldest first: a run waits for those that it comes after only if
        they are tried again before it, or with it."""
        chosen = _Chosen(query, ids, _REVIVABLE)
        found = [run async for runs in self._pages(chosen, brief=True) for run in runs]
        # A follower may have the same time as its root.
        found.sort(key=lambda run: (run.created_at, bool(run.after)))
        oldest_first = _Chosen(query, [run.id for run in found], _REVIVABLE)
        matched = await self._all(
            oldest_first,
            make_changes=self._run_operations.make_retries,
            tell=lambda run: self._engine.emit("run.enqueued", run),
            alone=self._run_operations.retry,
            left=self._run_operations.find_not_revivable,
            commit=self._run_operations.commit_retries,
        )
        return replace(matched, matched=len(found), more=chosen.more)

    async def remove(self, query: RunQuery, ids: list[str] | None) -> Matched:
        matched = done = 0
        chosen = _Chosen(query, ids, FINISHED)
        async for runs in self._pages(chosen, brief=True):
            matched += len(runs)
            kept = await self._engine.store.commit([transitions.deleted(run) for run in runs])
            done += sum(kept)
        return Matched(matched, done, chosen.more)

    async def _all(
        self,
        chosen: _Chosen,
        *,
        make_changes: Callable[[list[Run]], Awaitable[list[Change]]],
        tell: Callable[[Run], None],
        alone: Callable[[str], Awaitable[object]],
        left: Callable[[list[Run]], Awaitable[set[str]]] = _none,
        commit: Callable[[list[Run], list[Change]], Awaitable[list[bool]]],
    ) -> Matched:
        """`left` returns the ids of the matching runs that cannot be changed, `commit` which of the
        changes were kept."""
        matched = done = 0
        async for runs in self._pages(chosen):
            matched += len(runs)
            without = await left(runs)
            runs = [run for run in runs if run.id not in without]
            changes = await make_changes(runs)
            kept = await commit(runs, changes)
            for run, made, was_kept in zip(runs, changes, kept, strict=True):
                if was_kept:
                    tell(made.after(run))
                done += was_kept or await _once_more(alone, run.id)
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
            asked = min(PAGE, left)
            page = await self._engine.store.find(
                replace(query, states=chosen.states, brief=brief, limit=asked, cursor=cursor)
            )
            left -= len(page.items)
            yield page.items
            if (cursor := page.cursor) is None:
                return
        chosen.more = cursor is not None and bool(
            (
                await self._engine.store.find(replace(query, brief=True, limit=1, cursor=cursor))
            ).items
        )


class _Chosen:
    """Which runs to change: the query or the ids, and the states that the change applies to."""

    def __init__(self, query: RunQuery, ids: list[str] | None, fit: frozenset[State]) -> None:
        self.states = fit if query.states is None else fit & query.states
        self.query = replace(query, states=self.states)
        self.ids = None if ids is None else list(dict.fromkeys(ids))
        self.more = False


async def _once_more(alone: Callable[[str], Awaitable[object]], run_id: str) -> bool:
    try:
        return bool(await alone(run_id))
    except (Conflict, NotFound):
        return False
