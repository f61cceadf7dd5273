"""Finished runs in segments, and the catalogue that says which segment may hold what.

Runs with a failure (failed, cancelled, skipped, or with a failed attempt) are in segments apart
from plain successes, so a job's last failures are found in few segments. The catalogue has, of each
segment, the bounds of its times, numbers and ids, its runs by job and state, how many of each job
were tried or failed, a Bloom filter of ids, and one of the runs whose failure was the reason of a
skip.
A run that was deleted or brought back to life stays in its segment; the live state names it `gone`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct, field

from mainspring.core.transitions import UPSTREAM_FAILED
from mainspring.stores.codec import Record, to_us
from mainspring.stores.objects.part_cache import PartCache, PartsNotLoaded
from mainspring.stores.objects.state import LiveState
from mainspring.stores.protocol import RunQuery

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
    any_failure: bool = field(name="trouble")
    runs: int
    first: int
    last: int
    created: tuple[int, int] | None
    finished: tuple[int, int] | None
    ended: dict[str, dict[str, int]]
    failing: dict[str, int]
    tried: dict[str, int]
    """By job. Jobs with none are left out."""
    ids: bytes
    followed: bytes
    """A Bloom filter too: of the upstream runs of those that were skipped because one failed."""
    generated: tuple[str, str] | None = None
    """The first and the last of the ids that `new_run_id` made: those are in the order of time."""

    def may_hold(self, wanted: _HashedId) -> bool:
        if wanted.is_generated and (
            self.generated is None or not self.generated[0] <= wanted.run_id <= self.generated[1]
        ):
            return False
        return wanted.may_be_in(self.ids)

    def most_matches(self, query: RunQuery) -> int:
        """How many runs may match, at most."""
        if self.created is not None:
            first, last = self.created
            if query.since is not None and last < to_us(query.since):
                return 0
            if query.until is not None and first >= to_us(query.until):
                return 0
        if query.upstream is not None and not any(
            _hashed(name).may_be_in(self.followed) for name in (self.followed and query.upstream)
        ):
            return 0
        jobs = self.ended.keys() if query.job is None else {query.job} & self.ended.keys()
        return sum(self._most_matches(job, query) for job in jobs)

    def _most_matches(self, job: str, query: RunQuery) -> int:
        by_state, wanted = self.ended[job], query.states
        most = (
            sum(by_state.values())
            if wanted is None
            else sum(by_state.get(str(s), 0) for s in wanted)
        )
        if query.failing:
            most = min(most, self.failing.get(job, 0))
        return min(most, self.tried.get(job, 0)) if query.tried else most


class _HashedId:
    """An id, hashed once for the filters of all segments."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.is_generated = _GENERATED.fullmatch(run_id) is not None
        digest = hashlib.blake2b(run_id.encode(errors="surrogatepass"), digest_size=16).digest()
        self._start, self._step = int.from_bytes(digest[:8]), int.from_bytes(digest[8:]) | 1
        self._bits: dict[int, list[tuple[int, int]]] = {}

    def may_be_in(self, ids: bytes) -> bool:
        for at, mask in self.bits(len(ids)):  # noqa: SIM110 (a generator takes twice as long)
            if not ids[at] & mask:
                return False
        return True

    def bits(self, size: int) -> list[tuple[int, int]]:
        """Its bits in a filter of so many bytes, each as a byte's number and a mask. Most filters
        have the same size."""
        known = self._bits.get(size)
        if known is None:
            numbers = ((self._start + n * self._step) % (size * 8) for n in range(HASHES))
            known = self._bits[size] = [(bit >> 3, 1 << (bit & 7)) for bit in numbers]
        return known


_GENERATED = re.compile("[0-9a-f]{32}")
_hashed = lru_cache(maxsize=1000)(_HashedId)


