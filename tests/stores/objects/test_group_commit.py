"""Rounds: writes that are late or unanswered, group commit, garbage, and damaged objects."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mainspring.core.model import Note, Run, State
from mainspring.errors import (
    InvalidInput,
    StoreDamaged,
    StoreError,
    StoreMissing,
    StoreTooNew,
    StoreUnavailable,
)
from mainspring.stores.objects import ObjectStore, schema
from mainspring.stores.objects.bucket import RETRY_FOR
from mainspring.stores.objects.compaction import Compaction
from mainspring.stores.objects.directory_bucket import DirectoryBucket
from mainspring.stores.objects.group_commit import GroupCommit, Operation
from mainspring.stores.objects.schema import HEAD, PART_KINDS, part_name
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.protocol import Claim, NoteQuery, NoteWrite, RunQuery
from mainspring.testing import FakeClock, VirtualClock, run_virtual
from tests.support.objects.memory_bucket import BucketFault, MemoryBucket, Objects
from tests.support.records import a_run

LEASE = timedelta(seconds=10)
CLOCK = FakeClock()


@pytest.fixture
def objects() -> Objects:
    return Objects(CLOCK)


def on_virtual_time(
    test: Callable[[Objects], Coroutine[Any, Any, None]],
) -> Callable[[Objects], None]:
    """The delays of a test pass on the virtual loop: however busy the machine is, they end in
    their order."""

    @functools.wraps(test)
    def run(objects: Objects) -> None:
        run_virtual(lambda: test(objects))

    return run


class Script:
    """Faults for the next writes of the head."""

    def __init__(self, *faults: BucketFault) -> None:
        self.faults = list(faults)

    def __call__(self, kind: str, key: str) -> BucketFault:
        if (kind, key) == ("put", HEAD) and self.faults:
            return self.faults.pop(0)
        return BucketFault()


async def opened(objects: Objects, plan: Any = None, **options: Any) -> ObjectStore:
    bucket = MemoryBucket(objects, **options.pop("bucket", {}))
    store = ObjectStore(bucket, **options)
    await store.open()
    bucket.plan = plan
    return store


def bucket_of(store: ObjectStore) -> MemoryBucket:
    assert isinstance(store.bucket, MemoryBucket)
    return store.bucket


def run(run_id: str, **fields: Any) -> Run:
    return a_run(CLOCK.now(), run_id, **fields)


def claim(limit: int = 1) -> Claim:
    return Claim(worker="w", handlers=frozenset({"work"}), limit=limit, lease=LEASE)


async def late_claim(objects: Objects) -> tuple[list[str], list[str]]:
    """The first write of a claim is late: it is done while the second one is on its way. Gives the
    runs that were claimed, by the answer and by the bucket."""
    first = await opened(objects)
    await first.add([run("a"), run("b")])
    on_its_way = BucketFault(delay=0.2)
    store = await opened(objects, Script(BucketFault("late", delay=0.1), on_its_way))
    taken = (await store.claim(claim())).runs
    running = (await first.find(RunQuery(states=frozenset({State.RUNNING})))).items
    return [run.id for run in taken], [run.id for run in running]


@on_virtual_time
async def test_a_late_write_is_answered_though_it_was_tried_again(objects: Objects) -> None:
    """The second try finds the head changed, by the first try: its answer is the one given."""
    assert await late_claim(objects) == (["a"], ["a"])


@on_virtual_time
async def test_an_operation_that_joins_between_two_tries_is_done_once(objects: Objects) -> None:
    store = await opened(objects, Script(BucketFault("late", delay=0.03, delay_after=0.0)))
    note = Note(kind="k", name="n", value=1)
    first = asyncio.ensure_future(store.put_notes([NoteWrite.put(note)]))
    await asyncio.sleep(0.005)
    second = asyncio.ensure_future(store.put_notes([NoteWrite("k", "n", None, note)]))
    assert [await first, await second] == [[1], [2]]
    [found] = (await store.notes(NoteQuery())).items
    assert found.version == 2


@on_virtual_time
async def test_a_write_that_failed_for_its_caller_and_lands_later_is_done_once(
    objects: Objects,
) -> None:
    """The caller sends its call again, while the first write is still on its way."""
    late = BucketFault("late", delay=0.1)
    store = await opened(objects, Script(late), retry_for=0.0)
    note = Note(kind="k", name="n", value=1)
    with pytest.raises(StoreUnavailable):
        await store.put_notes([NoteWrite("k", "n", None, note)])
    await asyncio.sleep(0.15)
    assert await store.put_notes([NoteWrite("k", "n", 0, note)]) == [None]
    [found] = (await store.notes(NoteQuery())).items
    assert found.version == 1


@on_virtual_time
async def test_runs_of_a_claim_that_landed_after_it_had_failed_are_released(
    objects: Objects,
) -> None:
    late = BucketFault("late", delay=0.02)
    store = await opened(objects, retry_for=0.0)
    await store.add([run("a")])
    bucket_of(store).plan = Script(late)
    with pytest.raises(StoreUnavailable):
        await store.claim(claim())
    await asyncio.sleep(0.04)
    await store.find(RunQuery())  # notices that the write was done
    [again] = (await store.claim(claim())).runs
    assert (again.id, again.attempt) == ("a", 1)


async def test_an_invalid_operation_does_not_affect_the_others_of_its_round(
    objects: Objects,
) -> None:
    store = await opened(objects)

    def invalid(work: Workspace) -> None:
        work.state.put("notes", "half", {"done": 1})
        raise InvalidInput("no")

    submitted = store.group_commit.submit(Operation(invalid, writes=True))
    added = store.add([run("a")])
    answers = await asyncio.gather(submitted, added, return_exceptions=True)
    assert isinstance(answers[0], InvalidInput)
    assert not isinstance(answers[1], BaseException)
    assert [added.run.id for added in answers[1]] == ["a"]
    assert store.group_commit.state.get("notes", "half") is None


async def test_close_finishes_the_calls_that_were_accepted(objects: Objects) -> None:
    store = await opened(objects)
    adding = asyncio.ensure_future(store.add([run("a")]))
    await asyncio.sleep(0)
    await store.close()
    assert [added.run.id for added in await adding] == ["a"]
    with pytest.raises(StoreError):
        await store.find(RunQuery())


# -- damage


async def test_a_bucket_without_a_store_is_not_opened_if_nothing_may_be_made(
    objects: Objects,
) -> None:
    store = ObjectStore(MemoryBucket(objects))
    with pytest.raises(StoreMissing, match="there is no Mainspring store"):
        await store.open(create=False)
    assert objects.stored == {}


@pytest.mark.parametrize("body", [b"", b"hello", b'{"format": "x"}'])
async def test_a_damaged_head_is_refused(objects: Objects, body: bytes) -> None:
    objects.put(HEAD, body, None)
    with pytest.raises(StoreDamaged, match="'head'"):
        await opened(objects)


async def test_a_newer_format_is_refused(objects: Objects) -> None:
    objects.put(HEAD, b'{"format": 2, "more": {}}', None)
    with pytest.raises(StoreTooNew, match="upgrade"):
        await opened(objects)


async def test_a_missing_snapshot_is_named(objects: Objects) -> None:
    store = await opened(objects, tail_bytes=100)
    for n in range(4):
        await store.add([run(f"r{n}")])
    await store.close()
    [snapshot] = [key for key in objects.stored if key.startswith("snapshot/")]
    del objects.stored[snapshot]
    with pytest.raises(StoreDamaged, match=snapshot):
        await opened(objects)


async def test_a_reader_that_meets_a_snapshot_that_was_replaced_reads_the_head_again(
    objects: Objects,
) -> None:
    store = await opened(objects, tail_bytes=100)
    for n in range(4):
        await store.add([run(f"r{n}")])
    reading = MemoryBucket(objects)
    real = reading.get

    async def get(key: str, unless_etag: str | None = None) -> Any:
        if key.startswith("snapshot/") and not replaced:
            replaced.append(key)
            for n in range(4, 8):
                await store.add([run(f"r{n}")])
            assert key not in objects.stored
        return await real(key, unless_etag)

    replaced: list[str] = []
    reading.get = get  # type: ignore[method-assign]
    other = ObjectStore(reading)
    await other.open()
    assert replaced
    assert len((await other.find(RunQuery())).items) == 8


# -- storage that fails for a while


def test_each_call_fails_only_after_it_was_repeated_for_its_own_time() -> None:
    failed_after: dict[str, float] = {}

    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        store = await opened(Objects(clock))
        bucket_of(store).plan = lambda kind, key: BucketFault("throttled", delay=0.01)

        async def call(name: str, begins: float) -> None:
            await asyncio.sleep(begins)
            began = clock.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.put_notes([NoteWrite.put(Note(kind="k", name=name, value=1))])
            failed_after[name] = clock.monotonic() - began

        await asyncio.gather(call("first", 0), call("second", 8))
        bucket_of(store).plan = None
        assert (await store.notes(NoteQuery())).items == []

    run_virtual(main, 1, until=3600)
    assert all(RETRY_FOR <= seconds <= RETRY_FOR + 2 for seconds in failed_after.values())
    assert len(failed_after) == 2


# -- a store that was restored, or made anew, under clients that go on


async def restored(objects: Objects, writer: bool) -> tuple[ObjectStore, ...]:
    """A client that goes on after a backup was restored (it made the last write, or not), and
    another one that was opened after it."""
    old = await opened(objects, tail_bytes=2000)
    other = await opened(objects)
    await old.add([run("kept")])
    backup = copy.deepcopy(objects.stored)
    for n in range(10):
        await (old if writer else other).add([run(f"lost{n}")])
    assert len((await old.find(RunQuery())).items) == 11
    objects.stored = backup
    return old, await opened(objects)


@pytest.mark.parametrize("writes", [0, 10, 60])
@pytest.mark.parametrize("writer", [True, False])
async def test_a_client_that_outlives_a_restore_is_refused(
    objects: Objects, writer: bool, writes: int
) -> None:
    """Until it is opened anew, also when others have written as often as it had meanwhile."""
    old, new = await restored(objects, writer)
    for n in range(writes):
        await new.add([run(f"new{n}")])
        with pytest.raises(StoreDamaged):
            await old.add([run("x")])
    before = set(objects.stored)
    for call in (old.find(RunQuery()), old.add([run("x")]), old.claim(claim())):
        with pytest.raises(StoreDamaged, match="restored from a backup"):
            await call
    assert objects.stored.keys() == before
    await old.close()
    await old.open()
    await old.add([run("again")])
    expected = sorted(["kept", "again", *(f"new{n}" for n in range(writes))])
    assert sorted(run.id for run in (await new.find(RunQuery())).items) == expected


@pytest.mark.parametrize("writes", [0, 6])
async def test_a_client_that_outlives_its_store_is_refused_by_a_new_one(
    objects: Objects, writes: int
) -> None:
    old = await opened(objects)
    for n in range(writes):
        await old.add([run(f"old{n}")])
    objects.stored.clear()
    new = await opened(objects)
    for n in range(6):
        await new.add([run(f"new{n}")])
    with pytest.raises(StoreDamaged, match="made anew"):
        await old.add([run("x")])
    assert len((await (await opened(objects)).find(RunQuery())).items) == 6


async def test_a_client_that_slept_while_many_others_wrote_is_not_refused(objects: Objects) -> None:
    """Neither its last write nor the last one that it knows is in the head any more."""
    with patch.object(schema, "MOST_CLIENTS", 3):
        sleeper = await opened(objects)
        await sleeper.add([run("first")])
        for n in range(8):
            one = await opened(objects, tail_bytes=100)
            await one.add([run(f"r{n}")])
            await one.close()
        await sleeper.add([run("last")])
        assert len((await sleeper.find(RunQuery())).items) == 10


# -- garbage


async def fill(store: ObjectStore, count: int) -> None:
    runs = [run(f"r{n}", state=State.SUCCEEDED, finished_at=CLOCK.now()) for n in range(count)]
    await store.add(runs)


async def stalls(objects: Objects) -> list[str]:
    """A client writes a segment and stalls for two hours before it names it; another collects the
    garbage meanwhile. Gives the runs that are there in the end."""
    first = await opened(objects, most_finished=10**6)
    await fill(first, 20)
    stalled = await opened(objects, most_finished=4)
    compaction = stalled._compaction
    assert compaction is not None
    real = compaction._write
    go_on = asyncio.Event()

    async def wait_first(evaluate: Callable[..., Any]) -> Any:
        await go_on.wait()
        return await real(evaluate)

    with patch.object(compaction, "_write", wait_first):
        moving = asyncio.ensure_future(compaction.move_finished())
        while not any(key.startswith("catalogue/") for key in objects.stored):
            await asyncio.sleep(0)
        CLOCK.advance(7200)
        await first.maintain(CLOCK.now() - timedelta(days=1), 10)
        assert not any(key.startswith("history/") for key in objects.stored)
        go_on.set()
        await moving
    other = await opened(objects)
    return [run.id for run in (await other.find(RunQuery())).items]


async def test_garbage_is_collected_and_a_client_that_stalled_loses_nothing(
    objects: Objects,
) -> None:
    assert len(await stalls(objects)) == 20


async def test_a_snapshot_that_is_about_to_be_named_is_not_collected(objects: Objects) -> None:
    """Its writer could not name it for two hours. Then its next write collects garbage."""
    store = await opened(objects, tail_bytes=100, retry_for=0.0)
    await store.add([run("a")])
    bucket_of(store).plan = lambda kind, key: BucketFault(
        "throttled" if (kind, key) == ("put", HEAD) else "none"
    )
    with pytest.raises(StoreUnavailable):
        await store.add([run("b")])
    await store.group_commit.drain()
    bucket_of(store).plan = None
    assert [key for key in objects.stored if key.startswith("snapshot/")]
    CLOCK.advance(7200)
    await store.maintain(CLOCK.now() - timedelta(days=1), 10)
    other = await opened(objects)
    assert [run.id for run in (await other.find(RunQuery())).items] == ["a"]


async def test_a_segment_that_is_about_to_be_named_is_not_collected(objects: Objects) -> None:
    """A client stalls for two hours before it names a segment, and collects garbage meanwhile."""
    store = await opened(objects, most_finished=10**6)
    await fill(store, 20)
    compaction = Compaction(store.bucket, store.group_commit, 4)
    real = compaction._write
    go_on = asyncio.Event()

    async def wait_first(evaluate: Callable[..., Any]) -> Any:
        await go_on.wait()
        return await real(evaluate)

    def refuse_first(kind: str, key: str) -> BucketFault:
        if (kind, key) != ("put", HEAD) or go_on.is_set():
            return BucketFault()
        go_on.set()
        return BucketFault("throttled")  # so that the two meet in the next try

    with patch.object(compaction, "_write", wait_first):
        moving = asyncio.ensure_future(compaction.move_finished())
        while not any(key.startswith("catalogue/") for key in objects.stored):
            await asyncio.sleep(0)
        CLOCK.advance(7200)
        bucket_of(store).plan = refuse_first
        collecting = asyncio.ensure_future(compaction.collect_garbage())
        for _ in range(100):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(moving, collecting)
    other = await opened(objects)
    assert len((await other.find(RunQuery())).items) == 20


FOREIGN = [
    *(f"{kind}/2019/thesis.tex" for kind in PART_KINDS),
    *(f"{kind}/{part_name(kind, 1, '0123456789ab', 1)}" for kind in PART_KINDS),
    *(f"{kind}/000000000001-0123456789ab-1.bak" for kind in PART_KINDS),
    *("snapshot/db.dump", "delta/1-0123456789ab-1", "history/000000000001-me-1", "notes.txt"),
]


async def test_objects_of_somebody_else_are_never_deleted(
    objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    for key in FOREIGN:
        objects.put(key, b"the only copy", None)
    CLOCK.advance(7200)
    store = await opened(objects)
    assert "where other objects are" in caplog.text
    await store.maintain(CLOCK.now() - timedelta(days=1), 10)
    CLOCK.advance(7200)
    await store.maintain(CLOCK.now() - timedelta(days=1), 10)
    assert set(FOREIGN) < objects.stored.keys()


async def test_a_store_below_another_one_is_safe(tmp_path: Path) -> None:
    clock = FakeClock(datetime(2100, 1, 1, tzinfo=UTC))  # to which all files are old
    places = [tmp_path, tmp_path / "history"]
    stores = [
        ObjectStore(DirectoryBucket(place, clock), tail_bytes=100, most_finished=4)
        for place in places
    ]
    for store in reversed(stores):
        await store.open()
        await fill(store, 20)
        await store.add([run("live")])
    for store in stores:
        await store.maintain(CLOCK.now() - timedelta(days=1), 10)
        await store.close()
    for place in places:
        again = ObjectStore(DirectoryBucket(place, clock))
        await again.open()
        assert len((await again.find(RunQuery())).items) == 21
        await again.close()


async def test_no_store_is_made_over_the_parts_of_one_whose_head_is_gone(objects: Objects) -> None:
    """A new store would take the parts for garbage, and a head that is restored later needs
    them."""
    store = await opened(objects, tail_bytes=100)
    for n in range(4):
        await store.add([run(f"r{n}")])
    await store.close()
    head = objects.stored.pop(HEAD)
    before = set(objects.stored)
    with pytest.raises(StoreDamaged, match="Restore that object from a backup"):
        await opened(objects)
    assert objects.stored.keys() == before
    objects.stored[HEAD] = head
    assert len((await (await opened(objects)).find(RunQuery())).items) == 4


# -- the clock


async def lapses_early(objects: Objects) -> bool:
    """A client that knows the storage's time to five seconds claims; another knows it exactly."""
    vague = await opened(objects, bucket={"clock_error": lambda: (5.0, 5.0)})
    exact = await opened(objects, bucket={"clock_error": lambda: (0.0, 0.0)})
    await vague.add([run("a", run_at=CLOCK.now() - timedelta(minutes=1))])
    assert (await vague.claim(claim())).runs
    CLOCK.advance(LEASE - timedelta(seconds=1))
    return bool((await exact.find(RunQuery(lapsed=True))).items)


