"""A client enqueues and controls runs, and makes, changes and removes jobs, one or many at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from mainspring import Client, Event, Run, RunContext, Scheduler, State
from mainspring.core.model import Note, Page, replace
from mainspring.errors import (
    InvalidInput,
    InvalidState,
    JobExists,
    JobNotFound,
    JobOwnedByCode,
    NotStarted,
    StoreError,
)
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import JobQuery, JobWrite, RunQuery, Store
from tests.support.engine import EventRecorder, ended, opened
from tests.support.scheduler_fixtures import Make


def make_scheduler(url: str) -> Scheduler:
    scheduler = Scheduler(url, poll="50ms")

    @scheduler.job
    def double(n: int) -> int:
        return 2 * n

    return scheduler


async def test_runs_of_a_client_are_worked_on_by_a_scheduler(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with make_scheduler(url), Client(url, poll="50ms") as client:
        run = await client.enqueue("double", {"n": 21})
        done = await client.wait(run.id, "10s")
        assert (done.state, done.result) == (State.SUCCEEDED, 42)
        many = await client.enqueue_many("double", [{"n": 1}, {"n": 2}])
        assert [(await client.wait(run.id, "10s")).result for run in many] == [2, 4]


async def test_a_client_runs_no_handler(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with make_scheduler(url):
        pass
    async with Client(url) as client:
        run = await client.enqueue("double", {"n": 1})
        assert await client.list_workers() == []
        assert (client.workers, client.is_leader) == (0, False)
        with pytest.raises(TimeoutError):
            await client.wait(run.id, "300ms")
        stored = await client.get_run(run.id)
        assert (stored.state, stored.attempt) == (State.PENDING, 0)
        async with make_scheduler(url):
            assert (await client.wait(run.id, "60s")).result == 2


async def test_a_client_warns_that_its_store_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a mistyped URL is noticed by nobody: runs wait in a file that no worker opens."""
    monkeypatch.chdir(tmp_path)
    async with Client("sqlite:///typo.db") as client:
        await client.add_job("nightly", handler="double", payload={"n": 1})
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith(
        f"there is no Mainspring database at {tmp_path / 'typo.db'}, so an empty"
    )
    caplog.clear()
    async with Client("sqlite:///typo.db") as client:
        assert (await client.get_job("nightly")).handler == "double"
    async with make_scheduler("sqlite:///jobs.db"), Client("memory://"):
        pass
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_a_client_keeps_notes(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path}/jobs.db") as client:
        assert await client.put_note(Note(kind="app", name="seen", value={"id": 7})) is not None
        note = await client.note("app", "seen")
        assert note is not None
        assert note.value == {"id": 7}


async def test_an_empty_store_says_how_jobs_come_into_it() -> None:
    async with Client("memory://") as client:
        with pytest.raises(JobNotFound, match="this store has no jobs yet"):
            await client.enqueue("send_email")


def test_a_plain_with_says_what_to_write() -> None:
    client, words = Client("memory://"), r"write `async with` .* `with ….blocking:`"
    with pytest.raises(TypeError, match=words), client:
        pass


@pytest.mark.parametrize("kind", ["rate", "breaker", "worker", "mainspring.pause"])
async def test_notes_of_mainspring_itself_are_not_written_by_programs(kind: str) -> None:
    """A note of the kind `rate` could stop a job, one of `mainspring.pause` all of them."""
    async with Client("memory://") as client:
        with pytest.raises(InvalidInput, match="belong to Mainspring: choose another kind"):
            await client.put_note(Note(kind=kind, name="mail", value=1))
        with pytest.raises(InvalidInput, match="belong to Mainspring"):
            await client.remove_note(kind, "mail")


async def test_a_client_opens_at_its_first_use_and_stays_closed_after_a_stop() -> None:
    client = Client("memory://")
    both = await asyncio.gather(client.stats(), client.list_jobs())
    assert both[1].items == []
    assert client.started
    async with client:  # it is open, so this block does not close it
        with pytest.raises(InvalidState, match=r"client\.blocking\.stats\(\) would block"):
            client.blocking.stats()
    assert await asyncio.to_thread(client.blocking.list_runs)
    before = threading.active_count()
    await client.stop()
    assert threading.active_count() < before
    with pytest.raises(NotStarted, match=r"was closed: .* client\.start"):
        await client.stats()
    async with client:
        await client.stats()


