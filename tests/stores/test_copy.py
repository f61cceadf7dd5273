"""A copy equals its source, between all kinds of stores and after any interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from mainspring import Scheduler
from mainspring.core import transitions
from mainspring.core.model import Note, State, replace
from mainspring.errors import CopyRefused
from mainspring.stores import open_store
from mainspring.stores.copy import PAGE, copy
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import Claim, JobQuery, NoteQuery, RunQuery, Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.store_calls import claim_runs, drop_note, get_runs, put_job, put_note
from tests.support.engine import EventRecorder
from tests.support.filled_store import everything, fill, made, opened

Make = Callable[[str], Store]


class Interrupted(Exception):
    pass


@pytest.fixture
def on_disk(tmp_path: Path) -> Make:
    return lambda name: SqliteStore(tmp_path / f"{name}.db")


@pytest.fixture
def on_mongo(database_url: str) -> Make:
    sign = "&" if "?" in database_url else "?"
    return lambda name: MongoStore(f"{database_url}{sign}mainspringPrefix={name}_")


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, str], Store]:
    """Makes a store of a kind under a name."""

    def store(kind: str, name: str) -> Store:
        if kind == "mongodb":
            return cast(Store, request.getfixturevalue("on_mongo")(name))
        if kind == "sqlite":
            return SqliteStore(tmp_path / f"{name}.db")
        return open_store(f"file://{tmp_path}/{name}")

    return store


KINDS = ("sqlite", "mongodb", "objects")


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
async def test_a_copy_equals_its_source(
    make: Callable[[str, str], Store], source: str, target: str
) -> None:
    """Between all kinds of stores, in both directions: every kind of job, run and note."""
    first, second, third = make(source, "a"), make(target, "b"), make(source, "c")
    async with opened(first, second, third):
        await fill(first, plain=2 * PAGE + 7)
        expires_at = await first.now() + timedelta(hours=1)
        await put_note(first, Note(kind="state", name="n", value={"big": 2**53, "small": [1]}))
        await put_note(first, Note(kind="other", name="expires", value=1, expires_at=expires_at))
        copied = await copy(first, second)
        jobs, runs = original = await everything(first)
        assert await everything(second) == original
        assert (copied.jobs, copied.added, copied.existing) == (len(jobs), len(runs), 0)
        notes = [
            [(note.kind, note.name, note.value, note.expires_at) for note in page.items]
            for page in [await store.notes(NoteQuery(limit=100)) for store in (first, second)]
        ]
        assert notes[0] == notes[1]
        counts, copied_counts = await first.counts(), await second.counts()
        assert copied_counts.runs == counts.runs
        assert copied_counts.due == counts.due
        assert {s: copied_counts.total(s) for s in State} == {s: counts.total(s) for s in State}
        await copy(second, third)
        assert await everything(third) == original


@pytest.mark.parametrize("stop", [0, 2])
async def test_an_interrupted_copy_is_completed(on_disk: Make, on_mongo: Make, stop: int) -> None:
    source, target = on_disk("a"), on_mongo("b")

    def interrupt(done: int, total: int) -> None:
        if done > stop * PAGE:
            raise Interrupted

    async with opened(source, target):
        await fill(source, plain=3 * PAGE)
        with pytest.raises(Interrupted):
            await copy(source, target, interrupt)
        copied = await copy(source, target)
        assert 0 < copied.existing <= copied.runs.total()
        assert copied.added + copied.existing == copied.runs.total()
        assert await everything(target) == await everything(source)


async def test_what_went_on_between_two_tries_is_caught_up_with(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")

    def interrupt(done: int, total: int) -> None:
        if done == total:
            raise Interrupted

    async with opened(source, target):
        await fill(source)
        with pytest.raises(Interrupted):
            await copy(source, target, interrupt)
        now = await source.now()
        due = (await get_runs(source, ["is due"]))["is due"]
        await source.commit([transitions.cancelled(due, now, "no more")])
        heir = made("heir", now, 99, dedupe_key=due.dedupe_key)
        assert not (await source.add([heir]))[0].duplicate
        failed = (await get_runs(source, ["fails"]))["fails"]
        assert await source.commit([transitions.revived(failed, now)]) == [True]
        [job] = (await source.jobs(JobQuery(ids=frozenset({"often"})))).items
        await put_job(source, replace(job, enabled=False))
        copied = await copy(source, target)
        assert (copied.corrected, copied.added) == (2, 1)
        assert await everything(target) == await everything(source)


async def test_a_second_copy_keeps_the_counts_of_edited_jobs(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")
    async with opened(source, target):
        await fill(source)
        await copy(source, target)
        jobs = frozenset(job.id for job in (await source.jobs(JobQuery())).items)
        before = (await target.counts(jobs=jobs)).totals
        assert before
        for job in (await source.jobs(JobQuery())).items:
            assert await put_job(source, replace(job, description="edited since"))
        await copy(source, target)
        assert (await target.counts(jobs=jobs)).totals == before
        assert await everything(target) == await everything(source)


async def test_notes_come_along(on_disk: Make, on_mongo: Make) -> None:
    """API keys among them: one that was revoked meanwhile must not live on."""
    source, target = on_disk("a"), on_mongo("b")
    async with opened(source, target):
        ends = await source.now() + timedelta(hours=1)
        notes = [Note(kind="api-key", name=f"{n:04}", value={"$n": n}) for n in range(PAGE + 3)]
        notes.append(Note(kind="other", name="0001", value="x", expires_at=ends))
        for note in notes:
            await put_note(source, note)
        assert (await copy(source, target)).notes == len(notes)
        await put_note(source, replace(notes[0], value="changed", version=1))
        await copy(source, target)
        query = NoteQuery(kind="api-key", limit=1000)
        assert [(note.name, note.value) for note in (await target.notes(query)).items] == [
            (note.name, note.value) for note in (await source.notes(query)).items
        ]
        [other] = (await target.notes(NoteQuery(kind="other"))).items
        assert (other.value, other.expires_at) == ("x", ends)
        await drop_note(source, "api-key", "0007")
        with pytest.raises(CopyRefused, match="api-key 0007 is there, and not in the source"):
            await copy(source, target)


async def test_a_key_that_was_revoked_in_the_target_does_not_open_again(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")
    async with opened(source, target):
        key = Note(kind="api-key", name="k", value="opens")
        await put_note(source, key)
        await copy(source, target)
        assert await put_note(target, replace(key, value="revoked", version=1)) == 2
        with pytest.raises(CopyRefused, match="api-key k was changed in the target"):
            await copy(source, target)
        [kept] = (await target.notes(NoteQuery(kind="api-key"))).items
        assert kept.value == "revoked"


async def test_a_note_that_changes_while_it_is_copied_is_told(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")

    class Changing(AnotherName):
        async def find(self, query: RunQuery) -> object:
            if query.brief:  # they are counted, at the end
                await put_note(source, Note(kind="api-key", name="k", value="revoked", version=1))
            return await source.find(query)

    async with opened(source, target):
        await put_note(source, Note(kind="api-key", name="k", value="opens"))
        with pytest.raises(CopyRefused, match="api-key k has changed while it was copied"):
            await copy(Changing(source), target)  # type: ignore[arg-type]
        await copy(source, target)
        [kept] = (await target.notes(NoteQuery(kind="api-key"))).items
        assert kept.value == "revoked"


async def test_a_scheduler_goes_on_where_it_was_stopped(on_disk: Make, on_mongo: Make) -> None:
    """Slots fire, keys hold, failed runs are retried, a dead worker's run is rescued."""
    source, target = on_disk("a"), on_mongo("b")
    seen: list[str] = []

    def made_on(store: Store) -> Scheduler:
        scheduler = Scheduler(store)

        @scheduler.job(id="mail", concurrency=1)
        async def mail(to: str) -> str:
            seen.append(to)
            if seen == ["nobody"]:
                raise ValueError("no such address")
            return to

        @scheduler.job("* * * * * *", id="ticking")
        async def ticking() -> None: ...

        return scheduler

    async with made_on(source) as scheduler:
        failed = await scheduler.enqueue("mail", {"to": "nobody"})
        await scheduler.wait(failed.id, 10)
        later = await scheduler.enqueue("mail", {"to": "later"}, delay="2h", dedupe_key="one")
    async with opened(source, target):
        now = await source.now()
        lost = made("lost", now, 1, job_id="mail", payload={"to": "lost"}, created_at=now)
        await source.add([replace(lost, handler="mail")])
        millisecond = timedelta(milliseconds=1)
        [held] = await claim_runs(
            source, Claim(worker="dead", handlers=frozenset({"mail"}), limit=1, lease=millisecond)
        )
        await asyncio.sleep(0.01)
        await copy(source, target)
        [ticking] = (await source.jobs(JobQuery(ids=frozenset({"ticking"})))).items
        due = ticking.next_run_at
        assert due is not None
    scheduler = made_on(target)
    recorder = EventRecorder(scheduler)
    async with scheduler:
        again = await scheduler.enqueue("mail", {"to": "again"}, dedupe_key="one")
        assert (again.id, again.duplicate) == (later.id, True)
        done = await scheduler.wait((await scheduler.retry(failed.id)).id, 30)
        assert (done.state, done.attempt, done.token) == (State.SUCCEEDED, 2, 2)
        rescued = await scheduler.wait(held.id, 30)
        assert (rescued.state, rescued.token) == (State.SUCCEEDED, 2)
        await recorder.until(
            "run.succeeded",
            where=lambda event: (
                event.run is not None
                and event.run.job_id == "ticking"
                and event.run.scheduled_at >= due
            ),
        )
    assert sorted(seen) == ["lost", "nobody", "nobody"]


