"""`Workspace`: what the operations of a round read and change.

An operation (add, claim, commit, …) is a pure function of its workspace: a round of the group
commit may evaluate it again. What it changes is stored together with what the other operations of
the round change, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mainspring.core.model import Run
from mainspring.core.statistics import Ending
from mainspring.stores import evaluation
from mainspring.stores.codec import RUN, Record, run_from_record, update_record
from mainspring.stores.objects import counters
from mainspring.stores.objects.history import SegmentReader, gone_of
from mainspring.stores.objects.state import LiveState
from mainspring.stores.objects.storage_clock import Bounds


class Workspace:
    """The state that operations read and change, and the time. `now` decides what is due, lapsed or
    expired; `latest` is what leases and terms are stamped from."""

    def __init__(self, state: LiveState, history: SegmentReader, bounds: Bounds) -> None:
        self.state = state
        self.history = history
        self.now = bounds.earliest
        self.latest = bounds.latest

    def run(self, run_id: str) -> Run | None:
        """A run, live or in a segment."""
        run = self.state.run(run_id)
        if run is not None:
            return run
        stored = self.history.look_up(self.state, [run_id]).get(run_id)
        return None if stored is None else run_from_record(stored[1])

    def record(self, run_id: str) -> Record:
        """The record of a run that is there."""
        record = self.state.get("runs", run_id)
        return self.history.look_up(self.state, [run_id])[run_id][1] if record is None else record

    def awaited_runs(self) -> set[str]:
        return evaluation.awaited_runs(self.state.unfinished())

    def put_run(self, run_id: str, record: Record) -> Run:
        """Write a run. If it is in a segment, it no longer counts there."""
        if self.state.get("runs", run_id) is None:
            self._mark_gone_in_segment(run_id)
        return self.put_new_run(run_id, record)

    def put_new_run(self, run_id: str, record: Record) -> Run:
        """Write a run that is in no segment."""
        self.state.put("runs", run_id, record)
        run = self.state.run(run_id)
        assert run is not None
        return run

    def delete(self, run_id: str) -> None:
        if self.state.get("runs", run_id) is None:
            self._mark_gone_in_segment(run_id)
        else:
            self.state.put("runs", run_id, None)

    def _mark_gone_in_segment(self, run_id: str) -> None:
        stored = self.history.look_up(self.state, [run_id]).get(run_id)
        if stored is not None:
            segment, _ = stored
            self.state.put("gone", segment, {**gone_of(self.state, segment), run_id: 1})

    def update(self, run_id: str, fields: Mapping[str, Any], **more: Any) -> Run:
        """Write some fields and leave the others as they are, also those that cannot be read."""
        return self.put_run(run_id, {**update_record(RUN, self.record(run_id), fields), **more})

    def next_number(self) -> int:
        counted = self.state.get("meta", "runs") or {}
        number: int = counted.get("last_number", 0) + 1
        self.state.put("meta", "runs", {**counted, "last_number": number})
        return number

    def count_endings(self, endings: Iterable[Ending | None]) -> None:
        counters.count_endings(
            self.state, [ending for ending in endings if ending is not None], self.now
        )

    def dedupe_holder(self, key: str | None, besides: str | None = None) -> Run | None:
        return evaluation.dedupe_holder(self.state.with_key(key), key, self.now, besides)
