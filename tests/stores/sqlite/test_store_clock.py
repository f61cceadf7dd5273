"""The store's clock: how steps of the wall clock and reboots affect leases."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mainspring.core import clock as clocks
from mainspring.core import transitions
from mainspring.core.clock import EPOCH, SteadyClock
from mainspring.stores.election import elect
from mainspring.stores.protocol import RunQuery
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing import FakeClock
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.servers.clocks import SteppedClock
from tests.support.sqlite_store import START, a_claim, a_run, opened

linux = pytest.mark.skipif(sys.platform != "linux", reason="CLOCK_BOOTTIME is Linux's")


async def lapsed(store: SqliteStore) -> list[str]:
    return [run.id for run in (await store.find(RunQuery(lapsed=True))).items]


async def test_a_step_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(START)
    async with (
        opened(tmp_path / "jobs.db", clock) as one,
        opened(tmp_path / "jobs.db", clock) as two,
    ):
        await one.add([a_run("one")])
        assert len(await claim_runs(one, a_claim())) == 1
        clock.step(-3600)
        for store in (one, two, one):
            assert await claim_runs(store, a_claim()) == []
            assert await lapsed(store) == []
    [record] = [r for r in caplog.records if "clock was set" in r.getMessage()]
    assert record.levelno == logging.WARNING
    assert "set back by 1 hour" in record.getMessage()


async def test_a_step_while_nothing_was_open_is_allowed_for(tmp_path: Path) -> None:
    clock = FakeClock(START)
    async with opened(tmp_path / "jobs.db", clock) as store:
        await store.add([a_run("one")])
        await claim_runs(store, a_claim())
    clock.step(3600)
    async with opened(tmp_path / "jobs.db", clock) as store:
        assert await lapsed(store) == []
        clock.advance(31)
        assert await lapsed(store) == ["one"]


def name_the_boot(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    original = SteadyClock.__init__

    def another_boot(self: SteadyClock, clock: FakeClock) -> None:
        original(self, clock)
        self.boot = name

    monkeypatch.setattr(SteadyClock, "__init__", another_boot)


async def retry_in(store: SqliteStore, run_id: str, seconds: float) -> None:
    [run] = [run for run in await claim_runs(store, a_claim()) if run.id == run_id]
    now = await store.now()
    failure = transitions.Failure("it failed")
    [done] = await store.commit(
        [transitions.retrying(run, now, failure, now + timedelta(seconds=seconds))]
    )
    assert done


async def test_retries_of_a_former_boot_keep_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has no battery clock: it comes back in 1970, and NTP sets it to today."""
    clock = FakeClock(START)
    async with opened(tmp_path / "jobs.db", clock) as store:
        await store.add([a_run("former")])
        await retry_in(store, "former", 30)
    booted = FakeClock(EPOCH)
    name_the_boot(monkeypatch, "another")
    async with opened(tmp_path / "jobs.db", booted) as store:
        assert await claim_runs(store, a_claim()) == []
        await store.add([a_run("present", run_at=EPOCH)])
        booted.advance(10)
        await retry_in(store, "present", 30)
        booted.step((START - EPOCH).total_seconds())
        assert await claim_runs(store, a_claim()) == []
        runs = await get_runs(store, ["former", "present"])
        assert runs["former"].run_at == START + timedelta(seconds=30)
        assert runs["present"].run_at == START + timedelta(seconds=40)
        booted.step(3600)  # from here on all is known to this boot
        assert await claim_runs(store, a_claim()) == []
        booted.advance(30)
        assert {run.id for run in await claim_runs(store, a_claim())} == {"former", "present"}


@pytest.mark.parametrize(
    ("before", "after"),
    [(START, START.replace(year=2020)), (EPOCH, EPOCH)],
    ids=["its clock came back years behind", "it always starts in 1970"],
)
async def test_leases_of_a_former_boot_have_lapsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: datetime, after: datetime
) -> None:
    clock = FakeClock(before)
    async with opened(tmp_path / "jobs.db", clock) as store:
        await store.add([a_run("one", run_at=before)])
        clock.advance(timedelta(days=3))
        await claim_runs(store, a_claim())
        assert await elect(store, "lead", "a", a_claim().lease) == 1
    name_the_boot(monkeypatch, "another")
    async with opened(tmp_path / "jobs.db", FakeClock(after)) as store:
        assert await lapsed(store) == ["one"]
        assert await elect(store, "lead", "b", a_claim().lease) == 2


async def test_another_boot_id_on_the_same_machine_lapses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with a boot id of its own."""
    clock = FakeClock(START)
    async with opened(tmp_path / "jobs.db", clock) as host:
        await host.add([a_run("one")])
        await claim_runs(host, a_claim())
        name_the_boot(monkeypatch, "of the container")
        async with opened(tmp_path / "jobs.db", clock) as container:
            assert await lapsed(container) == []
            assert await lapsed(host) == []
            assert await claim_runs(container, a_claim()) == []
            clock.advance(31)
            assert await lapsed(container) == ["one"]


async def test_where_there_is_no_boot_clock_the_wall_clock_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "_boot_id", lambda: "")
    async with opened(tmp_path / "jobs.db") as store:
        await store.add([a_run("one")])
        [run] = await claim_runs(store, a_claim())
        assert run.lease_until is not None
        assert await lapsed(store) == []
    monkeypatch.undo()
    async with opened(tmp_path / "jobs.db") as store:  # and a program that has one lapses nothing
        assert await lapsed(store) == []


STEPPED = """
import asyncio, sys
from datetime import timedelta
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.protocol import Held, RunQuery
from mainspring.testing.store_calls import get_runs
from tests.support.sqlite_store import a_claim, a_run, opened

async def main():
    async with opened(__import__("pathlib").Path(sys.argv[1])) as store:
        await store.add([a_run("one")])
        [held] = (await store.claim(a_claim(lease=timedelta(minutes=10)))).runs
        print("ready", flush=True)
        for line in sys.stdin:
            page = await store.find(RunQuery(lapsed=True))
            mine = await store.renew([Held(held.id, held.token)], timedelta(minutes=10))
            left = (await get_runs(store, ["one"]))["one"].lease_until - await store.now()
            print(len(page.items), len(mine), round(left.total_seconds() / 60), flush=True)

asyncio.run(main())
"""


@linux
async def test_a_real_program_keeps_its_lease_through_steps_of_the_wall_clock(
    tmp_path: Path,
) -> None:
    clock = SteppedClock(tmp_path)
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        STEPPED,
        str(tmp_path / "jobs.db"),
        env={**os.environ, **clock.environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert await program.stdout.readline() == b"ready\n"
    for offset in (3600, -3600, 86_400, 0):
        clock.step(offset)
        program.stdin.write(b"look\n")
        assert await program.stdout.readline() == b"0 1 10\n"
    program.stdin.close()
    assert await program.wait() == 0
