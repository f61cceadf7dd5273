"""When a failed run is retried, sets the runs that were skipped because of it back to waiting.

A sweeper skips a run after it has read that an upstream run failed. A retry of the upstream run may
come in between. So the order matters:

    sweeper   reads the waiting run, then the runs before it, then skips it: at the token it read
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

import contextlib
from collections.abc import Sequence
from datetime import timedelta

from mainspring.core import note_kinds, transitions
from mainspring.core.model import Note, Run, State, new_run_id, replace
from mainspring.engine.context import EngineContext
from mainspring.errors import StoreError
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import NoteQuery, NoteWrite, RunQuery

RETRY_NOTE_TTL = timedelta(days=1)
"""How long the note of a retry stands if its process died before it had made the runs pending."""

PAGE = 1000
"""Runs that are read, and changed, in one call."""

_UNSUCCESSFUL = (State.FAILED, State.CANCELLED, State.SKIPPED)


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
    found = (await engine.store.find(RunQuery(ids=_runs_of(note), brief=True))).items
    # One that has not succeeded may be made pending at any moment, by a slow process.
    left = [run.id for run in found if run.state in _UNSUCCESSFUL]
    again = [run for run in found if run.state not in _UNSUCCESSFUL]
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

    Each run is changed once: a sweeper that skips it later has read the current state of the
    upstream runs.
    """
    changed: dict[str, None] = {}
    refused: set[tuple[str, State, int]] = set()  # e.g. another run has taken the dedupe key
    while True:
        left = [
            run
            for run in await _followers(engine, runs)
            if run.id not in changed and (run.id, run.state, run.token) not in refused
        ]
        if not left:
            return [*(run.id for run in runs), *changed]
        for start in range(0, len(left), PAGE):
            part = left[start : start + PAGE]
            done = await engine.store.commit([transitions.waiting_again(run) for run in part])
            for run, kept in zip(part, done, strict=True):
                if kept:
                    changed[run.id] = None
                else:
                    refused.add((run.id, run.state, run.token))


async def _followers(engine: EngineContext, runs: Sequence[Run]) -> list[Run]:
    """The runs after these, directly or not, that wait or were skipped because of a failure,
    nearest first."""
    followers: dict[str, Run] = {}
    reached = [run.id for run in runs]
    while reached:
        names, reached = frozenset(reached[:PAGE]), reached[PAGE:]
        query = RunQuery(upstream=names, brief=True, limit=PAGE)
        async for run in all_items(engine.store.find, query):
            if run.id not in followers and run.unreadable is None:
                followers[run.id] = run
                reached.append(run.id)
    return list(followers.values())


def _runs_of(note: Note) -> frozenset[str]:
    value = note.value
    names = value.get("runs") if isinstance(value, dict) else None
    return frozenset(name for name in names or () if isinstance(name, str))
