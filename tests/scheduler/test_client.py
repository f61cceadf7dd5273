"""A client enqueues and controls runs in a store that other processes work on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring import Client, Event, Scheduler, State
from mainspring.core.model import Note
from mainspring.errors import InvalidInput, JobNotFound, NotStarted
from mainspring.testing import TestScheduler


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
        assert [(await client.wait(one.id, "10s")).result for one in many] == [2, 4]


async def test_a_client_runs_no_handler(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with make_scheduler(url):
        pass
    async with Client(url) as client:
        run = await client.enqueue("double", {"n": 1}, delay="1h")
        assert await client.list_workers() == []
        assert (client.workers, client.is_leader) == (0, False)
        assert await client.cancel(run.id)
        assert (await client.get_run(run.id)).state is State.CANCELLED


async def test_a_client_edits_jobs_whose_handler_another_process_has(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path}/jobs.db") as client:
        await client.add_job("nightly", handler="double", schedule="0 3 * * *", payload={"n": 1})
        await client.update_job("nightly", retries=3)
        assert not (await client.pause_job("nightly")).enabled
        await client.remove_job("nightly")
        with pytest.raises(JobNotFound):
            await client.get_job("nightly")


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


def test_plain_code_uses_a_client_by_blocking(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with make_scheduler(url).blocking, Client(url, poll="50ms").blocking as client:
        run = client.enqueue("double", {"n": 4})
        assert client.wait(run.id, "10s").result == 8


async def test_a_client_that_is_not_open_says_how_to_open_it() -> None:
    client = Client("memory://")
    with pytest.raises(NotStarted, match="async with client"):
        await client.enqueue("double")
    async with client:
        with pytest.raises(NotStarted, match=r"client\.blocking\.stats\(\) would block"):
            client.blocking.stats()
    with pytest.raises(NotStarted, match="async with client"):
        await client.stats()


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


PRODUCER = """
import asyncio, sys
from mainspring import Client

async def main():
    async with Client(sys.argv[1]) as client:
        run = await client.enqueue("double", {"n": 5})
        print((await client.wait(run.id, "20s")).result)

asyncio.run(main())
"""


def test_a_client_in_another_process_needs_no_code_of_the_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with make_scheduler(url).blocking:
        command = [sys.executable, "-c", PRODUCER, url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("10\n", "")


async def test_a_forecast_finds_jobs_that_take_longer_than_their_interval() -> None:
    test = TestScheduler(start="2026-06-01T00:00Z")

    @test.scheduler.job("*/1 * * * *")
    async def slow() -> None:
        await asyncio.sleep(90)

    @test.scheduler.job("@hourly")
    async def fine() -> None:
        await asyncio.sleep(90)

    async with test:
        await test.tick("2h")
        found = await test.scheduler.forecast(days=1)
    assert found.start == test.now
    assert found.runs == 24 * 60 + 24
    [overrun] = found.overruns
    assert (overrun.job_id, overrun.interval) == ("slow", 60.0)
    assert overrun.p95_duration == pytest.approx(90, rel=0.05)  # as exact as the counters


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
