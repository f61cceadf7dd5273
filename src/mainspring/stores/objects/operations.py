"""The operations of the store (add, claim, renew, commit, fire, …) as pure functions of its state.

A round of the group commit may evaluate an operation again.

Each takes a `Workspace`: the state as it is, the history, and the time. What it changes is stored
together with what the other operations of the round change, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from msgspec import Struct

from mainspring.core.model import FINISHED, LIVE, Job, Note, Page, Run, State, replace
from mainspring.core.statistics import Ending, ending_of
from mainspring.core.transitions import Change
from mainspring.stores import evaluation
from mainspring.stores.codec import (
    JOB,
    RUN,
    Record,
    note_to_record,
    run_from_record,
    run_to_record,
    to_us,
    update_record,
)
from mainspring.stores.objects import period_counts
from mainspring.stores.objects.history import SegmentReader, gone_of
from mainspring.stores.objects.state import LiveState, note_key
from mainspring.stores.objects.storage_clock import Bounds
from mainspring.stores.protocol import (
    Added,
    Claim,
    Claimed,
    Fired,
    Firing,
    Held,
    JobQuery,
    JobWrite,
    NoteQuery,
    NoteWrite,
    Renewed,
    resolve_overlap,
    runs_ended_by,
)


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
        found = self.history.look_up(self.state, [run_id]).get(run_id)
        return None if found is None else run_from_record(found[1])

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
        found = self.history.look_up(self.state, [run_id]).get(run_id)
        if found is not None:
            segment, _ = found
            self.state.put("gone", segment, {**gone_of(self.state, segment), run_id: 1})

    def update(self, run_id: str, fields: dict[str, Any], **more: Any) -> Run:
        """Write some fields and leave the others as they are, also those that cannot be read."""
        return self.put_run(run_id, {**update_record(RUN, self.record(run_id), fields), **more})

    def next_number(self) -> int:
        counted = self.state.get("meta", "runs") or {}
        number: int = counted.get("last_number", 0) + 1
        self.state.put("meta", "runs", {**counted, "last_number": number})
        return number

    def count_endings(self, endings: Iterable[Ending | None]) -> None:
        period_counts.count_endings(
            self.state, [one for one in endings if one is not None], self.now
        )

    def dedupe_holder(self, key: str | None) -> Run | None:
        return evaluation.dedupe_holder(self.state.with_key(key), key, self.now)


# -- runs -----------------------------------------------------------------------------------


class NewRun(Struct, frozen=True):
    """A run to add, with its record: made once, however often the operation is evaluated. The run
    is as it will be read again."""

    run: Run
    record: Record

    @classmethod
    def of(cls, run: Run) -> NewRun:
        record = run_to_record(run)
        return cls(run_from_record(record), record)


def add(work: Workspace, runs: Sequence[NewRun]) -> list[Added]:
    refused: set[str] = set()
    return [_add(work, new, refused) for new in runs]


def _add(work: Workspace, new: NewRun, refused: set[str]) -> Added:
    run = new.run
    stored = work.run(run.id)
    if stored is not None:
        return Added(stored)
    holder = work.dedupe_holder(run.dedupe_key) if refused.isdisjoint(run.after) else run
    if holder is not None:
        refused.add(run.id)
        return Added(replace(holder, duplicate=True), duplicate=True)
    if (moved := evaluation.new_run_by_clock(run, work.now)) is not run:
        new = NewRun.of(moved)
    added = work.put_new_run(run.id, {**new.record, "number": work.next_number()})
    work.count_endings([ending_of(added)])
    return Added(added)


def claim(work: Workspace, wanted: Claim) -> Claimed:
    state, now = work.state, work.now
    runs, known = state.unfinished(), state.jobs()
    rates = evaluation.rate_allowance(known, state.notes(), now)
    used = evaluation.used_capacity(runs, known, now)
    chosen = evaluation.choose_claimed(runs, known, wanted, now, used, rates)
    for write in rates.writes(to_us(work.latest)):
        _put_note(work, NewNote.of(write))
    taken = []
    for run in chosen:
        fields = evaluation.fields_of_claim(run, wanted, now)
        fields["lease_until"] = work.latest + wanted.lease
        taken.append(work.update(run.id, fields))
    if taken:
        return Claimed(taken)
    return Claimed([], evaluation.next_due(runs, wanted, now, rates))


def renew(work: Workspace, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
    return [one for item in held if (one := _renew(work, item, lease)) is not None]


def _renew(work: Workspace, held: Held, lease: timedelta) -> Renewed | None:
    run = work.state.run(held.id)
    if run is None or run.state is not State.RUNNING or run.token != held.token:
        return None
    if evaluation.has_lapsed(run, work.now) and not _has_capacity(work, run):
        return None
    work.update(run.id, {"lease_until": work.latest + lease, "progress": held.progress})
    return Renewed(run.id, run.cancel_requested, run.reason)


def _has_capacity(work: Workspace, run: Run) -> bool:
    used = evaluation.used_capacity(work.state.unfinished(), work.state.jobs(), work.now)
    return evaluation.has_capacity(work.state.job(run.job_id), used)


class NewChange(Struct, frozen=True):
    """A change, with the fields of its record."""

    change: Change
    fields: Record
    """What the change sets, as records hold it; None: the field is left out."""

    @classmethod
    def of(cls, change: Change) -> NewChange:
        made = update_record(RUN, {}, change.set)
        return cls(change, {name: made.get(name) for name in change.set})


def commit(work: Workspace, changes: Sequence[NewChange]) -> list[bool]:
    done: list[bool] = []
    endings: list[Ending | None] = []
    for deletes, alike in groupby(changes, lambda new: new.change.deletes):
        awaited = work.awaited_runs() if deletes else set()  # no deletion changes them
        for new in alike:
            applied = _commit(work, new, awaited)
            done.append(applied is not None)
            if applied:
                endings.append(new.change.ending)
    work.count_endings(endings)
    return done


def _commit(work: Workspace, new: NewChange, awaited: set[str]) -> bool | None:
    """True: applied now. False: done, with nothing to count (it was sent again, or it deletes).
    None: refused."""
    change = new.change
    run = work.run(change.id)
    if run is None:
        return False if change.deletes else None
    record = work.record(run.id)
    if record.get("change_id") == change.change_id:
        return False  # sent again: it was applied, and no other change came after it
    if any(getattr(run, name) != value for name, value in change.expect.items()):
        return None
    if change.deletes:
        if not evaluation.may_be_deleted(run, work.now, awaited):
            return None
        work.delete(run.id)
        return False
    if run.state in FINISHED and change.after(run).state in LIVE:
        holder = work.dedupe_holder(run.dedupe_key)
        if holder is not None and holder.id != run.id:
            return None
    fields = evaluation.fields_of_change(change, work.now)
    if fields is not change.set:
        new = NewChange.of(replace(change, set=fields))
    merged = {**record, **new.fields, "change_id": change.change_id}
    work.put_run(run.id, {name: value for name, value in merged.items() if value is not None})
    return True


# -- jobs -----------------------------------------------------------------------------------


class NewJob(Struct, frozen=True):
    """A write of a job, with its record (None: it deletes the job)."""

    write: JobWrite
    record: Record | None


def jobs(work: Workspace, query: JobQuery) -> Page[Job]:
    return evaluation.page_of_jobs(work.state.jobs().values(), query)


def put_jobs(work: Workspace, writes: Sequence[NewJob]) -> list[bool]:
    return [_put_job(work, new) for new in writes]


def _put_job(work: Workspace, new: NewJob) -> bool:
    stored = work.state.job(new.write.id)
    if new.write.expected_version not in (None, stored.version if stored else 0):
        return False
    if new.record is None and stored is None:
        return False
    work.state.put("jobs", new.write.id, new.record)
    if new.record is None:
        period_counts.remove_job(work.state, new.write.id)
    return True


def fire(work: Workspace, firings: Sequence[Firing]) -> list[Fired]:
    broken_chains: set[str] = set()
    return [_fire(work, firing, broken_chains) for firing in firings]


def _fire(work: Workspace, firing: Firing, broken_chains: set[str]) -> Fired:
    job = work.state.job(firing.job_id)
    is_late = firing.valid_until is not None and work.now > firing.valid_until
    if job is None or job.version != firing.version or job.id in broken_chains or is_late:
        broken_chains.add(firing.job_id)
        return Fired(False)
    unfinished = evaluation.unfinished_slots(work.state.unfinished(), job.id)
    runs, changes = resolve_overlap(firing, unfinished, work.now)
    done = commit(work, [NewChange.of(change) for change in changes])
    replaced = runs_ended_by(unfinished, changes, done)
    stored = tuple(_add(work, NewRun.of(run), set()).run for run in runs)
    fields = {"next_run_at": firing.next_run_at, "last_run_at": firing.last_run_at}
    record = work.state.get("jobs", job.id) or {}
    advanced = update_record(JOB, {**record, "version": job.version + 1}, fields)
    work.state.put("jobs", job.id, advanced)
    return Fired(True, stored, replaced)


# -- notes ----------------------------------------------------------------------------------


class NewNote(Struct, frozen=True):
    """A write of a note, with its record (None: it deletes the note)."""

    write: NoteWrite
    record: Record | None

    @classmethod
    def of(cls, write: NoteWrite) -> NewNote:
        return cls(write, None if write.note is None else note_to_record(write.note))


def notes(work: Workspace, query: NoteQuery) -> Page[Note]:
    return evaluation.page_of_notes(work.state.notes(), query, work.now)


def put_notes(work: Workspace, writes: Sequence[NewNote]) -> list[int | None]:
    return [_put_note(work, new) for new in writes]


def _put_note(work: Workspace, new: NewNote) -> int | None:
    write, key = new.write, note_key(new.write.kind, new.write.name)
    stored = work.state.note(key)
    live = 0 if stored is None or evaluation.has_expired(stored, work.now) else stored.version
    if write.expected_version not in (None, live):
        return None
    if new.record is None:
        work.state.put("notes", key, None)
        return None if stored is None else 0
    version = (stored.version if stored else 0) + 1  # grows on after the note has expired
    record = {**new.record, "version": version}
    if write.ttl is not None:
        record |= {"expires_at": to_us(work.latest + write.ttl), "ttl": True}
    work.state.put("notes", key, record)
    return version


def prune_notes(work: Workspace, ttl_kept: timedelta) -> None:
    """Delete notes that have expired."""
    for key, record in list(work.state.table("notes").items()):
        note = work.state.note(key)
        kept = ttl_kept if "ttl" in record else timedelta()
        if note is not None and evaluation.has_expired(note, work.now - kept):
            work.state.put("notes", key, None)


def prune_live(work: Workspace, before: datetime, limit: int) -> int:
    """Delete finished runs that are not in a segment yet."""
    old = [r for r in work.state.finished() if r.finished_at is not None and r.finished_at < before]
    awaited = work.awaited_runs()
    chosen = [run for run in old if evaluation.may_be_deleted(run, work.now, awaited)][:limit]
    for run in chosen:
        work.delete(run.id)
    return len(chosen)
