"""Finished runs in segments, and the catalogue that says which segment may hold what.

Runs that had trouble (failed, cancelled, skipped, or with a failed attempt) are in segments apart
from plain successes, so a job's last failures are found in few segments. The catalogue has, of each
segment, the bounds of its times and numbers, its runs by job and state, and a Bloom filter of ids.
A run that was deleted or brought back to life stays in its segment; the live state names it `gone`.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.core.model import LIVE, Run, State
from mainspring.stores.codec import Record, run_from_record, to_us
from mainspring.stores.objects.parts import Parts, PartsNeeded
from mainspring.stores.objects.state import LiveState
from mainspring.stores.protocol import RunQuery

__all__ = [
    "SEGMENT_RUNS",
    "History",
    "Segment",
    "catalogue_body",
    "catalogue_name",
    "describe_segment",
    "divide_runs",
    "gone_of",
    "had_trouble",
]

SEGMENT_RUNS = 1000
"""The most runs of a segment: what one `maintain` of the engine may delete at once."""

SEGMENT_BYTES = 4 * 1024 * 1024
"""Bytes of JSON at which a segment ends."""

BITS_A_RUN = 20
HASHES = 14
"""Of a Bloom filter. One look-up in 15,000 finds an id that is not there. So with a hundred
segments one new run in 150 costs a request."""


class Segment(Struct, frozen=True, kw_only=True):
    """An entry of the catalogue. Bounds are inclusive, and None where a record cannot be read."""

    name: str
    trouble: bool
    runs: int
    first: int
    last: int
    created: tuple[int, int] | None
    finished: tuple[int, int] | None
    ended: dict[str, dict[str, int]]
    failing: int
    tried: int
    ids: bytes

    def may_hold(self, run_id: str) -> bool:
        bits = len(self.ids) * 8
        return all(self.ids[bit >> 3] >> (bit & 7) & 1 for bit in _bits(run_id, bits))

    def matching(self, query: RunQuery) -> int:
        """How many runs may match, at most."""
        if self.created is not None:
            first, last = self.created
            if query.since is not None and last < to_us(query.since):
                return 0
            if query.until is not None and first >= to_us(query.until):
                return 0
        if (query.failing and not self.failing) or (query.tried and not self.tried):
            return 0
        of_jobs = self.ended.values() if query.job is None else [self.ended.get(query.job, {})]
        wanted = None if query.states is None else {str(state) for state in query.states}
        return sum(
            count
            for by_state in of_jobs
            for state, count in by_state.items()
            if wanted is None or state in wanted
        )


def _bits(run_id: str, bits: int) -> Iterator[int]:
    digest = hashlib.blake2b(run_id.encode(errors="surrogatepass"), digest_size=16).digest()
    at, step = int.from_bytes(digest[:8]), int.from_bytes(digest[8:]) | 1
    for turn in range(HASHES):
        yield (at + turn * step) % bits


def _filter_of(ids: Iterable[str], count: int) -> bytes:
    made = bytearray(max(8, count * BITS_A_RUN // 8 + 1))
    for run_id in ids:
        for bit in _bits(run_id, len(made) * 8):
            made[bit >> 3] |= 1 << (bit & 7)
    return bytes(made)


def number_of(record: Record) -> int:
    number = record.get("number")
    return number if isinstance(number, int) else 0


def had_trouble(record: Record) -> bool:
    return record.get("state") != "succeeded" or record.get("failures") != 0


def describe_segment(name: str, runs: dict[str, Record]) -> Segment:
    ended: dict[str, dict[str, int]] = {}
    for record in runs.values():
        by_state = ended.setdefault(str(record.get("job_id")), {})
        state = str(record.get("state"))
        by_state[state] = by_state.get(state, 0) + 1
    numbers = [number_of(record) for record in runs.values()]
    return Segment(
        name=name,
        trouble=any(map(had_trouble, runs.values())),
        runs=len(runs),
        first=min(numbers),
        last=max(numbers),
        created=_range(runs, "created_at"),
        finished=_range(runs, "finished_at"),
        ended=ended,
        failing=sum(record.get("failures") != 0 for record in runs.values()),
        tried=sum(record.get("attempt") != 0 for record in runs.values()),
        ids=_filter_of(runs, len(runs)),
    )


def _range(runs: dict[str, Record], field: str) -> tuple[int, int] | None:
    times = [record.get(field) for record in runs.values()]
    known = [time for time in times if isinstance(time, int)]
    return (min(known), max(known)) if len(known) == len(times) else None


def divide_runs(runs: dict[str, Record]) -> Iterator[dict[str, Record]]:
    """Parts of the runs that fit into a segment each."""
    made: dict[str, Record] = {}
    size = 0
    for run_id, record in runs.items():
        made[run_id] = record
        size += len(msgspec.json.encode(record))
        if len(made) == SEGMENT_RUNS or size >= SEGMENT_BYTES:
            yield made
            made, size = {}, 0
    if made:
        yield made


class History:
    """Reads the segments that a state names. Raises `PartsNeeded` for what is not loaded yet."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._catalogue: tuple[str | None, list[Segment]] = (None, [])

    def segments(self, state: LiveState) -> list[Segment]:
        name = catalogue_name(state)
        if name is None:
            return []
        if self._catalogue[0] != name:
            found = self._parts.get(name)["segments"]
            self._catalogue = name, [_read_segment(entry) for entry in found]
        return self._catalogue[1]

    def look_up(self, state: LiveState, ids: Iterable[str]) -> dict[str, tuple[str, Record]]:
        """The finished runs of these ids, each with the name of its segment."""
        segments = self.segments(state)
        found: dict[str, tuple[str, Record]] = {}
        needed: list[str] = []
        for run_id in ids:
            for segment in segments:
                if not segment.may_hold(run_id) or run_id in gone_of(state, segment.name):
                    continue
                if not self._parts.has(segment.name):
                    needed.append(segment.name)
                    continue
                record = self.runs_of(segment.name).get(run_id)
                if record is not None:
                    found[run_id] = segment.name, record
        if needed:
            raise PartsNeeded(needed)
        return found

    def runs_of(self, segment: str) -> dict[str, Record]:
        runs: dict[str, Record] = self._parts.get(segment)["runs"]
        return runs

    def newest_first(
        self, state: LiveState, query: RunQuery, before: int | None, numbers: dict[str, int]
    ) -> Iterator[Run]:
        """The runs that may match, live ones and finished ones, newest first. Those with a number
        of `before` or more are left out. Fills in `numbers`."""
        found = [
            (-number_of(record), run_id, record)
            for run_id, record in state.table("runs").items()
            if _may_match(record, query)
        ]
        heapq.heapify(found)
        waiting = [] if _is_live_only(query) else self._candidates(state, query, before)
        while found or waiting:
            while waiting and (not found or waiting[-1].last >= -found[0][0]):
                self._need(waiting, query)
                segment = waiting.pop()
                gone = gone_of(state, segment.name)
                for run_id, record in self.runs_of(segment.name).items():
                    if run_id not in gone and _may_match(record, query):
                        heapq.heappush(found, (-number_of(record), run_id, record))
            if not found:
                return
            number, run_id, record = heapq.heappop(found)
            numbers[run_id] = -number
            if before is None or -number < before:
                live = state.run(run_id)
                yield run_from_record(record) if live is None else live

    def _candidates(self, state: LiveState, query: RunQuery, before: int | None) -> list[Segment]:
        """The segments that may hold a match, the newest last."""
        chosen = [
            segment
            for segment in self.segments(state)
            if segment.matching(query) and (before is None or segment.first < before)
        ]
        return sorted(chosen, key=lambda segment: segment.last)

    def _need(self, waiting: Sequence[Segment], query: RunQuery) -> None:
        """Ask for the next segment if it is not loaded, and for those behind it that the page
        probably needs as well."""
        if self._parts.has(waiting[-1].name):
            return
        wanted, names = query.limit, []
        for segment in reversed(waiting):
            names.append(segment.name)
            wanted -= segment.matching(query)
            if wanted <= 0 or len(names) == 8:
                break
        raise PartsNeeded(names)


