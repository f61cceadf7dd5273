"""A record that cannot be read (damaged, or of a newer version) stops no other."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mainspring import RunContext, Scheduler
from mainspring.core.model import State
from mainspring.errors import RecordUnreadable
from mainspring.stores import codec
from tests.support.engine import LONG

BROKEN = '{"broken'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(codec, "_reported", set())
    return tmp_path / "jobs.db"


def damage(place: Path, sql: str, *parameters: Any) -> None:
    with closing(sqlite3.connect(place)) as connection, connection:
        assert connection.execute(sql, parameters).rowcount == 1


async def test_damaged_runs_are_set_aside_and_all_others_run(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []

    def made(workers: int) -> Scheduler:
        scheduler = Scheduler(f"sqlite:///{place}", workers=workers)

        @scheduler.job(delivery="at_most_once")
        async def work(ctx: RunContext, name: str) -> str:
            started.append(name)
            return name

        @scheduler.job(after=["work"])
        async def follower(ctx: RunContext) -> None:
            started.append(f"after {ctx.results['work']}")

        return scheduler

    async with made(workers=0) as producer:
        names = ["payload", "good", "upstream", "waiting"]
        runs = {n: await producer.enqueue("work", {"name": n}) for n in names}
        page = await producer.list_runs(job="follower")
        behind = {run.after[0]: run.id for run in page.items}
    update = "UPDATE mainspring_runs SET {} = ? WHERE id = ?"
    damage(place, update.format("payload"), BROKEN, runs["payload"].id)
    damage(place, update.format('"after"'), BROKEN, behind[runs["waiting"].id])
    over = (
        "UPDATE mainspring_runs SET state = 'succeeded', finished_at = 1, result = ? WHERE id = ?"
    )
    damage(place, over, BROKEN, runs["upstream"].id)

    with caplog.at_level(logging.ERROR, logger="mainspring"):
        async with made(workers=5) as scheduler:
            await scheduler.wait(runs["good"].id, timeout=LONG)
            await scheduler.wait(behind[runs["good"].id], timeout=LONG)
            await scheduler.wait(runs["waiting"].id, timeout=LONG)
            async with asyncio.timeout(LONG):
                while len((await scheduler.list_unreadable())[1]) < 3:
                    await asyncio.sleep(0.05)
            jobs, bad = await scheduler.list_unreadable()
            states = {run.id: run.state for run in bad}
            assert await scheduler.cancel(runs["payload"].id)
            with pytest.raises(RecordUnreadable, match="payload"):
                await scheduler.retry(runs["payload"].id)
    assert sorted(started) == ["after good", "good", "waiting"]
    assert jobs == []
    assert states == {
        runs["payload"].id: State.PENDING,
        runs["upstream"].id: State.SUCCEEDED,
        behind[runs["waiting"].id]: State.WAITING,
    }
    named = [line for line in caplog.messages if "cannot be read" in line]
    assert len(named) == 3  # each is named once, however often it is met


async def test_a_damaged_job_fires_nothing_and_none_of_its_runs_is_ended(place: Path) -> None:
    ran = asyncio.Event()

    def made() -> Scheduler:
        scheduler = Scheduler(f"sqlite:///{place}")

        @scheduler.job("100ms", run_on_start=True)
        async def bad() -> None: ...

        @scheduler.job("120ms")
        async def good() -> None:
            ran.set()

        @scheduler.job()
        async def plain() -> None: ...

        return scheduler

    async with made() as scheduler:
        await scheduler.pause_job("bad")
        await scheduler.resume_job("bad")
        run = await scheduler.enqueue("bad", delay="100ms")
    damage(place, "UPDATE mainspring_jobs SET schedule = ? WHERE id = 'bad'", BROKEN)
    async with made() as scheduler:  # to register the same jobs again does not fail either
        for _ in range(3):
            ran.clear()
            async with asyncio.timeout(LONG):
                await ran.wait()
        await scheduler.wait((await scheduler.enqueue("plain")).id, timeout=LONG)
        jobs, _ = await scheduler.list_unreadable()
        assert [job.id for job in jobs] == ["bad"]
        assert "schedule" in (jobs[0].unreadable or "")
        async with asyncio.timeout(LONG):  # a worker meets its run, and puts it off
            while (await scheduler.get_run(run.id)).run_at == run.run_at:
                await asyncio.sleep(0.05)
        assert (await scheduler.get_run(run.id)).state is State.PENDING
        with pytest.raises(RecordUnreadable):
            await scheduler.enqueue("bad")
        with pytest.raises(RecordUnreadable):
            await scheduler.pause_job("bad")
        await scheduler.remove_job("bad", force=True)
        assert (await scheduler.list_unreadable())[0] == []
