"""Runs, jobs and notes as a store keeps them and hands them out, and what is asked of them."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from typing import Any

from mainspring.core import codec
from mainspring.core.model import Job, Note, Run, State, replace
from mainspring.core.transitions import Change
from mainspring.stores.codec import RUN
from mainspring.stores.cursors import cursor_number
from mainspring.stores.protocol import Claim, NoteWrite

__all__ = [
    "brief",
    "cursor",
    "handed_out",
    "lapsed",
    "mentions",
    "over",
    "set_aside",
    "storable",
    "storable_change",
    "storable_job",
    "storable_note",
    "takes",
    "through_codec",
    "waits_for",
]


def cursor(text: str | None) -> int | None:
    return None if text is None else cursor_number(text, text)


def mentions(job: Job, text: str) -> bool:
    return text.lower() in job.id.lower() or text.lower() in job.description.lower()


def over(note: Note, now: datetime) -> bool:
    return note.expires_at is not None and note.expires_at <= now


def takes(claim: Claim, run: Run) -> bool:
    return (
        run.state is State.PENDING
        and run.unreadable is None
        and run.handler in claim.handlers
        and (claim.queues is None or run.queue in claim.queues)
        and run.job_id not in claim.excluded_jobs
    )


def set_aside(run: Run) -> bool:
    """Nothing here can be damaged; a test marks a run as if it were."""
    return run.state is State.PENDING and run.unreadable is not None


def waits_for(run: Run, upstream: frozenset[str]) -> bool:
    return run.state is State.WAITING and not upstream.isdisjoint(run.after)


def lapsed(run: Run, now: datetime) -> bool:
    return run.state is State.RUNNING and run.lease_until is not None and run.lease_until <= now


def through_codec(value: Any) -> Any:
    """What would come back from a store that outlives the process."""
    return codec.decode(codec.encode(value))


def storable(run: Run) -> Run:
    return replace(run, payload=through_codec(run.payload), duplicate=False)


def storable_job(job: Job) -> Job:
    metadata = through_codec(dict(job.metadata))
    return replace(job, payload=through_codec(job.payload), metadata=metadata)


def storable_note(write: NoteWrite) -> NoteWrite:
    if write.note is None:
        return write
    return replace(write, note=replace(write.note, value=through_codec(write.note.value)))


def storable_change(change: Change) -> Change:
    if "result" not in change.set:
        return change
    return replace(change, set={**change.set, "result": through_codec(change.set["result"])})


brief = RUN.without_long_fields


def handed_out(run: Run) -> Run:
    """The run with values of its own: what a handler does to its payload stays with it."""
    if isinstance(run.payload, dict | list) or isinstance(run.result, dict | list):
        return replace(run, payload=deepcopy(run.payload), result=deepcopy(run.result))
    return run
