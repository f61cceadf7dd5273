"""The simulation's monitor over a bucket: every write of the head, in the order of the heads.

A write of the head holds all calls of one round. The watcher knows what each of them did to the
state when the write was sent, and lets the monitor look after each call, as it looks at the memory
store. Runs in segments are part of what the monitor sees. The watcher compares also what the calls
did with what the storage holds, which a new client would read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

import msgspec

from mainspring.core.model import Job, Note, Run
from mainspring.stores import counters
from mainspring.stores.codec import (
    Record,
    from_us,
    job_from_record,
    note_from_record,
    run_from_record,
)
from mainspring.stores.counters import TOTALS
from mainspring.stores.objects import ObjectStore
from mainspring.stores.objects.group_commit import GroupCommit, Operation
from mainspring.stores.objects.schema import HEAD, Head, decode_body, decode_head
from mainspring.stores.objects.state import Delta, LiveState, Tables
from mainspring.stores.objects.storage_clock import StorageClock
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.protocol import Store
from tests.support.objects.memory_bucket import Objects
from tests.support.simulation.machines import outside
from tests.support.simulation.monitor import MUTATORS, Monitor

__all__ = ["HeadMonitor", "HeadWatcher", "StoreView", "WatchedObjects"]

_METHOD: ContextVar[str] = ContextVar("method", default="open")

COUNTED = {
    "snapshot": "snapshots",
    "delta": "delta parts",
    "history": "segments",
    "catalogue": "catalogues",
    "periods": "day parts",
}
"""What the monitor counts when a head names a new part of a kind."""

Place = tuple[str, str]
"""A table and a key."""

Records = dict[Place, Record | None]


class StoreView:
    """What the memory store has for the monitor to look at."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._jobs: dict[str, Job] = {}
        self._notes: dict[tuple[str, str], Note] = {}
        self._counters = counters.Counters()


class HeadMonitor(Monitor):
    """`evaluated_at`: while a write is looked at, the moment at which it was decided. It may have
    been on its way for seconds, and what it decides by the clock counts from that moment."""

    evaluated_at: float | None = None
    uncertainty = timedelta()
    """By how much a client's time may be behind the storage's."""

    def _moment(self) -> float:
        return super()._moment() if self.evaluated_at is None else self.evaluated_at

    def resumed(self, end: datetime) -> None:
        super().resumed(end - self.uncertainty)

    def _check_effects(self, changed: list[Run]) -> None:
        """No transactions here."""


class WatchedObjects(Objects):
    """Tells the watcher what was done."""

    watcher: HeadWatcher

    def put(self, key: str, data: bytes, expected_etag: str | None) -> str | None:
        etag = super().put(key, data, expected_etag)
        if etag is not None and key == HEAD:
            self.watcher.landed(data)
        return etag

    def delete(self, key: str) -> None:
        super().delete(key)
        self.watcher.deleted(key)


class _Evaluation(NamedTuple):
    at: float
    records: Records
    answer: Any


class _Call:
    """A call of one client: what each evaluation did, and which one is stored."""

    def __init__(self, author: str, method: str, evaluate: Callable[[Workspace], Any]) -> None:
        self.author = author
        self.method = method
        self.evaluations: list[_Evaluation] = []
        self.stored: _Evaluation | None = None
        self._evaluate = evaluate

    def evaluate(self, work: Workspace) -> Any:
        mark = work.state.mark()
        answer = self._evaluate(work)
        now = asyncio.get_running_loop().time()
        self.evaluations.append(_Evaluation(now, _changed(work.state, mark), answer))
        return answer


def _changed(state: LiveState, mark: int) -> Records:
    """What was changed since the mark, as it is now."""
    places = dict.fromkeys((table, key) for table, key, _ in state._changes[mark:])
    return {place: state.get(*place) for place in places}


class _Try(NamedTuple):
    moved: Records
    """What a step of the machine's clock moved before the first call."""
    calls: list[tuple[_Call, _Evaluation]]


