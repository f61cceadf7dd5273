"""Finished runs in segments: found by few requests, looked up, revived, deleted, merged."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from mainspring.core import transitions
from mainspring.core.model import Note, Page, Run, State, replace
from mainspring.errors import StoreDamaged
from mainspring.stores.codec import run_to_record
from mainspring.stores.objects import ObjectStore
from mainspring.stores.objects.history import Segment, catalogue_body, describe_segment
from mainspring.stores.objects.schema import HEAD, Entry, Head, encode_body, encode_head, part_name
from mainspring.stores.protocol import NoteWrite, RunQuery
from mainspring.testing import FakeClock
from tests.support.objects.memory_bucket import MemoryBucket, Objects
from tests.support.records import a_run

NOW = datetime(2030, 1, 31, tzinfo=UTC)
JOBS = 50
RUNS = 100_000
FIRST, EVERY = NOW - timedelta(days=30), timedelta(seconds=25)


def finished(number: int) -> Run:
    """Each job fails once in about a hundred runs."""
    at = FIRST + number * EVERY
    state = State.FAILED if number * 7919 % 100 == 0 else State.SUCCEEDED
    times: Any = {"started_at": at, "finished_at": at}
    failures = int(state is State.FAILED)
    fields: Any = {**times, "state": state, "attempt": 1, "failures": failures, "token": 1}
    return a_run(at, f"run{number}", job_id=f"job{number * 31 % JOBS}", **fields)


@pytest.fixture(scope="module")
def many() -> Objects:
    """A hundred thousand finished runs, as rounds and compactions leave them: failures in other
    segments than successes."""
    runs = [finished(number) for number in range(RUNS)]
    kinds = ([r for r in runs if r.failures], [r for r in runs if not r.failures])
    return write_history(
        [kind[at : at + 1000] for kind in kinds for at in range(0, len(kind), 1000)]
    )


def write_history(runs: list[list[Run]], *, full_filters: bool = False) -> Objects:
    """A store with a segment for each of these lists. `full_filters`: each may hold any id."""
    objects = Objects(FakeClock(NOW))
    segments: list[Segment] = []
    for at, of_segment in enumerate(runs):
        records = {r.id: {**run_to_record(r), "number": _number(r)} for r in of_segment}
        name = part_name("history", at, "a" * 12, 1)
        objects.put(name, encode_body({"runs": records}), None)
        segment = describe_segment(name, records)
        if full_filters:
            segment = replace(segment, ids=b"\xff" * len(segment.ids))
        segments.append(segment)
    catalogue = part_name("catalogue", 0, "a" * 12, 1)
    objects.put(catalogue, encode_body(catalogue_body(segments)), None)
    meta = {"history": {"catalogue": catalogue}, "runs": {"last_number": RUNS}}
    delta = msgspec.Raw(msgspec.json.encode({"meta": meta}))
    objects.put(HEAD, encode_head(Head().with_write(Entry(1, delta), "tester", "n", 0)), None)
    return objects


def _number(run: Run) -> int:
    """Runs were added in the order of their times."""
    return 1 + (run.created_at - FIRST) // EVERY


async def spent(objects: Objects, query: RunQuery) -> tuple[Page[Run], Counter[str]]:
    """What a new client finds, and the requests that this takes."""
    bucket = MemoryBucket(objects)
    store = ObjectStore(bucket)
    await store.open()
    page = await store.find(query)
    await store.close()
    return page, bucket.requests


async def test_the_last_failures_of_a_job_cost_a_few_requests(many: Objects) -> None:
    query = RunQuery(job="job0", states=frozenset({State.FAILED}), limit=10)
    page, requests = await spent(many, query)
    expected = [
        number
        for number in reversed(range(RUNS))
        if finished(number).job_id == "job0" and finished(number).state is State.FAILED
    ][:10]
    assert [run.id for run in page.items] == [f"run{number}" for number in expected]
    assert len(page.items) == 10
    assert requests.total() <= 6


@pytest.mark.parametrize(
    ("query", "most"),
    [
        (RunQuery(limit=100), 6),
        (RunQuery(job="job7", limit=20), 6),
        (RunQuery(ids=frozenset({"run1", "run99999"})), 6),
        (RunQuery(ids=frozenset({"nowhere"})), 4),
        (RunQuery(states=frozenset({State.CANCELLED})), 3),
        (RunQuery(states=frozenset({State.PENDING})), 3),
        (RunQuery(failing=True, limit=50), 6),
        (RunQuery(job="nothing"), 4),
        (RunQuery(until=NOW - timedelta(days=29), limit=10), 7),
    ],  # named by number: xdist's workers print sets in different orders
)
async def test_a_query_costs_what_it_gives(many: Objects, query: RunQuery, most: int) -> None:
    _, requests = await spent(many, query)
    assert requests.total() <= most


@pytest.fixture
async def store() -> ObjectStore:
    """Thirty finished runs, in segments of a few each."""
    objects = Objects(FakeClock(NOW))
    store = ObjectStore(MemoryBucket(objects), most_finished=4)
    await store.open()
    for start in range(0, 30, 5):
        await store.add([finished(number) for number in range(start, start + 5)])
        await store.compaction.move_finished()
    assert store.group_commit.state.finished_count < 5
    return store


async def all_ids(store: ObjectStore) -> list[str]:
    return sorted(run.id for run in (await store.find(RunQuery(limit=1000))).items)


async def test_a_run_of_a_segment_is_revived_and_ends_in_another_segment(
    store: ObjectStore,
) -> None:
    [run] = (await store.find(RunQuery(ids=frozenset({"run0"})))).items
    assert run.state is State.FAILED
    assert await store.commit([transitions.revived(run, NOW)]) == [True]
    assert len(await all_ids(store)) == 30
    [live] = (await store.find(RunQuery(states=frozenset({State.PENDING})))).items
    ends = transitions.cancelled(live, NOW, "enough")
    assert await store.commit([ends]) == [True]
    assert await store.commit([ends]) == [True]  # sent again
    await store.add([finished(number) for number in range(30, 40)])
    await store.compaction.move_finished()
    assert len(await all_ids(store)) == 40
    assert store.group_commit.state.get("runs", "run0") is None
    [again] = (await store.find(RunQuery(ids=frozenset({"run0"})))).items
    assert again.state is State.CANCELLED


async def test_segments_are_merged_without_those_that_are_gone(store: ObjectStore) -> None:
    for number in (1, 2, 3, 11):
        [run] = (await store.find(RunQuery(ids=frozenset({f"run{number}"})))).items
        assert await store.commit([transitions.deleted(run)]) == [True]
    before = await all_ids(store)
    assert len(before) == 26
    while await store.compaction.merge_segments():
        pass
    assert await all_ids(store) == before
    segments = [k for k in store.bucket.objects.stored if k.startswith("history/")]  # type: ignore[attr-defined]
    group_commit = store.group_commit
    assert sorted(s.name for s in group_commit.history.segments(group_commit.state)) == sorted(
        segments
    )


# -- long searches


def hidden(number: int) -> Run:
    """The catalogue cannot tell that no run is both failed and with a failure."""
    if number % 2:
        return replace(finished(number), job_id="busy", state=State.FAILED, failures=0)
    return replace(finished(number), job_id="busy", state=State.CANCELLED, failures=1)


SEARCH = RunQuery(job="busy", states=frozenset({State.FAILED}), failing=True, limit=1)


async def test_other_calls_go_on_during_a_search_of_the_history() -> None:
    objects = write_history([[hidden(k * 50 + n) for n in range(50)] for k in range(20)])
    reading, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryBucket):
        async def get(self, key: str, unless_etag: str | None = None) -> Any:
            if key.startswith("history/"):
                reading.set()
                await go_on.wait()
            return await super().get(key, unless_etag)

    store = ObjectStore(Slow(objects))
    await store.open()
    searches = [
        asyncio.ensure_future(store.find(SEARCH)),
        asyncio.ensure_future(store.find(RunQuery(ids=frozenset({"run7"})))),
    ]
    await reading.wait()
    note = Note(kind="k", name="n", value=1)
    assert await store.put_notes([NoteWrite.put(note)]) == [1]
    assert (await store.find(RunQuery(states=frozenset({State.PENDING})))).items == []
    assert not any(search.done() for search in searches)
    go_on.set()
    found = [[run.id for run in (await search).items] for search in searches]
    assert found == [[], ["run7"]]
    await store.close()


async def test_a_search_begins_again_if_its_segments_were_replaced(store: ObjectStore) -> None:
    """Another client deletes them after the search has read the catalogue."""
    other = ObjectStore(MemoryBucket(store.bucket.objects))  # type: ignore[attr-defined]
    await other.open()
    real = MemoryBucket.get
    deleted: list[str] = []
    lock = asyncio.Lock()

    async def get(self: MemoryBucket, key: str, unless_etag: str | None = None) -> Any:
        if key.startswith("history/") and self is other.bucket:
            async with lock:
                if not deleted:
                    await delete()
        return await real(self, key, unless_etag)

    async def delete() -> None:
        for number in range(20):
            [run] = (await store.find(RunQuery(ids=frozenset({f"run{number}"})))).items
            await store.commit([transitions.deleted(run)])
            deleted.append(run.id)
        await store.maintain(NOW - timedelta(days=60), 10)

    with patch.object(MemoryBucket, "get", get):
        found = await all_ids(other)
    assert deleted
    assert found == sorted(f"run{n}" for n in range(20, 30))


@pytest.mark.parametrize("query", [SEARCH, RunQuery(ids=frozenset({"run7"}))])
async def test_a_segment_that_is_lost_fails_the_search_alone(query: RunQuery) -> None:
    objects = write_history([[hidden(n) for n in range(50)]])
    del objects.stored[part_name("history", 0, "a" * 12, 1)]
    store = ObjectStore(MemoryBucket(objects))
    await store.open()
    search = asyncio.ensure_future(store.find(query))
    note = Note(kind="k", name="n", value=1)
    assert await store.put_notes([NoteWrite.put(note)]) == [1]
    with pytest.raises(StoreDamaged, match="history/"):
        await search


# -- new runs beside a long history
