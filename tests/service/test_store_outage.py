"""While the store is away, `/metrics` answers those who could read it before, and no one else."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from sqlite3 import connect
from typing import Any, cast

import httpx
import pytest

from mainspring import Client
from mainspring.core import note_kinds
from mainspring.core.model import Note
from mainspring.service.api_keys import CACHE_SECONDS, ApiKeys
from mainspring.service.metrics import STORE_CACHE_SECONDS
from mainspring.stores.memory import MemoryStore
from mainspring.testing import FakeClock, FaultyStore
from tests.support.engine import SwitchableFaults
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.service import Api, Make, Serve, sample_scheduler
from tests.support.service import until as come_true
from tests.support.service_calls import code, key, until


class Away:
    """A service whose store can go away, and the clock by which it remembers keys."""

    def __init__(self, api: Api, clock: FakeClock, faults: SwitchableFaults) -> None:
        self.api, self.clock, self._faults = api, clock, faults
        self.keys: ApiKeys = api.app.state.service.keys

    def go(self, seconds: float = CACHE_SECONDS + 1) -> None:
        self._faults.failing = {"*"}
        self.clock.advance(seconds)

    def come(self) -> None:
        self._faults.failing = set()

    async def up(self, **options: Any) -> str | int:
        """What `/metrics` says of the store, or why it says nothing."""
        self.clock.advance(STORE_CACHE_SECONDS)
        answer = await self.api.get("/metrics", **options)
        if answer.status_code != 200:
            return answer.status_code
        return next(
            line for line in answer.text.splitlines() if line.startswith("mainspring_store")
        )


@pytest.fixture
async def away(make: Make, request: pytest.FixtureRequest) -> Away:
    faults = SwitchableFaults()
    store: Any = FaultyStore(MemoryStore(), faults)
    loopback = getattr(request, "param", False)
    clock = FakeClock()
    scheduler = sample_scheduler(store, workers=0)
    return Away(await make(scheduler, loopback=loopback, service_clock=clock), clock, faults)


class HeldNotes:
    """The notes of a client. The answer to a read comes when a test lets it."""

    def __init__(self, notes: Client) -> None:
        self._notes = notes
        self.answer: asyncio.Future[Any] | None = None

    async def note(self, kind: str, name: str) -> Note | None:
        return await (self._notes.note(kind, name) if self.answer is None else self.answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._notes, name)


async def test_a_key_known_before_the_outage_can_read_metrics(away: Away) -> None:
    headers = await key(away.api)
    assert await away.up(headers=headers) == "mainspring_store_up 1.0"
    away.go()
    for _ in range(3):
        away.clock.advance(3600)
        assert await away.up(headers=headers) == "mainspring_store_up 0.0"
    away.come()

    async def back() -> bool:
        return await away.up(headers=headers) == "mainspring_store_up 1.0"

    await come_true(back)  # the engine has to find out


async def test_a_key_known_before_the_outage_opens_only_metrics(away: Away) -> None:
    headers = await key(away.api, "admin")
    assert await away.up(headers=headers) == "mainspring_store_up 1.0"
    away.go()
    for method, path in (
        ("GET", "/api/v1/jobs"),
        ("GET", "/api/v1/events"),
        ("GET", "/api/v1/health"),
        ("GET", "/metrics/"),
    ):
        assert await code(away.api, method, path, headers=headers) == 503


async def test_an_unknown_key_is_refused_during_an_outage(away: Away) -> None:
    good, unused = await key(away.api), await key(away.api)
    revoked, expired = (
        await away.keys.create("revoked", "read"),
        await away.keys.create("expired", "read", timedelta(hours=1)),
    )
    for headers in (good, *({"X-Api-Key": text} for _, text in (revoked, expired))):
        assert await away.up(headers=headers) == "mainspring_store_up 1.0"
    await ApiKeys(away.api.scheduler).revoke(revoked[0].id)  # by another instance
    away.clock.advance(CACHE_SECONDS + 1)
    assert await away.up(headers={"X-Api-Key": revoked[1]}) == 401
    away.go()
    assert await away.up(headers={"X-Api-Key": expired[1]}) == "mainspring_store_up 0.0"
    away.clock.advance(3600)
    assert await away.up(headers={"X-Api-Key": expired[1]}) == 401
    assert await away.up(headers={"X-Api-Key": revoked[1]}) in (401, 503)
    assert await away.up(headers=unused) == 503  # it was never looked at here
    wrong = {"Authorization": good["Authorization"][:-1] + "~"}
    assert await away.up(headers=wrong) == 401
    assert await away.up() == 401
    assert await away.up(headers=good) == "mainspring_store_up 0.0"


@pytest.mark.parametrize("away", [True], indirect=True)
async def test_without_a_key_where_none_was_made(away: Away) -> None:
    assert await away.up() == "mainspring_store_up 1.0"
    away.go()
    assert await away.up() == "mainspring_store_up 0.0"
    assert await away.up(headers={"X-Forwarded-For": "10.0.0.1"}) == 401
    assert await code(away.api) == 503
    away.come()
    await ApiKeys(away.api.scheduler).create("first", "read")  # by another instance
    assert await away.up() == 401
    away.go()
    assert await away.up() == 401


@pytest.mark.parametrize("away", [True], indirect=True)
async def test_without_a_key_before_anybody_knew(away: Away) -> None:
    away.go()
    assert await away.up() == 503


@pytest.mark.parametrize("away", [True], indirect=True)
async def test_without_a_key_after_one_was_made_here(away: Away) -> None:
    assert await away.up() == "mainspring_store_up 1.0"
    await key(away.api)
    away.go()
    assert await away.up() == 401


async def test_what_was_read_before_does_not_overtake_what_is_known_since(away: Away) -> None:
    """A key is looked at, and revoked before the answer is here: it opens nothing from then on."""
    notes = HeldNotes(away.api.scheduler)
    keys = ApiKeys(cast(Any, notes), away.clock)
    made, text = await keys.create("mine", "read")
    assert await keys.check(text) == made
    away.clock.advance(CACHE_SECONDS + 1)
    before = await notes.note(note_kinds.API_KEY, made.id)
    answer = notes.answer = asyncio.get_running_loop().create_future()
    looking = asyncio.ensure_future(keys.check(text))
    await asyncio.sleep(0)
    notes.answer = None
    away.clock.advance(0.001)
    await keys.revoke(made.id)
    answer.set_result(before)
    assert await looking is None
    away.go()
    assert await keys.check(text, cached_if_away=True) is None


def scraped(client: httpx.Client) -> str:
    """As Prometheus does it: whoever takes longer than ten seconds said nothing."""
    answer = client.get("/metrics", timeout=10)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_file_that_another_program_has_locked_is_named_as_the_cause(
    serve: Serve, tmp_path: Path
) -> None:
    """It can be read all the while; but nothing is claimed."""
    served = serve()
    job = {"id": "often", "every": "1s", "endpoint": "https://example.com/"}
    with served.client() as client, closing(connect(tmp_path / "mainspring.db")) as other:
        assert client.post("/api/v1/jobs", json=job).status_code == 201
        assert client.get("/readyz").status_code == 200
        other.execute("BEGIN IMMEDIATE")
        ready = until(lambda: (got := client.get("/readyz")).status_code == 503 and got)
        assert ready.json()["status"].startswith("the store fails these calls: ")
        health = client.get("/api/v1/health").json()
        assert (health["status"], health["store"]) == ("degraded", "away")
        until(lambda: "mainspring_store_up 0.0" in scraped(client))
        other.execute("ROLLBACK")
        until(lambda: client.get("/readyz").status_code == 200)
        until(lambda: "mainspring_store_up 1.0" in scraped(client))
        assert client.get("/api/v1/health").json()["store"] == "ok"