class HeadWatcher:
    def __init__(self, monitor: HeadMonitor, view: StoreView, objects: WatchedObjects) -> None:
        self._monitor = monitor
        self._view = view
        self._objects = objects
        self._tries: dict[str, _Try] = {}
        self._head = Head()
        self._truth = LiveState()
        """By the deltas of the heads: what clients have that follow."""
        self._tables: Tables = {}
        """By the calls."""
        self._archive: dict[str, Record] = {}
        self._bodies: dict[str, Any] = {}
        self._named: set[str] = set()
        self._moved: dict[str, Records] = {}
        """By client: what a step of the machine's clock moved in its last round."""
        objects.watcher = self

    # -- clients

    def observe(self, store: ObjectStore, author: str) -> Store:
        """The store of one client, whose calls are noted."""
        return cast(Store, _ObservedStore(self, store, author))

    def attach(self, group_commit: GroupCommit, author: str) -> None:
        """Note what the operations of a client do."""
        submit, follow_step = group_commit.submit, group_commit.clock.follow_step

        def noted(operation: Operation[Any]) -> asyncio.Future[Any]:
            if isinstance(getattr(operation.evaluate, "__self__", None), _Call):
                return submit(operation)  # once more, behind the parts that it needs
            call = _Call(author, _METHOD.get(), operation.evaluate)
            operation.evaluate = call.evaluate
            future = submit(operation)
            future.add_done_callback(lambda done: self._check_answer(call, done))
            return future

        def followed(state: LiveState) -> None:
            mark = state.mark()
            follow_step(state)
            self._moved[group_commit.client] = _changed(state, mark)

        group_commit.submit = noted  # type: ignore[method-assign]
        group_commit.clock.follow_step = followed  # type: ignore[method-assign]

    def sent(self, group_commit: GroupCommit | None) -> None:
        """A client is about to write the head."""
        if group_commit is None:
            return  # the first head of all, which holds nothing
        nonce = next(reversed(group_commit._tries))
        operations = [operation for operation, _ in group_commit._tries[nonce]]
        calls = [cast(_Call, one.evaluate.__self__) for one in operations]  # type: ignore[attr-defined]
        self._tries[nonce] = _Try(
            self._moved.get(group_commit.client, {}),
            [(call, call.evaluations[-1]) for call in calls if call.evaluations],
        )

    def follow_step(self, clock: StorageClock, nonce: str) -> Delta:
        """What a client that writes next, under this nonce, moves because its clock was set."""
        mark = self._truth.mark()
        clock.follow_step(self._truth)
        self._tries[nonce] = _Try(_changed(self._truth, mark), [])
        delta = self._truth.delta()
        self._truth.undo()
        return delta

    def _check_answer(self, call: _Call, done: asyncio.Future[Any]) -> None:
        if self._monitor.broken.is_set() or done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        if call.stored is not None:
            if call.stored.answer != answer:
                self._fail(
                    f"{_describe_call(call)} was answered by {answer}, not {call.stored.answer}"
                )
        elif not any(one.answer is answer and not one.records for one in call.evaluations):
            self._fail(f"{_describe_call(call)} was answered by {answer}, and is not stored")

    # -- the storage

    def landed(self, data: bytes) -> None:
        """A write of the head was done."""
        if self._monitor.broken.is_set():
            return
        outside().run(self._take, data)

    def _take(self, data: bytes) -> None:
        head, before = decode_head(data), self._head
        self._head = head
        self._monitor.counted["heads"] += 1
        if not head.commits:
            return
        last = max(head.commits.values(), key=lambda commit: commit.seq)
        tried = self._tries.pop(last.nonce)
        try:
            touched = self._apply_head(before, head)
            self._apply_calls(tried)
            self._compare(touched, tried)
            self._check_parts()
            if head.snapshot != before.snapshot:
                self._check_snapshot()
        except Exception as error:
            self._monitor.fail("engine", f"the watcher itself failed: {error!r}")
            raise
        finally:
            self._monitor.evaluated_at = None

    def _apply_head(self, before: Head, head: Head) -> set[Place]:
        """Bring the truth to the new head. Gives the places that it touches."""
        follows = head.seq == before.seq + 1 and head.entries[-2:-1] == before.entries[-1:]
        if follows or not before.entries:
            delta = self._delta(head, -1)
            self._truth.apply(delta)
            return {(table, key) for table, keys in delta.items() for key in keys}
        known = set(_places(self._truth.tables()))
        self._truth = self._load(head)
        return known | set(_places(self._truth.tables()))

    def _delta(self, head: Head, at: int) -> Delta:
        entry = head.entries[at]
        if entry.parts:
            return cast(Delta, self._joined(entry.parts))
        return cast(Delta, msgspec.json.decode(entry.delta))

    def _joined(self, parts: tuple[str, ...]) -> Any:
        """The tables that these parts hold together."""
        tables: dict[str, Any] = {}
        for name in parts:
            for table, records in self._body(name, keep=False)["tables"].items():
                tables.setdefault(table, {}).update(records)
        return tables

    def _load(self, head: Head) -> LiveState:
        """The state as a new client reads it."""
        state = LiveState(self._joined(head.snapshot))
        for at, entry in enumerate(head.entries):
            if entry.seq > head.snapshot_seq:
                state.apply(self._delta(head, at))
        return state

    def _body(self, part: str, *, keep: bool = True) -> Any:
        if part in self._bodies:
            return self._bodies[part]
        found = self._objects.stored.get(part)
        if found is None:
            self._fail(f"the head of write {self._head.seq} needs {part!r}, which is not there")
            return {"tables": {}, "runs": {}, "segments": [], "counters": {}}
        body = decode_body(part, found.data, dict[str, Any])
        if keep:
            self._bodies[part] = body
        return body

    def _apply_calls(self, tried: _Try) -> None:
        self._put(tried.moved)
        for call, evaluation in tried.calls:
            if not evaluation.records:
                continue
            if call.stored is not None:
                self._fail(f"{_describe_call(call)} is stored twice")
            call.stored = evaluation
            self._monitor.evaluated_at = evaluation.at
            self._put(evaluation.records)
            self._observe(call.author, call.method)

    def _observe(self, author: str, method: str) -> None:
        assert method in MUTATORS, method
        if not self._monitor.broken.is_set():
            self._monitor.observe(author, method)

    def _compare(self, touched: set[Place], tried: _Try) -> None:
        """What the calls did must be what the storage holds now."""
        if self._monitor.broken.is_set():
            return
        touched |= {place for _, one in tried.calls for place in one.records}
        other = {
            (table, key): self._truth.get(table, key)
            for table, key in sorted(touched)
            if self._truth.get(table, key) != self._tables.get(table, {}).get(key)
        }
        if not other:
            return
        self._put(other)
        for call in [call for call, one in tried.calls if one.records][-1:]:
            self._observe(call.author, call.method)  # what a user would notice comes first
        if not self._monitor.broken.is_set():
            self._fail(f"the head of write {self._head.seq} holds {other}, which no call did")

    # -- what the monitor sees

    def _put(self, records: Records) -> None:
        for (table, key), record in records.items():
            kept = self._tables.setdefault(table, {})
            if record is None:
                kept.pop(key, None)
            else:
                kept[key] = record
            if table == "jobs":
                _set(self._view._jobs, key, None if record is None else job_from_record(record))
            elif table == "notes":
                place = cast(tuple[str, str], tuple(json.loads(key)))
                _set(self._view._notes, place, None if record is None else note_from_record(record))
            elif table == "counters":
                self._put_counter(key, record)
        runs = {key for table, key in records if table == "runs"}
        if any(table == "gone" or (table, key) == ("meta", "history") for table, key in records):
            runs |= self._read_archive()
        for run_id in sorted(runs):
            self._put_run(run_id)

    def _put_run(self, run_id: str) -> None:
        live, archived = self._tables.get("runs", {}).get(run_id), self._archive.get(run_id)
        if live is not None and archived is not None:
            self._fail(f"{run_id} is in the live state and in a segment")
        record = live or archived
        run = None if record is None else run_from_record(record)
        if run != self._view._runs.get(run_id):
            _set(self._view._runs, run_id, run)

    def _put_counter(self, text: str, record: Record | None) -> None:
        job_id, start = json.loads(text)
        key = job_id, from_us(start)
        if key[1] == TOTALS:
            found = None if record is None else counters.decode(key, record["text"])
            _set(self._view._counters._counted, key, found)

    def _read_archive(self) -> set[str]:
        """Read all segments anew. Gives the runs that are or were there."""
        before, self._archive = self._archive, {}
        for segment in self._segments():
            gone = self._tables.get("gone", {}).get(segment, {})
            for run_id, record in self._body(segment)["runs"].items():
                if run_id in gone:
                    continue
                if run_id in self._archive:
                    self._fail(f"{run_id} is in two segments")
                self._archive[run_id] = record
        return before.keys() | self._archive.keys()

    def _segments(self) -> list[str]:
        catalogue = self._catalogue()
        return [] if catalogue is None else [s["name"] for s in self._body(catalogue)["segments"]]

    def _catalogue(self) -> str | None:
        return self._tables.get("meta", {}).get("history", {}).get("catalogue")

    # -- parts

    def deleted(self, key: str) -> None:
        self._bodies.pop(key, None)
        if key in self._named and not self._monitor.broken.is_set():
            self._fail(f"{key!r} was deleted, though the head of write {self._head.seq} needs it")

    def _check_parts(self) -> None:
        """All that the head needs is there."""
        periods = self._tables.get("periods", {}).values()
        named = self._head.parts() | {str(record["part"]) for record in periods}
        if (catalogue := self._catalogue()) is not None:
            named |= {catalogue, *self._segments()}
        for name in sorted(named - self._objects.stored.keys()):
            self._fail(f"the head of write {self._head.seq} needs {name!r}, which is not there")
        for name in sorted(named - self._named):
            self._monitor.counted[COUNTED[name.partition("/")[0]]] += 1
        self._named = named

    def _check_snapshot(self) -> None:
        if self._monitor.broken.is_set():
            return
        read, followed = self._load(self._head).tables(), self._truth.tables()
        if _without_empty_tables(read) != _without_empty_tables(followed):
            self._fail(f"the snapshot of write {self._head.snapshot_seq} is not of that write")

    def _fail(self, text: str) -> None:
        self._monitor.fail("storage", text)


