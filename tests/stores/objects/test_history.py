"""Finished runs in segments: found by few requests, looked up, revived, deleted, merged."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from mainspring.core import transitions
from mainspring.core.model import Page, Run, State
from mainspring.stores.codec import run_to_record
from mainspring.stores.objects import ObjectStore
from mainspring.stores.objects.head import Entry, Head, encode_head
from mainspring.stores.objects.history import Segment, catalogue_body, describe_segment
from mainspring.stores.objects.layout import HEAD, encode_body
from mainspring.stores.protocol import RunQuery
from mainspring.testing import FakeClock
from tests.support.objects.memory_bucket import MemoryBucket, Objects

NOW = datetime(2030, 1, 31, tzinfo=UTC)
JOBS = 50
RUNS = 100_000
SEGMENT = 1000


def finished(number: int) -> Run:
    """Each job fails once in about a hundred runs."""
    at = NOW - timedelta(days=30) + number * timedelta(seconds=25)
    state = State.FAILED if number * 7919 % 100 == 0 else State.SUCCEEDED
    return Run(
        id=f"run{number}",
        job_id=f"job{number * 31 % JOBS}",
        handler="work",
        created_at=at,
        scheduled_at=at,
        run_at=at,
        finished_at=at,
        state=state,
        attempt=1,
        failures=int(state is State.FAILED),
        started_at=at,
        token=1,
    )


def make_bucket() -> Objects:
    """A hundred thousand finished runs, as rounds and compactions leave them."""
    objects = Objects(FakeClock(NOW))
    by_kind: dict[bool, dict[str, Any]] = {False: {}, True: {}}
    segments: list[Segment] = []

    def write(runs: dict[str, Any]) -> None:
        name = f"history/{len(segments)}"
        objects.put(name, encode_body({"runs": runs}), None)
        segments.append(describe_segment(name, runs))

    for number in range(RUNS):
        run = finished(number)
        of_kind = by_kind[run.state is State.FAILED]
        of_kind[run.id] = {**run_to_record(run), "number": number + 1}
        if len(of_kind) == SEGMENT:
            write(of_kind)
            by_kind[run.state is State.FAILED] = {}
    for runs in by_kind.values():
        if runs:
            write(runs)
    objects.put("catalogue/0", encode_body(catalogue_body(segments)), None)
    meta = {"history": {"catalogue": "catalogue/0"}, "runs": {"last_number": RUNS}}
    delta = msgspec.Raw(msgspec.json.encode({"meta": meta}))
    objects.put(HEAD, encode_head(Head().after(Entry(1, delta), "tester", "n", 0)), None)
    return objects


@pytest.fixture(scope="module")
def many() -> Objects:
    return make_bucket()


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


async def test_pages_go_through_all_runs_of_a_job(many: Objects) -> None:
    store = ObjectStore(MemoryBucket(many))
    await store.open()
    found: list[str] = []
    cursor = None
    while True:
        page = await store.find(RunQuery(job="job3", limit=500, cursor=cursor, brief=True))
        found += [run.id for run in page.items]
        if (cursor := page.cursor) is None:
            break
    numbers = [int(run_id[3:]) for run_id in found]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == RUNS // JOBS


@pytest.fixture
async def store() -> ObjectStore:
    """Thirty finished runs, in segments of a few each."""
    objects = Objects(FakeClock(NOW))
    store = ObjectStore(MemoryBucket(objects), most_finished=4)
    await store.open()
    for start in range(0, 30, 5):
        await store.add([finished(number) for number in range(start, start + 5)])
        assert store._compaction is not None
        await store._compaction.move_finished()
    assert store._open_rounds().state.finished_count < 5
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
    assert store._compaction is not None
    await store._compaction.move_finished()
    assert len(await all_ids(store)) == 40
    assert store._open_rounds().state.get("runs", "run0") is None
    [again] = (await store.find(RunQuery(ids=frozenset({"run0"})))).items
    assert again.state is State.CANCELLED


async def test_segments_are_merged_without_those_that_are_gone(store: ObjectStore) -> None:
    for number in (1, 2, 3, 11):
        [run] = (await store.find(RunQuery(ids=frozenset({f"run{number}"})))).items
        assert await store.commit([transitions.deleted(run)]) == [True]
    before = await all_ids(store)
    assert len(before) == 26
    assert store._compaction is not None
    while await store._compaction.merge_segments():
        pass
    assert await all_ids(store) == before
    segments = [k for k in store.bucket.objects.stored if k.startswith("history/")]  # type: ignore[attr-defined]
    rounds = store._open_rounds()
    assert sorted(s.name for s in rounds.history.segments(rounds.state)) == sorted(segments)


async def test_old_runs_are_deleted_with_their_segments(store: ObjectStore) -> None:
    before = finished(17).created_at
    assert await store.maintain(before, 10) == 10
    assert await store.maintain(before, 10) == 7
    assert await store.maintain(before, 10) == 0
    assert await all_ids(store) == sorted(f"run{n}" for n in range(17, 30))
    [added] = await store.add([finished(3)])
    assert not added.duplicate