async def test_a_first_use_that_fails_tells_why_and_the_next_one_tries_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder").write_text("no folder")
    client = Client(f"sqlite:///{tmp_path / 'folder' / 'jobs.db'}", wait_for_store=0)
    for _ in range(2):
        with pytest.raises(StoreError):
            await client.stats()
    (tmp_path / "folder").unlink()
    (tmp_path / "folder").mkdir()
    assert (await client.stats()).jobs == 0
    await client.stop()


FORKS = """
import os, sys
from mainspring import Client

client = Client(sys.argv[1])
for _ in range(2):
    if os.fork() == 0:
        client.blocking.enqueue("known")
        sys.exit()
for _ in range(2):
    assert os.wait()[1] == 0
client.blocking.enqueue("known")
"""


def test_each_fork_opens_the_client_at_its_first_use_and_the_exit_closes_it(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    scheduler = Scheduler(url)
    scheduler.job(id="known")(lambda: None)
    with scheduler.configure(workers=0).blocking as control:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", FORKS, url],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        runs = control.list_runs(job="known").items
    assert len(runs) == 3


def test_the_store_is_that_of_the_environment_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", "memory://")
    assert Scheduler().url == Client().url == "memory://"
    assert Client("sqlite:///jobs.db").url == "sqlite:///jobs.db"
    monkeypatch.delenv("MAINSPRING_STORE")
    assert Scheduler().url == Client().url == "sqlite:///mainspring.db"
    with pytest.raises(InvalidInput, match="not None"):
        Client(None)  # type: ignore[arg-type]  # as from a variable that is not set


async def test_an_unknown_job_is_told_with_the_stored_job_that_was_probably_meant(
    tmp_path: Path,
) -> None:
    async with Client(f"sqlite:///{tmp_path}/jobs.db") as client:
        await client.add_job("send_email", handler="send_email")
        with pytest.raises(JobNotFound, match="did you mean 'send_email'"):
            await client.enqueue("send_emial")


def test_a_client_shows_its_store_without_a_password() -> None:
    assert repr(Client("memory://")) == "<Client on memory://, not started>"
    assert "secret" not in repr(Client("mongodb://me:secret@127.0.0.1/jobs"))


async def test_on_is_a_decorator_too() -> None:
    scheduler = make_scheduler("memory://")
    heard: list[str] = []

    @scheduler.on("run.succeeded")
    def listen(event: Event) -> None:
        heard.append(str(event.job_id))

    async with scheduler:
        run = await scheduler.enqueue("double", {"n": 1})
        await scheduler.wait(run.id, "10s")
    assert heard == ["double"]
    with pytest.raises(InvalidInput, match=r"there is no event 'run.fialed'"):
        scheduler.on("run.fialed")(listen)


# -- jobs as stored definitions -------------------------------------------------------------


async def test_add_update_remove(make: Make) -> None:
    scheduler = make()
    recorder = EventRecorder(scheduler, "job.*")

    @scheduler.job()
    async def greet(ctx: RunContext, name: str, loud: bool = False) -> str:
        return name.upper() if loud else name

    async with scheduler:
        job = await scheduler.add_job(
            "greet-ada",
            handler=greet,
            schedule="0 9 * * *",
            payload={"name": "Ada"},
            retries=2,
            description="each morning",
            tags=["people"],
            metadata={"team": 1},
        )
        assert (job.id, job.handler, job.enabled) == ("greet-ada", "greet", True)
        assert job == await scheduler.get_job("greet-ada")
        assert job.next_run_at is not None
        assert job.next_run_at > job.created_at
        assert job.policy.retries == 2
        run = await scheduler.trigger("greet-ada")
        assert (await ended(scheduler, run)).result == "Ada"
        run = await scheduler.enqueue("greet-ada", {"name": "Bob", "loud": True})
        assert (await ended(scheduler, run)).result == "BOB"

        changed = await scheduler.update_job("greet-ada", schedule="1h", payload={"name": "Eve"})
        assert (changed.policy, changed.tags) == (job.policy, ("people",))
        assert changed.version > job.version
        assert changed.next_run_at is not None
        assert changed.next_run_at - changed.updated_at == timedelta(hours=1)
        kept = await scheduler.update_job("greet-ada", retries=5)
        assert (kept.schedule, kept.next_run_at) == (changed.schedule, changed.next_run_at)
        off = await scheduler.update_job("greet-ada", enabled=False)
        assert (off.enabled, off.next_run_at) == (False, None)

        page = await scheduler.list_jobs(tag="people")
        assert [job.id for job in page.items] == ["greet-ada"]

        pending = await scheduler.enqueue("greet-ada", delay="1h")
        await scheduler.remove_job("greet-ada")
        done = await ended(scheduler, pending)
        assert (done.state, done.reason) == (State.CANCELLED, "job removed")
        for call in (scheduler.get_job, scheduler.trigger, scheduler.remove_job):
            with pytest.raises(JobNotFound, match="no job 'greet-ada'"):
                await call("greet-ada")
    assert [event.name for event in recorder.events] == [
        *("job.created", "job.created"),
        *("job.updated",) * 3,
        "job.removed",
    ]


async def test_a_running_run_outlives_its_job(make: Make) -> None:
    scheduler = make()
    began, go = asyncio.Event(), asyncio.Event()

    @scheduler.job()
    async def slow() -> str:
        began.set()
        await go.wait()
        return "done"

    async with scheduler:
        await scheduler.add_job("temp", handler="slow")
        run = await scheduler.trigger("temp")
        await began.wait()
        await scheduler.remove_job("temp")
        go.set()
        assert (await ended(scheduler, run)).result == "done"


async def test_a_job_that_takes_the_id_of_another_has_none_of_its_runs(make: Make) -> None:
    scheduler = make()
    began, go = asyncio.Event(), asyncio.Event()

    @scheduler.job()
    async def work(text: str) -> str:
        if text == "new":
            return text
        began.set()
        await go.wait()
        raise ValueError(text)

    async with scheduler:
        await scheduler.add_job("temp", handler="work", retries=9, retry_delay="1ms")
        run = await scheduler.trigger("temp", {"text": "old"})
        await began.wait()
        await scheduler.remove_job("temp")
        await scheduler.add_job("temp", handler="work", payload={"text": "new"})
        go.set()
        done = await ended(scheduler, run)
        assert (done.state, done.reason) == (State.CANCELLED, "job removed")
        assert [attempt.error for attempt in done.attempts if attempt.error] == ["ValueError: old"]
        with pytest.raises(InvalidState, match="its job 'temp' was removed"):
            await scheduler.retry(run.id)  # nor does an operator bring it back
        assert (await ended(scheduler, await scheduler.trigger("temp"))).result == "new"


@pytest.mark.parametrize("moment", ["put_jobs", "find"])
async def test_a_removal_spares_the_runs_of_a_job_that_takes_the_id_meanwhile(
    make: Make, place: str | Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = opened(place)
    scheduler = make(store, workers=0)
    delayed_runs: list[Run] = []

    @scheduler.job()
    async def work() -> None: ...

    async def make_anew() -> None:
        monkeypatch.undo()
        await scheduler.add_job("temp", handler="work")
        delayed_runs.extend([await scheduler.enqueue("temp", delay="1h") for _ in range(2)])

    async def put_jobs(writes: Sequence[JobWrite]) -> list[bool]:
        done = await put(writes)
        if writes[0].job is None:
            await make_anew()
        return done

    async def find_runs(query: RunQuery) -> Page[Run]:
        await make_anew()
        return await find(query)

    put, find = store.put_jobs, store.find
    async with scheduler:
        await scheduler.add_job("temp", handler="work")
        old = [await scheduler.enqueue("temp", delay="1h") for _ in range(2)]
        monkeypatch.setattr(store, moment, put_jobs if moment == "put_jobs" else find_runs)
        await scheduler.remove_job("temp")
        assert len(delayed_runs) == 2
        for run in old:
            done = await scheduler.get_run(run.id)
            assert (done.state, done.reason) == (State.CANCELLED, "job removed")
        left = [await scheduler.get_run(run.id) for run in delayed_runs]
        assert [run.state for run in left] == [State.PENDING] * 2


async def test_what_code_owns_can_be_switched_but_not_edited(make: Make) -> None:
    scheduler = make()

    @scheduler.job("1h")
    async def mine() -> None: ...

    async with scheduler:
        before = await scheduler.get_job("mine")
        for call in (
            scheduler.update_job("mine", retries=3),
            scheduler.update_job("mine", enabled=False, retries=3),
            scheduler.remove_job("mine"),
        ):
            with pytest.raises(JobOwnedByCode, match="defined in code: change it there"):
                await call
        assert await scheduler.get_job("mine") == before
        paused = await scheduler.update_job("mine", enabled=False)
        assert (paused.enabled, paused.next_run_at) == (False, None)
        assert (await scheduler.update_job("mine", enabled=True)).next_run_at is not None
        assert (await scheduler.pause_job("mine")).enabled is False
        assert (await scheduler.resume_job("mine")).enabled is True
        await ended(scheduler, await scheduler.trigger("mine"))
        await scheduler.remove_job("mine", force=True)
        with pytest.raises(JobNotFound):
            await scheduler.get_job("mine")


async def test_ids_are_taken_once(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def work() -> None: ...

    with pytest.raises(JobExists, match=r"'work' is already the name of .* another name with id="):

        @scheduler.job(id="work")
        async def other() -> None: ...

    async with scheduler:
        await scheduler.add_job("extra", handler=work)
        with pytest.raises(JobExists, match="there is a job 'extra' already"):
            await scheduler.add_job("extra", handler=work)
        with pytest.raises(JobExists):
            await scheduler.add_job("work", handler=work)
        for taken in ("extra", "work"):
            with pytest.raises(JobExists, match=f"there is a job '{taken}' already"):
                await scheduler.add_job(taken, handler=work, dry_run=True)
        shown = await scheduler.add_job("free", handler=work, schedule="@daily", dry_run=True)
        assert shown.next_run_at is not None
        with pytest.raises(JobNotFound):
            await scheduler.get_job("free")
    again = make()

    @again.job()
    async def extra() -> None: ...

    with pytest.raises(JobExists, match="exists with handler 'work'; it cannot become 'extra'"):
        await again.start()
    async with scheduler:  # nothing was lost
        assert (await scheduler.get_job("extra")).handler == "work"


@pytest.mark.parametrize("odd", ["\0", "\udce9"])
async def test_what_is_looked_up_by_its_text_can_be_looked_up(make: Make, odd: str) -> None:
    scheduler = make()

    @scheduler.job()
    async def work() -> None: ...

    async with scheduler:
        await scheduler.add_job("mine", handler="work", tags=["a"])
        for call in (
            scheduler.add_job("other", handler="work", tags=["a", f"a{odd}b"]),
            scheduler.update_job("mine", tags=f"a{odd}b"),
            scheduler.update_job("mine", queue=f"a{odd}b"),
            scheduler.add_job(f"a{odd}b", handler="work"),
            scheduler.enqueue("work", dedupe_key=f"a{odd}b"),
            scheduler.enqueue_many("work", [None, None], dedupe_key=["a", f"a{odd}b"]),
            scheduler.put_note(Note(kind="k", name=f"a{odd}b", value=1)),
            scheduler.put_note(Note(kind=f"a{odd}b", name="n", value=1)),
        ):
            with pytest.raises(InvalidInput, match=r"a\\(x00|udce9)b"):
                await call
        with pytest.raises(JobNotFound):
            await scheduler.get_job(f"mine{odd}x")


async def test_a_handler_without_a_job_serves_jobs_that_are_made_as_data(make: Make) -> None:
    scheduler = make()

    async def shout(ctx: RunContext, name: str) -> str:
        return name.upper()

    scheduler.add_handler("texts.shout", shout)
    with pytest.raises(InvalidInput, match="the name of a handler"):
        scheduler.add_handler("not a name", shout)
    async with scheduler:
        assert (await scheduler.list_jobs()).items == []
        await scheduler.add_job("loud", handler="texts.shout", payload={"name": "ada"})
        run = await scheduler.trigger("loud")
        assert (await scheduler.wait(run.id)).result == "ADA"


# -- many jobs at once ----------------------------------------------------------------------


class Watched(MemoryStore):
    """Counts the calls that write jobs; somebody else may come between."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.edited_between: str | None = None

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        if self.edited_between is not None:
            name, self.edited_between = self.edited_between, None
            [job] = (await self.jobs(JobQuery(ids=frozenset({name})))).items
            await super().put_jobs([JobWrite.put(replace(job, description="edited"))])
        self.batches.append(len(writes))
        return await super().put_jobs(writes)


async def test_what_cannot_be_done_is_told_by_job_and_the_rest_is_done() -> None:
    store = Watched()
    scheduler = Scheduler(store, workers=0)

    @scheduler.job("1h")
    async def by_code() -> None: ...

    async with scheduler:
        await scheduler.add_job("mine", handler="work", schedule="1h")
        done = await scheduler.pause_jobs(["mine", "nowhere", "by_code", "mine"])
        assert list(done) == ["mine", "nowhere", "by_code"]
        assert isinstance(done["nowhere"], JobNotFound)
        assert done["mine"] is done["by_code"] is None
        store.edited_between = "mine"
        assert await scheduler.resume_jobs(["mine"]) == {"mine": None}
        mine = await scheduler.get_job("mine")
        assert (mine.enabled, mine.description) == (True, "edited")
        gone = await scheduler.remove_jobs(["by_code", "mine"])
        assert isinstance(gone["by_code"], JobOwnedByCode)
        assert gone["mine"] is None
        assert await scheduler.remove_jobs(["by_code"], force=True) == {"by_code": None}
