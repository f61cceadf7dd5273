"""Releases waiting runs when the runs that they wait for have ended; when a failed run is retried,
sets the runs that were skipped because of it back to waiting.

The releaser skips a run after it has read that an upstream run failed. A retry of the upstream run
may come in between. So the order matters:

    releaser  reads the waiting run, then the runs before it, then skips it: at the token it read
    retry     makes the failed run pending, then looks for the runs after it: skipped ones wait
              again, and the token of each grows, also of those that still wait

A skip that was decided before the retry expects the old token. If it is stored before the retry
looks, the retry finds a skipped run; if it comes later, it is refused. A skip that was decided
after the retry has seen the pending run. The retry looks until it finds nothing more to change,
because a run that waits again may have been the reason of skips itself.

A note in the store says that a retry is under way. If its process dies, or the store fails, the
leader completes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from datetime import timedelta

from mainspring.core import note_kinds, transitions
from mainspring.core.model import Note, Run, Source, State, new_run_id, replace
from mainspring.engine.context import EngineContext
from mainspring.engine.leader import Leader
from mainspring.engine.loop_thread import wait_for_event
from mainspring.errors import StoreError
from mainspring.stores.paging import all_items, pages, read_runs
from mainspring.stores.protocol import NoteQuery, NoteWrite, RunQuery

RELEASE_INTERVAL = 0.1
"""Least seconds between two searches for runs to release."""

WORKFLOW_INTERVAL = 0.02
"""The same while any run waits."""

WAITING_SWEEP = 10.0
"""Seconds between two searches through all waiting runs, by the leader. Each process releases the
runs that wait for those which it has ended; this finds what a process left that died in between."""

RETRY_AFTER = 2.0
"""Seconds after which a search that failed is repeated."""

RETRY_NOTE_TTL = timedelta(days=1)
"""How long the note of a retry stands if its process died before it had made the runs pending."""

BATCH = 1000
"""Runs that are read, and changed, in one call."""

_UNSUCCESSFUL = (State.FAILED, State.CANCELLED, State.SKIPPED)


class FollowerReleaser:
    def __init__(self, engine: EngineContext, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader
        self._run_has_ended = asyncio.Event()
        self._ended: dict[str, None] = {}  # runs whose followers are to be released, in order
        self._any_waiting = False  # whether the last search found a run that waits

    def run_ended(self, run_id: str) -> None:
        """Release the runs that wait for this one, with the next search."""
        self._ended[run_id] = None
        self._run_has_ended.set()

    async def release_periodically(self) -> None:
        """Release the runs that wait for those which this process has ended, and as the leader what
        others left, until the engine stops."""
        monotonic, outages = self._engine.clock.monotonic, self._engine.outages
        swept_at = -WAITING_SWEEP
        while True:
            if self._leader.leads and monotonic() - swept_at >= WAITING_SWEEP:
                swept_at = monotonic()
                with outages.suppressed("sweep"):
                    await self.release_all()
            with outages.suppressed("unblock"):
                await self.release_ended()
            await asyncio.sleep(WORKFLOW_INTERVAL if self._any_waiting else RELEASE_INTERVAL)
            await wait_for_event(self._run_has_ended, RETRY_AFTER)

    async def release_last(self) -> None:
        """Release the followers of the last runs of a process that stops."""
        while self._ended:
            await self.release_ended()

    async def release_all(self) -> None:
        """Look through all waiting runs for those that a dead process left waiting; first complete
        its retries."""
        await complete_retries(self._engine)
        self._any_waiting = await self._release_found(RunQuery(states=frozenset({State.WAITING})))

    async def release_ended(self) -> None:
        """Release the runs that wait for those which have ended since the last call."""
        self._run_has_ended.clear()
        ended = list(self._ended)[:BATCH]
        if ended:
            self._any_waiting = await self.release_followers(ended)
            for run_id in ended:
                self._ended.pop(run_id, None)
        if self._ended:
            self._run_has_ended.set()

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
        upstream = await read_runs(self._engine.store, names)
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
        await self._engine.emit_ended(await self._engine.change_runs(runs, changes))
        for name in {name for earlier in passed_over.values() for name in earlier}:
            self.run_ended(name)  # it may have ended before the slot waited for it

    async def _earlier_slots(self, run: Run, upstream: dict[str, Run]) -> tuple[str, ...]:
        """The unfinished slots that a queued slot has to wait for because the one that it waited
        for was cancelled (or skipped) before its turn. What is read here is put into `upstream`."""
        names = run.after if run.source is Source.SCHEDULE else ()
        while True:
            slots = [upstream[name] for name in names if name in upstream]
            if unfinished := tuple(slot.id for slot in slots if not slot.finished):
                return () if names == run.after else unfinished
            passed = [slot for slot in slots if slot.state in (State.CANCELLED, State.SKIPPED)]
            names = tuple(dict.fromkeys(name for slot in passed for name in slot.after))
            if not names:
                return ()
            upstream |= await read_runs(self._engine.store, set(names) - upstream.keys())


async def note_retry(engine: EngineContext, runs: Sequence[Run]) -> Note:
    """Keep a note that these runs are about to be tried again. Whoever does that deletes it when
    the followers of the runs wait again."""
    name = new_run_id(await engine.store.now(), engine.rng)
    note = Note(kind=note_kinds.RETRY, name=name, value={"runs": [run.id for run in runs]})
    await engine.store.put_notes([NoteWrite.put(note, ttl=RETRY_NOTE_TTL)])
    return note


async def forget_retry(engine: EngineContext, note: Note) -> None:
    with contextlib.suppress(StoreError):  # the leader deletes it
        await engine.store.put_notes([NoteWrite.drop(note_kinds.RETRY, note.name)])


async def complete_retries(engine: EngineContext) -> None:
    """Complete the retries that others left half done."""
    async for note in all_items(engine.store.notes, NoteQuery(kind=note_kinds.RETRY, limit=100)):
        await _complete(engine, note)


async def _complete(engine: EngineContext, note: Note) -> None:
    runs = (await read_runs(engine.store, _runs_of(note))).values()
    # One that has not succeeded may be made pending at any moment, by a slow process.
    left = [run.id for run in runs if run.state in _UNSUCCESSFUL]
    again = [run for run in runs if run.state not in _UNSUCCESSFUL]
    if again:
        await revive_followers(engine, again)
    if not left:
        await engine.store.put_notes([NoteWrite.drop(note_kinds.RETRY, note.name, note.version)])
    elif again:
        fewer = replace(note, value={"runs": left})
        await engine.store.put_notes([NoteWrite.put(fewer, ttl=RETRY_NOTE_TTL)])


async def revive_followers(engine: EngineContext, runs: Sequence[Run]) -> list[str]:
    """Let the runs wait again that were skipped because these did not succeed, or because such a
    skipped run comes before them. Refuse what was decided about those that still wait. Return the
    runs that others may wait for: these, and what waits again.

    Each run is changed once after the last of those before it: a releaser that skips it later has
    read their current state.
    """
    reached = dict.fromkeys(run.id for run in runs)
    changed: dict[str, Run] = {}
    refused: set[tuple[str, State, int]] = set()  # e.g. another run has taken the dedupe key
    while True:
        left = [
            run
            for run in await _followers(engine, runs)
            if run.id not in changed and (run.id, run.state, run.token) not in refused
        ]
        if not left:
            return list(reached)
        newest: dict[str, Run] = {}
        for start in range(0, len(left), BATCH):
            part = left[start : start + BATCH]
            done = await engine.store.commit([transitions.waiting_again(run) for run in part])
            for run, kept in zip(part, done, strict=True):
                if kept:
                    newest[run.id] = run
                else:
                    refused.add((run.id, run.state, run.token))
        # One that was changed before these may have been skipped since because of them.
        changed = {i: run for i, run in changed.items() if newest.keys().isdisjoint(run.after)}
        changed |= newest
        reached |= dict.fromkeys(newest)


async def _followers(engine: EngineContext, runs: Sequence[Run]) -> list[Run]:
    """The runs after these, directly or not, that wait or were skipped because of a failure,
    nearest first."""
    followers: dict[str, Run] = {}
    reached = [run.id for run in runs]
    while reached:
        names, reached = frozenset(reached[:BATCH]), reached[BATCH:]
        query = RunQuery(upstream=names, brief=True, limit=BATCH)
        async for run in all_items(engine.store.find, query):
            if run.id not in followers and run.unreadable is None:
                followers[run.id] = run
                reached.append(run.id)
    return list(followers.values())


def _runs_of(note: Note) -> frozenset[str]:
    value = note.value
    names = value.get("runs") if isinstance(value, dict) else None
    return frozenset(name for name in names or () if isinstance(name, str))
