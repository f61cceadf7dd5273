"""Connections that break or fall silent under a working scheduler, and a server that freezes."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from mainspring import Scheduler, State
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql import database
from mainspring.stores.postgresql.store import PostgresStore
from tests.support.engine import LONG
from tests.support.network import work_through_outages
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
    """Runs of a claim whose response was lost are rescued when their leases lapse."""
    server = urlsplit(schema.server)
    assert server.port is not None
    async with Proxy(server.port) as proxy:
        url = f"postgresql://postgres@{proxy.address}/postgres?schema={schema.name}"
        scheduler = Scheduler(url, poll="100ms", workers=4, lease="10s")
        ended = await work_through_outages(scheduler, proxy, line, outages=2)
    assert {run.state for run in ended} == {State.SUCCEEDED}


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