def _is_live_only(query: RunQuery) -> bool:
    finished = query.states is None or not query.states <= LIVE
    return query.lapsed or query.set_aside or query.upstream is not None or not finished


def _may_match(record: Record, query: RunQuery) -> bool:
    """A first look, which spares reading most of the records."""
    job = record.get("job_id")
    if query.job is not None and isinstance(job, str) and job != query.job:
        return False
    if query.failing and record.get("failures") == 0:
        return False
    state = record.get("state")
    is_known = isinstance(state, str) and state in _STATES
    return query.states is None or not is_known or state in query.states


_STATES = frozenset(map(str, State))


def catalogue_name(state: LiveState) -> str | None:
    name = (state.get("meta", "history") or {}).get("catalogue")
    return name if isinstance(name, str) else None


def gone_of(state: LiveState, part: str) -> Record:
    return state.get("gone", part) or {}


def _read_segment(entry: dict[str, Any]) -> Segment:
    return msgspec.convert({**entry, "ids": base64.b64decode(entry["ids"])}, Segment)


def catalogue_body(segments: Iterable[Segment]) -> dict[str, Any]:
    """The content of a catalogue."""
    return {
        "segments": [
            {**msgspec.structs.asdict(one), "ids": base64.b64encode(one.ids).decode()}
            for one in segments
        ]
    }