def _bloom_filter(ids: Iterable[str], count: int) -> bytes:
    bits = bytearray(max(8, count * BITS_A_RUN // 8 + 1))
    for run_id in ids:
        for at, mask in _HashedId(run_id).bits(len(bits)):
            bits[at] |= mask
    return bytes(bits)


def number_of(record: Record) -> int:
    number = record.get("number")
    return number if isinstance(number, int) else 0


def had_failure(record: Record) -> bool:
    return record.get("state") != "succeeded" or record.get("failures") != 0


def describe_segment(name: str, runs: dict[str, Record]) -> Segment:
    ended: dict[str, dict[str, int]] = {}
    for record in runs.values():
        by_state = ended.setdefault(str(record.get("job_id")), {})
        state = str(record.get("state"))
        by_state[state] = by_state.get(state, 0) + 1
    numbers = [number_of(record) for record in runs.values()]
    generated = [run_id for run_id in runs if _GENERATED.fullmatch(run_id)]
    followed = {
        str(upstream)
        for record in runs.values()
        if record.get("reason") == UPSTREAM_FAILED and isinstance(record.get("after"), list | tuple)
        for upstream in record["after"]
    }
    return Segment(
        name=name,
        any_failure=any(map(had_failure, runs.values())),
        runs=len(runs),
        first=min(numbers),
        last=max(numbers),
        created=_range(runs, "created_at"),
        finished=_range(runs, "finished_at"),
        ended=ended,
        failing=_count_by_job(r for r in runs.values() if r.get("failures") != 0),
        tried=_count_by_job(r for r in runs.values() if r.get("attempt") != 0),
        ids=_bloom_filter(runs, len(runs)),
        followed=_bloom_filter(followed, len(followed)) if followed else b"",
        generated=(min(generated), max(generated)) if generated else None,
    )


def _count_by_job(records: Iterable[Record]) -> dict[str, int]:
    return dict(Counter(str(record.get("job_id")) for record in records))


def _range(runs: dict[str, Record], field: str) -> tuple[int, int] | None:
    times = [record.get(field) for record in runs.values()]
    known = [time for time in times if isinstance(time, int)]
    return (min(known), max(known)) if len(known) == len(times) else None


def divide_runs(runs: dict[str, Record]) -> Iterator[dict[str, Record]]:
    """Parts of the runs that fit into a segment each."""
    part: dict[str, Record] = {}
    size = 0
    for run_id, record in runs.items():
        part[run_id] = record
        size += len(msgspec.json.encode(record))
        if len(part) == SEGMENT_RUNS or size >= SEGMENT_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part


class SegmentReader:
    """Reads the segments that a state names. Raises `PartsNotLoaded` for what is not loaded yet."""

    def __init__(self, parts: PartCache) -> None:
        self._parts = parts
        self._catalogue: tuple[str | None, list[Segment]] = (None, [])

    def segments(self, state: LiveState) -> list[Segment]:
        name = catalogue_name(state)
        if name is None:
            return []
        if self._catalogue[0] != name:
            entries = self._parts.get(name)["segments"]
            self._catalogue = name, [_read_segment(entry) for entry in entries]
        return self._catalogue[1]

    def look_up(self, state: LiveState, ids: Iterable[str]) -> dict[str, tuple[str, Record]]:
        """The finished runs of these ids, each with the name of its segment."""
        segments = self.segments(state)
        finished: dict[str, tuple[str, Record]] = {}
        needed: list[str] = []
        for run_id in ids:
            hashed = _HashedId(run_id)
            for segment in segments:
                if not segment.may_hold(hashed) or run_id in gone_of(state, segment.name):
                    continue
                if not self._parts.has(segment.name):
                    needed.append(segment.name)
                    continue
                record = self.runs_of(segment.name).get(run_id)
                if record is not None:
                    finished[run_id] = segment.name, record
        if needed:
            raise PartsNotLoaded(needed)
        return finished

    def require_loaded(self, segments: Sequence[str]) -> None:
        """Ask for all of these that are not loaded, at once."""
        if missing := [name for name in segments if not self._parts.has(name)]:
            raise PartsNotLoaded(missing)

    def runs_of(self, segment: str) -> dict[str, Record]:
        runs: dict[str, Record] = self._parts.get(segment)["runs"]
        return runs


def catalogue_name(state: LiveState) -> str | None:
    name = (state.get("meta", "history") or {}).get("catalogue")
    return name if isinstance(name, str) else None


def gone_of(state: LiveState, part: str) -> Record:
    return state.get("gone", part) or {}


_FILTERS = ("ids", "followed")


def _read_segment(entry: dict[str, Any]) -> Segment:
    filters = {name: base64.b64decode(entry[name]) for name in _FILTERS}
    return msgspec.convert({**entry, **filters}, Segment)


def catalogue_body(segments: Iterable[Segment]) -> dict[str, Any]:
    """The content of a catalogue."""
    return {
        "segments": [
            msgspec.to_builtins(segment)
            | {name: base64.b64encode(getattr(segment, name)).decode() for name in _FILTERS}
            for segment in segments
        ]
    }
