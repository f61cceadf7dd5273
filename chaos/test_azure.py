"""The store on Azurite, the emulator of Azure's blob storage: the conformance suite, many writers
of one store, a scheduler, and what the errors say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest

from mainspring import Scheduler
from mainspring.core.model import Note, replace
from mainspring.errors import StoreError
from mainspring.stores import open_store
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store
from tests.conformance.test_objects import OnServer
from tests.support.servers.azurite import Azurite, environment
from tests.support.servers.runs import current_run, leave_current_run

WRITERS = 32


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    current_run()
    with Azurite() as server:
        yield server
    leave_current_run()


@pytest.fixture
def url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store under a prefix that no other test has."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return azurite.url(f"test-{uuid4().hex[:16]}")


class TestAzurite(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, url: str) -> None:
        self.url = url


async def test_a_scheduler_on_azure_passes_the_self_test_and_runs_jobs(url: str) -> None:
    scheduler = Scheduler(url)

    @scheduler.job
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with scheduler:
        run = await greet.enqueue(name="container")
        assert (await scheduler.wait(run.id, timeout="1m")).result == "hello container"
    async with Scheduler(url) as again:
        assert (await again.get_run(run.id)).result == "hello container"


async def test_many_writers_of_one_counter_lose_no_count(url: str) -> None:
    """Each client raises the same note by one, by compare-and-set, until it has done so."""
    stores = [open_store(url) for _ in range(WRITERS)]
    for store in stores:
        await store.open()

    async def count(store: Store) -> None:
        while True:
            found = (await store.notes(NoteQuery(kind="counter"))).items
            before = found[0] if found else Note(kind="counter", name="one", value=0)
            after = replace(before, value=before.value + 1)
            write = NoteWrite("counter", "one", before.version, after)
            if (await store.put_notes([write]))[0] is not None:
                return

    await asyncio.gather(*map(count, stores))
    [note] = (await stores[0].notes(NoteQuery(kind="counter"))).items
    assert note.value == WRITERS
    for store in stores:
        await store.close()


async def test_a_missing_container_and_a_wrong_key_are_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url.replace("mainspring-tests", "nowhere"))
    with pytest.raises(StoreError, match="there is no container 'nowhere'"):
        await store.open()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    with pytest.raises(StoreError, match="does not accept the credentials") as raised:
        await open_store(url).open()
    assert "d3Jvbmc=" not in str(raised.value)
