"""Copies values on their way into and out of the memory store.

No stored value shares a payload with its caller. Each payload passes through the codec, so that it
comes back as a store on disk would return it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from mainspring.core import codec
from mainspring.core.model import Job, Run, replace
from mainspring.core.transitions import Change
from mainspring.stores.codec import RUN
from mainspring.stores.protocol import NoteWrite


def round_trip(value: Any) -> Any:
    """The value as a store on disk would return it."""
    return codec.decode(codec.encode(value))


def storable_run(run: Run) -> Run:
    return replace(run, payload=round_trip(run.payload), duplicate=False)


def storable_job(job: Job) -> Job:
    metadata = round_trip(dict(job.metadata))
    return replace(job, payload=round_trip(job.payload), metadata=metadata)


def storable_note(write: NoteWrite) -> NoteWrite:
    if write.note is None:
        return write
    return replace(write, note=replace(write.note, value=round_trip(write.note.value)))


def storable_change(change: Change) -> Change:
    if "result" not in change.set:
        return change
    return replace(change, set={**change.set, "result": round_trip(change.set["result"])})


brief = RUN.brief_copy


def copy_for_caller(run: Run) -> Run:
    """The run with its own payload and result, so that a handler can change no stored run."""
    if isinstance(run.payload, dict | list) or isinstance(run.result, dict | list):
        return replace(run, payload=deepcopy(run.payload), result=deepcopy(run.result))
    return run
