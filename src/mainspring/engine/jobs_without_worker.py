"""Reads, writes and applies notes that say since when no live worker can run a job.

While there is such a note, and the grace is over, new workflows leave that job out
(`followers_to_run`). The notes are in the store, so all processes know them, also those that only
enqueue. Live workers write and delete them (`live_workers.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from mainspring.core import note_kinds
from mainspring.core.model import LIVE, Note
from mainspring.engine.context import EngineContext
from mainspring.engine.workflow import Followers
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import NoteQuery, NoteWrite, RunQuery, Store

GRACE = timedelta(seconds=60)
"""How long a job goes on although no live worker can run it: a deploy may be under way."""


async def read_jobs_without_worker(store: Store) -> dict[str, datetime]:
    """The jobs without a worker, by id, and since when."""
    noted: dict[str, datetime] = {}
    async for note in all_items(store.notes, NoteQuery(kind=note_kinds.ABSENCE, limit=1000)):
        since = note.value.get("since") if isinstance(note.value, dict) else None
        if isinstance(since, datetime):  # else written by another version
            noted[note.name] = since
    return noted


def note_job_without_worker(job_id: str, since: datetime) -> NoteWrite:
    return NoteWrite.put(Note(kind=note_kinds.ABSENCE, name=job_id, value={"since": since}))


def drop_job_without_worker(job_id: str) -> NoteWrite:
    return NoteWrite.drop(note_kinds.ABSENCE, job_id)


async def followers_to_run(engine: EngineContext, roots: Collection[str]) -> Followers:
    """The jobs that come after others, without those that a new workflow instance leaves out.

    A follower that no live worker has been able to run for the grace has at most one unfinished
    run from then on: each further instance leaves it out, together with the jobs that come after
    it. Else its runs would pile up without end. `roots` are the jobs that start instances: they
    are never left out.
    """
    followers = await engine.jobs.followers()
    instances = followers.after(roots)
    if not instances:
        return followers
    noted = await read_jobs_without_worker(engine.store)
    now = engine.time.now()
    left_out = set()
    for job_id in instances.keys() & noted.keys():
        if now - noted[job_id] < GRACE or job_id in roots:
            continue
        if (await engine.store.find(RunQuery(job=job_id, states=LIVE, brief=True, limit=1))).items:
            left_out.add(job_id)
    return followers.without(left_out, roots)
