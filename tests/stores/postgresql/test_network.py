"""Connections that break or fall silent under a working scheduler, and a server that freezes."""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import urlsplit

import pytest

from mainspring import Event, RunContext, Scheduler, State
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql import database
from mainspring.stores.postgresql.store import PostgresStore
from tests.support.engine import LONG, until
from tests.support.postgresql import SharedSchema
from tests.support.servers.postgresql import Postgres
from tests.support.servers.proxy import Line, Proxy


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CALL_SECONDS", 0.7)
    monkeypatch.setattr(database, "CONNECT_SECONDS", 2)


@pytest.mark.usefixtures("short_times")
@pytest.mark.parametrize("line", [Line.CUT, Line.SILENT, Line.HALF_OPEN])
async def test_work_resumes_when_the_connection_recovers(schema: SharedSchema, line: Line) -> None:
    """Every run is done once, and it was said that something is wrong. Runs of a claim whose
    response was lost are rescued when their leases lapse."""
    done: Counter[str] = Counter()
    errors: list[str] = []
    server = urlsplit(schema.server)
    assert server.port is not None
    async with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@{proxy.address}/postgres?schema={schema.name}"
        scheduler = Scheduler(url, poll="100ms", workers=4, lease="10s")

        @scheduler.job()
        async def work(ctx: RunContext) -> None:
            done[ctx.run_id] += 1
            await asyncio.sleep(0.05)

        def note_error(event: Event) -> None:
            errors.append(str(event.error))

        scheduler.on("scheduler.error", note_error)
        runs = []
        async with scheduler:
            for _ in range(2):
                runs += await work.enqueue_many([{}] * 40)
                async with asyncio.timeout(LONG):
                    while len(done) < len(runs) - 30:
                        await asyncio.sleep(0.01)
                proxy.turn(line)
                await _answers(scheduler, False)
                await until(lambda: errors, "an error that is told")
                proxy.turn(Line.WELL)
                await _answers(scheduler, True)
            ended = [await scheduler.wait(run.id, 60) for run in runs]
        assert {run.state for run in ended} == {State.SUCCEEDED}
        assert set(done.values()) == {1}


async def _answers(scheduler: Scheduler, expected: bool) -> None:
    """Ask until the store answers, or until it does not."""
    answers = not expected
    async with asyncio.timeout(LONG):
        while answers is not expected:
            await asyncio.sleep(0.05)
            try:
                await scheduler.stats()
                answers = True
            except StoreUnavailable:
                answers = False


@pytest.mark.usefixtures("short_times")
async def test_a_server_that_freezes_is_told_from_one_that_is_slow() -> None:
    with Postgres() as server:
        store = PostgresStore(server.url)
        await store.open()
        await store.now()
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable, match=r"does not respond within 0\.7 s"):
                await store.now()
        finally:
            server.resume()
        async with asyncio.timeout(LONG):
            while True:
                try:
                    await store.now()
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.1)
        await store.close()