# -- refused --------------------------------------------------------------------------------


async def test_a_live_lease_is_refused(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")
    async with opened(source, target):
        await source.add([made("run", await source.now(), 1)])
        lease = timedelta(minutes=1)
        await claim_runs(
            source, Claim(worker="host:1", handlers=frozenset({"work"}), limit=1, lease=lease)
        )
        with pytest.raises(CopyRefused, match="run run is running on host:1: stop the workers"):
            await copy(source, target)
        assert await everything(target) == ([], [])


async def test_a_live_scheduler_is_refused(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")
    async with opened(source, target):
        for name, store in (("source", source), ("target", target)):
            scheduler = Scheduler(f"sqlite:///{store.info().file}")
            recorder = EventRecorder(scheduler)
            async with scheduler:
                await recorder.until("leader.elected")
                with pytest.raises(CopyRefused, match=f"a scheduler is working on the {name}"):
                    await copy(source, target)
        await copy(source, target)


async def test_a_target_with_something_else_in_it_is_refused(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")
    async with opened(source, target):
        await fill(source)
        now = await target.now()
        await target.add([made("stranger", now, 1)])
        with pytest.raises(CopyRefused, match="not empty: run stranger is there"):
            await copy(source, target)
        assert len((await everything(target))[1]) == 1


async def test_a_target_that_has_gone_on_is_refused(on_disk: Make) -> None:
    """Tokens never go back."""
    source, target = on_disk("a"), on_disk("b")
    async with opened(source, target):
        await source.add([made("run", await source.now(), 1)])
        await copy(source, target)
        claim = Claim(
            worker="w", handlers=frozenset({"work"}), limit=1, lease=timedelta(microseconds=1)
        )
        [run] = await claim_runs(target, claim)
        await target.commit([transitions.succeeded(run, await target.now(), None)])
        with pytest.raises(CopyRefused, match="run run has gone on in the target"):
            await copy(source, target)
        assert (await get_runs(target, ["run"]))["run"].state is State.SUCCEEDED


async def test_two_names_of_one_store_are_refused(on_disk: Make) -> None:
    source = on_disk("a")
    async with opened(source):
        await fill(source)
        with pytest.raises(CopyRefused, match="FROM and TO are the same store"):
            await copy(source, AnotherName(source))  # type: ignore[arg-type]


class AnotherName:
    """Another client of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


async def test_work_enqueued_while_it_is_copied_is_told_and_then_completed(on_disk: Make) -> None:
    source, target = on_disk("a"), on_disk("b")
    async with opened(source, target):
        await fill(source)
        now = await source.now()
        late = [made("late", now, 99)]

        def enqueue(done: int, total: int) -> None:
            task = asyncio.get_running_loop().create_task(source.add(late))
            tasks.append(task)

        tasks: list[asyncio.Task[object]] = []

        class Slow(AnotherName):
            async def jobs(self, query: JobQuery) -> object:
                await asyncio.gather(*tasks)
                return await source.jobs(query)

            async def find(self, query: RunQuery) -> object:
                await asyncio.gather(*tasks)
                return await source.find(query)

        with pytest.raises(CopyRefused, match="the source has changed while it was copied"):
            await copy(Slow(source), target, enqueue)  # type: ignore[arg-type]
        copied = await copy(source, target)
        assert copied.added == 1
        assert await everything(target) == await everything(source)
