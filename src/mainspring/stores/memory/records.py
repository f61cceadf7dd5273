"""Values as the memory store keeps them, and as it hands them out: none shares a payload with its
caller, and each payload is what a store that outlives the process would give back."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from mainspring.core import codec
from mainspring.core.model import Job, Run, replace
from mainspring.core.transitions import Change
from mainspring.stores.codec import RUN
from mainspring.stores.protocol import NoteWrite

__all__ = [
    "brief",
    "handed_out",
    "storable",
    "storable_change",
    "storable_job",
    "storable_note",
    "through_codec",
]


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
