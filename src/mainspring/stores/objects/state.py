"""The live state: tables of records, as the last write that is known left them.

    runs        unfinished runs, and finished ones that are not in a segment yet
    jobs, notes
    counters    totals, and the periods that are not in a part of their own yet
    gone        what no longer counts in a part: runs of a segment, jobs of a day's counts
    meta        the last number of a run, the names of parts, the machine's clock

A delta says by table and key which fields of a record changed. None deletes a field or a record. So
a client can apply a delta without knowing what a field means, and fields that only a newer version
knows survive. A record is never changed in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from mainspring.core.model import FINISHED, Job, Note, Run
from mainspring.stores.codec import Record, job_from_record, note_from_record, run_from_record

T = TypeVar("T")

Tables = dict[str, dict[str, Record]]
Delta = dict[str, dict[str, Record | None]]

_ENDED = frozenset(map(str, FINISHED))


def note_key(kind: str, name: str) -> str:
    return json.dumps([kind, name])


def is_finished(record: Record) -> bool:
    """A run in a state that this version does not know counts as unfinished."""
    state = record.get("state")
    return isinstance(state, str) and state in _ENDED


class LiveState:
    """Records, and indexes over them. Changes can be undone until `clear_undo_log`."""

    def __init__(self, tables: Tables | None = None) -> None:
        self._tables: Tables = tables or {}
        self._changes: list[tuple[str, str, Record | None]] = []
        self._decoded: dict[str, dict[str, Any]] = {"runs": {}, "jobs": {}, "notes": {}}
        self._unfinished: dict[str, None] = {}
        self._finished: dict[str, int] = {}
        """With the size of each."""
        self.size = 0
        """Bytes of all runs, about."""
        self.finished_size = 0
        """Bytes of the finished runs, about."""
        self._keys: dict[str, dict[str, None]] = {}
        for run_id, record in self.table("runs").items():
            self._index(run_id, None, record)

    # -- reading

    def table(self, name: str) -> Mapping[str, Record]:
        return self._tables.setdefault(name, {})

    def get(self, table: str, key: str) -> Record | None:
        return self._tables.setdefault(table, {}).get(key)

    def tables(self) -> Tables:
        return self._tables

    def run(self, run_id: str) -> Run | None:
        return self._value("runs", run_id, run_from_record)

    def job(self, job_id: str) -> Job | None:
        return self._value("jobs", job_id, job_from_record)

    def note(self, key: str) -> Note | None:
        return self._value("notes", key, _read_note)

    def _value(self, table: str, key: str, read: Callable[[Record], T]) -> T | None:
        known: dict[str, T] = self._decoded[table]
        if key not in known:
            record = self.get(table, key)
            if record is None:
                return None
            known[key] = read(record)
        return known[key]

    def unfinished(self) -> list[Run]:
        return [run for run_id in self._unfinished if (run := self.run(run_id)) is not None]

    def finished(self) -> list[Run]:
        return [run for run_id in self._finished if (run := self.run(run_id)) is not None]

    @property
    def finished_count(self) -> int:
        return len(self._finished)

    def size_of(self, run_id: str) -> int:
        """Bytes of a finished run, about; 0 for others."""
        return self._finished.get(run_id, 0)

    def with_key(self, key: str | None) -> list[Run]:
        """The runs of a dedupe key, in any state."""
        ids = self._keys.get(key, {}) if key is not None else {}
        return [run for run_id in ids if (run := self.run(run_id)) is not None]

    def jobs(self) -> dict[str, Job]:
        jobs = ((job_id, self.job(job_id)) for job_id in self.table("jobs"))
        return {job_id: job for job_id, job in jobs if job is not None}

    def notes(self) -> Iterable[Note]:
        notes = (self.note(key) for key in self.table("notes"))
        return [note for note in notes if note is not None]

    # -- changing

    def put(self, table: str, key: str, record: Record | None) -> None:
        """Write a record, or delete it (None)."""
        before = self.get(table, key)
        if before != record:
            self._changes.append((table, key, before))
            self._set(table, key, record)

    def mark(self) -> int:
        return len(self._changes)

    def undo(self, mark: int = 0) -> None:
        """Take back the changes since the mark."""
        while len(self._changes) > mark:
            self._set(*self._changes.pop())

    def clear_undo_log(self) -> None:
        """The changes are stored: there is nothing to undo."""
        self._changes.clear()

    def delta(self) -> Delta:
        """What was changed since the last `clear_undo_log`."""
        first: dict[tuple[str, str], Record | None] = {}
        for table, key, before in self._changes:
            first.setdefault((table, key), before)
        delta: Delta = {}
        for (table, key), before in first.items():
            now = self.get(table, key)
            if now != before:
                delta.setdefault(table, {})[key] = _make_patch(before, now)
        return delta

    def apply(self, delta: Delta) -> None:
        """Apply a write that is stored."""
        for table, records in delta.items():
            for key, patch in records.items():
                self._set(table, key, _apply_patch(self.get(table, key), patch))

    def _set(self, table: str, key: str, record: Record | None) -> None:
        records = self._tables.setdefault(table, {})
        before = records.get(key)
        if record is None:
            records.pop(key, None)
        else:
            records[key] = record
        if table in self._decoded:
            self._decoded[table].pop(key, None)
        if table == "runs":
            self._index(key, before, record)

    def _index(self, run_id: str, before: Record | None, now: Record | None) -> None:
        was, key_before = _index_values(before)
        is_, key_now = _index_values(now)
        self.size += _size(now) - _size(before)
        if was is not is_:
            self._unfinished.pop(run_id, None)
            if is_ is False:
                self._unfinished[run_id] = None
        if was or is_:
            self.finished_size -= self._finished.pop(run_id, 0)
            if is_:
                self._finished[run_id] = size = _size(now)
                self.finished_size += size
        if key_before != key_now:
            if key_before is not None:
                ids = self._keys[key_before]
                del ids[run_id]
                if not ids:
                    del self._keys[key_before]
            if key_now is not None:
                self._keys.setdefault(key_now, {})[run_id] = None


def _size(record: Record | None) -> int:
    """Bytes, about: payloads, results and errors are texts."""
    if record is None:
        return 0
    return 200 + sum(len(value) for value in record.values() if isinstance(value, str))


def _index_values(record: Record | None) -> tuple[bool | None, str | None]:
    """Whether it has finished, and its dedupe key."""
    if record is None:
        return None, None
    key = record.get("dedupe_key")
    return is_finished(record), key if isinstance(key, str) else None


def _read_note(record: Record) -> Note | None:
    """None if more of it is damaged than its value."""
    try:
        return note_from_record(record)
    except Exception:  # a damaged record may raise anything
        return None


def _make_patch(before: Record | None, now: Record | None) -> Record | None:
    if before is None or now is None:
        return now
    removed: Record = {name: None for name in before if name not in now}
    missing = object()
    changed = {name: value for name, value in now.items() if before.get(name, missing) != value}
    return removed | changed


def _apply_patch(record: Record | None, patch: Record | None) -> Record | None:
    if patch is None:
        return None
    merged = {**(record or {}), **patch}
    return {name: value for name, value in merged.items() if value is not None}
