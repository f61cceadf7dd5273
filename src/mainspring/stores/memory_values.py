"""Values on their way into and out of the memory store, and what it asks of them."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from typing import Any

from mainspring import codec
from mainspring.errors import InvalidInput
from mainspring.model import Job, Note, Page, Run, State, replace
from mainspring.states import Change
from mainspring.store import Claim, NoteQuery

__all__ = [
    "Notebook",
    "handed_out",
    "lapsed",
    "mentions",
    "read_cursor",
    "storable",
    "storable_change",
    "storable_job",
    "takes",
]


class Notebook:
    """Notes by kind and name. `now` is the store's clock."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str], Note] = {}

    def find(self, query: NoteQuery, now: datetime) -> Page[Note]:
        found = sorted(
            name
            for (kind, name), note in self._notes.items()
            if kind == query.kind
            and not _over(note, now)
            and (query.names is None or name in query.names)
            and (query.cursor is None or name > query.cursor)
        )[: query.limit]
        full = found and len(found) == query.limit
        return Page([self._notes[query.kind, name] for name in found], found[-1] if full else None)

    def put(self, note: Note, now: datetime) -> int | None:
        stored = self._notes.get((note.kind, note.name))
        live = stored is not None and not _over(stored, now)
        if (stored.version if stored and live else 0) != note.version:
            return None
        version = (stored.version if stored else 0) + 1
        value = through_codec(note.value)
        self._notes[note.kind, note.name] = replace(note, value=value, version=version)
        return version

    def drop(self, kind: str, name: str) -> bool:
        return self._notes.pop((kind, name), None) is not None

    def prune(self, now: datetime) -> None:
        self._notes = {key: note for key, note in self._notes.items() if not _over(note, now)}


def _over(note: Note, now: datetime) -> bool:
    return note.expires_at is not None and note.expires_at <= now


def takes(claim: Claim, run: Run) -> bool:
    return (
        run.state is State.PENDING
        and run.handler in claim.handlers
        and (claim.queues is None or run.queue in claim.queues)
    )


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


def storable_change(change: Change) -> Change:
    if "result" not in change.set:
        return change
    return replace(change, set={**change.set, "result": through_codec(change.set["result"])})


def handed_out(run: Run) -> Run:
    """The run with values of its own: what a handler does to its payload stays with it."""
    if isinstance(run.payload, dict | list) or isinstance(run.result, dict | list):
        return replace(run, payload=deepcopy(run.payload), result=deepcopy(run.result))
    return run


def read_cursor(cursor: str | None) -> int | None:
    try:
        return None if cursor is None else int(cursor)
    except ValueError:
        raise InvalidInput(f"{cursor!r} is no cursor that a page of runs gave") from None


def mentions(job: Job, text: str) -> bool:
    return text.lower() in job.id.lower() or text.lower() in job.description.lower()