async def test_nobody_finds_a_lease_lapsed_too_early(objects: Objects) -> None:
    assert not await lapses_early(objects)


async def test_nothing_is_claimed_before_it_is_certainly_due(objects: Objects) -> None:
    vague = await opened(objects, bucket={"clock_error": lambda: (5.0, 5.0)})
    await vague.add([run("a", run_at=CLOCK.now() + timedelta(seconds=1))])
    CLOCK.advance(2)
    assert not (await vague.claim(claim())).runs
    CLOCK.advance(5)
    assert (await vague.claim(claim())).runs


async def test_time_does_not_run_backwards_from_one_client_to_another(objects: Objects) -> None:
    exact = await opened(objects, bucket={"clock_error": lambda: (0.0, 0.0)})
    await exact.add([run("a")])
    vague = await opened(objects, bucket={"clock_error": lambda: (5.0, 5.0)})
    assert await vague.now() >= await exact.now() - timedelta(milliseconds=1)


# -- planted bugs


async def test_tries_that_are_forgotten_are_found(objects: Objects) -> None:
    """A try without an answer is forgotten when the next one is sent."""
    real = GroupCommit._write

    async def write(self: GroupCommit, *given: Any) -> bool:
        self._tries.clear()
        return await real(self, *given)

    with patch.object(GroupCommit, "_write", write):
        taken, running = await late_claim(objects)
    assert taken != running


async def test_garbage_collected_without_a_change_of_the_head_is_found(objects: Objects) -> None:
    real = Operation.__init__

    def uncounted(self: Any, *given: Any, **named: Any) -> None:
        real(self, *given, **{**named, "collects": False})

    with patch.object(Operation, "__init__", uncounted), pytest.raises(StoreError):
        await stalls(objects)


async def test_leases_stamped_from_the_earliest_time_are_found(objects: Objects) -> None:
    real = Workspace.__init__

    def early(self: Any, *given: Any) -> None:
        real(self, *given)
        self.latest = self.now

    with patch.object(Workspace, "__init__", early):
        assert await lapses_early(objects)
