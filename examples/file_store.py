"""A complete store in one JSON file. docs/maintainers/writing-a-store.md walks through it.

Each call locks the file, reads it, and writes it again if something has changed. So every call is
atomic, for any number of processes on one machine. The store is made to be read, not to be fast.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from mainspring.core.clock import Clock, SteadyClock, SystemClock
from mainspring.core.model import FINISHED, LIVE, Job, Note, Page, Run, State, replace
from mainspring.core.overlap import resolve_overlap, runs_ended_by
from mainspring.core.statistics import ending_of
from mainspring.core.transitions import Change
from mainspring.errors import StoreMissing, StoreUnavailable
from mainspring.stores import codec, evaluation, protocol
from mainspring.stores.counters import Counters
from mainspring.stores.protocol import Held, Renewed, StoreInfo

NO_TRANSACTIONS = "a JSON file has no transactions"
Record = dict[str, Any]


class Data:
    """What the file holds: records, the values that are read from them, and each change of them."""

    def __init__(self, contents: Record, now: datetime) -> None:
        self.contents, self.now = contents, now
        self.run_records: dict[str, Record] = contents.setdefault("runs", {})
        self.job_records: dict[str, Record] = contents.setdefault("jobs", {})
        self.note_records: dict[str, Record] = contents.setdefault("notes", {})
        self.counters = Counters(contents.setdefault("counters", []))
        self.runs = {run_id: codec.run_from_record(r) for run_id, r in self.run_records.items()}
        self.notes = map(codec.note_from_record, self.note_records.values())  # read when asked for

    @property
    def jobs(self) -> dict[str, Job]:
        return {job_id: codec.job_from_record(r) for job_id, r in self.job_records.items()}

    def keep_run(self, run_id: str, record: Record) -> Run:
        self.run_records[run_id] = record
        self.runs[run_id] = codec.run_from_record(record)
        return self.runs[run_id]

    def insert_run(self, run: Run) -> Run:
        number = self.contents["last_number"] = self.contents.get("last_number", 0) + 1
        self.counters.count(ending_of(run), self.now)
        return self.keep_run(run.id, {**codec.run_to_record(run), "number": number})

    def update_run(self, run_id: str, fields: Mapping[str, Any]) -> Run:
        """Write some fields and leave the others as they are, also those that cannot be read."""
        record = codec.update_record(codec.RUN, self.run_records[run_id], fields)
        return self.keep_run(run_id, record)

    def dedupe_holder(self, run: Run) -> Run | None:
        return evaluation.dedupe_holder(self.runs.values(), run.dedupe_key, self.now, run.id)

    def used_capacity(self) -> evaluation.UsedCapacity:
        return evaluation.used_capacity(self.runs.values(), self.jobs, self.now)

    def allow_for_clock_steps(self, steady: SteadyClock) -> None:
        """If somebody has set the clock, what was to last for a while still lasts as long."""
        boot, offset = self.contents.get("clock", ["", None])
        if boot != steady.boot or offset is None:  # the first reading since the machine started
            self.contents["clock"] = [steady.boot, steady.wall_offset_us()]
            return
        step = steady.step_from(offset)
        self.contents["clock"] = [boot, offset + step]
        for run in list(self.runs.values()) if step else ():
            moved = evaluation.fields_of_clock_step(run, timedelta(microseconds=step), self.now)
            self.update_run(run.id, moved)
        for record in self.note_records.values():
            if "ttl" in record:
                record["expires_at"] += step

    def add(self, run: Run, refused: set[str]) -> protocol.Added:
        if run.id in self.runs:
            return protocol.Added(self.runs[run.id])
        there = self.dedupe_holder(run) if refused.isdisjoint(run.after) else run
        if there is None:
            return protocol.Added(self.insert_run(evaluation.new_run_by_clock(run, self.now)))
        refused.add(run.id)
        return protocol.Added(replace(there, duplicate=True), duplicate=True)

    def renew(self, held: Held, lease: timedelta) -> Renewed | None:
        run = self.runs.get(held.id)
        if run is None or run.state is not State.RUNNING or run.token != held.token:
            return None
        has_capacity = evaluation.has_capacity(self.jobs.get(run.job_id), self.used_capacity())
        if evaluation.has_lapsed(run, self.now) and not has_capacity:
            return None
        self.update_run(run.id, {"lease_until": self.now + lease, "progress": held.progress})
        return Renewed(run.id, run.cancel_requested, run.reason)

    def commit(self, change: Change) -> bool:
        run = self.runs.get(change.id)
        if run is None:
            return change.deletes
        if self.run_records[run.id].get("change_id") == change.change_id:
            return True  # sent again: it was applied, and no other change came after it
        if any(getattr(run, name) != value for name, value in change.expect.items()):
            return False
        if change.deletes:
            awaited = evaluation.awaited_runs(self.runs.values())
            if may_go := evaluation.may_be_deleted(run, self.now, awaited):
                del self.runs[run.id], self.run_records[run.id]
            return may_go
        revives = run.state in FINISHED and change.after(run).state in LIVE
        if revives and self.dedupe_holder(run) is not None:
            return False
        self.update_run(run.id, evaluation.fields_of_change(change, self.now))
        self.run_records[run.id]["change_id"] = change.change_id
        self.counters.count(change.ending, self.now)
        return True

    def fire(self, firing: protocol.Firing, broken_chains: set[str]) -> protocol.Fired:
        job = self.jobs.get(firing.job_id)
        is_late = firing.valid_until is not None and self.now > firing.valid_until
        if job is None or job.version != firing.version or job.id in broken_chains or is_late:
            broken_chains.add(firing.job_id)
            return protocol.Fired(False)
        unfinished = evaluation.unfinished_slots(self.runs.values(), job.id)
        runs, changes = resolve_overlap(firing.overlap, firing.runs, unfinished, self.now)
        replaced = runs_ended_by(unfinished, changes, [self.commit(change) for change in changes])
        stored = tuple(self.add(run, set()).run for run in runs)
        fields = {"next_run_at": firing.next_run_at, "last_run_at": firing.last_run_at}
        record = self.job_records[job.id] | {"version": job.version + 1}
        self.job_records[job.id] = codec.update_record(codec.JOB, record, fields)
        return protocol.Fired(True, stored, replaced)

    def put_job(self, write: protocol.JobWrite) -> bool:
        stored = self.jobs.get(write.id)
        if write.expected_version not in (None, stored.version if stored else 0):
            return False
        if write.job is None:
            if stored is not None:
                self.counters.remove_job(write.id)
            return self.job_records.pop(write.id, None) is not None
        self.job_records[write.id] = codec.job_to_record(write.job)
        return True

    def put_note(self, write: protocol.NoteWrite) -> int | None:
        key = json.dumps([write.kind, write.name])
        record = self.note_records.get(key)
        stored = None if record is None else codec.note_from_record(record)
        live = 0 if stored is None or evaluation.has_expired(stored, self.now) else stored.version
        if write.expected_version not in (None, live):
            return None
        if write.note is None:
            return None if self.note_records.pop(key, None) is None else 0
        version = (stored.version if stored else 0) + 1  # grows on after the note has expired
        ends = write.note.expires_at if write.ttl is None else self.now + write.ttl
        note = replace(write.note, version=version, expires_at=ends)
        self.note_records[key] = codec.note_to_record(note) | ({"ttl": True} if write.ttl else {})
        return version


class FileStore:
    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self._path, self._clock = Path(path), clock or SystemClock()
        self._steady = SteadyClock(self._clock)

    @contextmanager
    def _data(self) -> Iterator[Data]:
        """Lock the file and read it; write it at the end, unless an error was raised."""
        try:
            with open(self._path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                text = self._path.read_text("utf-8") if self._path.exists() else "{}"
                data = Data(json.loads(text), self._clock.now())
                data.allow_for_clock_steps(self._steady)
                yield data
                made = json.dumps(data.contents | {"counters": data.counters.records()})
                if made != text:
                    self._write(made)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be used: {error}") from error

    def _write(self, text: str) -> None:
        """All of it or nothing, and durable: the new file takes the place of the old one."""
        draft = self._path.with_suffix(".draft")
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)

    async def open(self, *, create: bool = True) -> None:
        if not create and not self._path.exists():
            raise StoreMissing(f"{self._path} does not exist")
        await self.now()  # makes the file
        self._seen = self._version()

    async def close(self) -> None:
        """Nothing stays open between two calls."""

    def info(self) -> StoreInfo:
        return StoreInfo(kind="file", location=str(self._path), no_transactions=NO_TRANSACTIONS)

    async def now(self) -> datetime:
        with self._data() as data:
            return data.now

    def _version(self) -> tuple[int, ...]:
        return (found := self._path.stat()).st_ino, found.st_mtime_ns, found.st_size

    async def wait(self, timeout: float) -> bool:
        seen, ends = self._seen, asyncio.get_running_loop().time() + timeout
        while (found := self._version()) == seen:
            if asyncio.get_running_loop().time() >= ends:
                return False
            await asyncio.sleep(0.02)
        self._seen = found
        return True

    async def add(self, runs: Sequence[Run], within: Any = None) -> list[protocol.Added]:
        with self._data() as data:
            refused: set[str] = set()
            return [data.add(run, refused) for run in runs]

    async def claim(self, claim: protocol.Claim) -> protocol.Claimed:
        with self._data() as data:
            runs, jobs, now = data.runs.values(), data.jobs, data.now
            used, rates = data.used_capacity(), evaluation.rate_allowance(jobs, data.notes, now)
            chosen = evaluation.choose_claimed(runs, jobs, claim, now, used, rates)
            fields = {run.id: evaluation.fields_of_claim(run, claim, now) for run in chosen}
            taken = [data.update_run(run_id, put) for run_id, put in fields.items()]
            for write in rates.writes():
                data.put_note(write)
            return protocol.Claimed(taken, evaluation.next_due(runs, claim, now, rates))

    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        with self._data() as data:
            return [one for item in held if (one := data.renew(item, lease)) is not None]

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        with self._data() as data:
            return [data.commit(change) for change in changes]

    async def find(self, query: protocol.RunQuery) -> Page[Run]:
        with self._data() as data:
            runs, records = reversed(data.runs.values()), data.run_records
            numbers = {run_id: record["number"] for run_id, record in records.items()}
            page = evaluation.page_of_runs(runs, query, data.now, numbers)
            found = [records[run.id] for run in page.items]
            return replace(page, items=[codec.run_from_record(r, brief=query.brief) for r in found])

    async def counts(self, *given: Any, **named: Any) -> protocol.Counts:
        with self._data() as data:
            return data.counters.counts(data.runs.values(), data.now, *given, **named)

    async def maintain(self, before: datetime | None, limit: int) -> int:
        if before is None:
            return 0  # no call leaves anything half done
        with self._data() as data:
            for key, record in list(data.note_records.items()):
                since = data.now - (protocol.TTL_NOTE_KEPT if "ttl" in record else timedelta())
                if evaluation.has_expired(codec.note_from_record(record), since):
                    del data.note_records[key]
            data.counters.prune(data.job_records, data.now)
            old = [r for r in data.runs.values() if r.finished_at and r.finished_at < before]
            kept = evaluation.awaited_runs(data.runs.values())
            gone = [run for run in old if evaluation.may_be_deleted(run, data.now, kept)][:limit]
            for run in gone:
                del data.runs[run.id], data.run_records[run.id]
            return len(gone)

    async def jobs(self, query: protocol.JobQuery) -> Page[Job]:
        with self._data() as data:
            return evaluation.page_of_jobs(data.jobs.values(), query)

    async def put_jobs(self, writes: Sequence[protocol.JobWrite]) -> list[bool]:
        with self._data() as data:
            return [data.put_job(write) for write in writes]

    async def notes(self, query: protocol.NoteQuery) -> Page[Note]:
        with self._data() as data:
            return evaluation.page_of_notes(data.notes, query, data.now)

    async def put_notes(self, writes: Sequence[protocol.NoteWrite]) -> list[int | None]:
        with self._data() as data:
            return [data.put_note(write) for write in writes]

    async def fire(self, firings: Sequence[protocol.Firing]) -> list[protocol.Fired]:
        with self._data() as data:
            broken_chains: set[str] = set()
            return [data.fire(firing, broken_chains) for firing in firings]

    def transaction(self, *given: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(NO_TRANSACTIONS)