class _ObservedStore:
    """The store of one client. Each operation knows the call that it belongs to."""

    def __init__(self, watcher: HeadWatcher, store: ObjectStore, author: str) -> None:
        self._watcher = watcher
        self._store = store
        self._author = author
        # What a store does by itself, in the middle of another call or after it.
        store._compact_if_due = _named("maintain", store._compact_if_due)  # type: ignore[method-assign]
        store._release = _named("commit", store._release)  # type: ignore[method-assign]

    async def open(self, *, create: bool = True) -> None:
        was_open = self._store._group_commit is not None
        await self._store.open(create=create)
        if not was_open and self._store._group_commit is not None:
            self._watcher.attach(self._store._group_commit, self._author)

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._store, name)
        if name not in MUTATORS:
            return work

        async def called(*args: Any, **options: Any) -> Any:
            token = _METHOD.set(name)
            try:
                return await work(*args, **options)
            finally:
                _METHOD.reset(token)

        return called


def _named(method: str, work: Callable[..., None]) -> Callable[..., None]:
    def named(*args: Any) -> None:
        token = _METHOD.set(method)
        work(*args)
        _METHOD.reset(token)

    return named


def _describe_call(call: _Call) -> str:
    return f"a {call.method} of {call.author}"


def _set(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        kept.pop(key, None)
    else:
        kept[key] = value


def _places(tables: Tables) -> list[Place]:
    return [(table, key) for table, records in tables.items() for key in records]


def _without_empty_tables(tables: Tables) -> Tables:
    return {name: records for name, records in tables.items() if records}
