"""Event streams and clients that do not keep up.

The buffers of a real socket would hide them, so most of these tests speak ASGI."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from mainspring.service.api import events
from mainspring.service.api_keys import CACHE_SECONDS, ApiKeys
from mainspring.service.sessions import Sessions
from mainspring.stores.memory import MemoryStore
from mainspring.testing import FakeClock, FaultyStore
from tests.support.engine import SwitchableFaults
from tests.support.event_client import EventClient
from tests.support.raw_connection import connected, read_to
from tests.support.service import LONG, WEBHOOK, Api, Make, Serve, ServiceProcess, sample_scheduler
from tests.support.service_calls import refused


def told(client: EventClient) -> int:
    """How many bytes of events it took."""
    return sum(len(one["body"]) for one in client.messages[2:])


async def settled() -> None:
    """A stream that ends does so in a few turns of the loop."""
    for _ in range(50):
        await asyncio.sleep(0)


async def enqueue(api: Api, count: int) -> None:
    await api.scheduler.enqueue_many("greet", [{"name": "x"}] * count)


async def test_a_slow_client_is_dropped_and_costs_no_more_than_its_queue(api: Api) -> None:
    slow, quick = [await EventClient.begin(api) for _ in range(2)]
    slow.taking.clear()
    sent = 0
    while not slow.task.done():
        await enqueue(api, 200)
        sent += 200
        while len(quick.messages) < 2 + sent:
            await asyncio.sleep(0)
        await settled()
        assert told(quick) <= events.MAX_QUEUE_BYTES + 200 * 2000
    assert told(quick) > events.MAX_QUEUE_BYTES
    # It got no end of its response: the server cuts such a connection off.
    assert all(message.get("more_body", True) for message in slow.messages)
    assert not quick.task.done()
    await quick.leave()
    assert api.app.state.service.streams.total() == 0


async def test_events_can_be_chosen_and_hold_no_secret(api: Api) -> None:
    wrong = await refused(api, "GET", "/api/v1/events?event=run.nonsense", 422)
    assert "run.failed" in wrong["detail"]
    client = await EventClient.begin(api, "event=job.*&job=mine")
    for name in ("other", "mine"):
        await api.ok("POST", "/api/v1/jobs", json={**WEBHOOK, "id": name})
    while len(client.messages) < 3:
        await asyncio.sleep(0)
    assert client.messages[2]["body"].startswith(b"event: job.created")
    assert b'"jobId":"mine"' in client.messages[2]["body"].replace(b": ", b":")
    assert b"YOUR_TOKEN" not in client.messages[2]["body"]
    await client.leave()


async def test_a_client_that_goes_is_forgotten(api: Api) -> None:
    client = await EventClient.begin(api)
    assert api.app.state.service.streams.total() == 1
    await client.leave()
    assert api.app.state.service.streams.total() == 0
    await enqueue(api, 1)  # nobody is told


async def test_an_idle_stream_sends_heartbeats(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.01)
    client = EventClient(api)
    while not any(b"still here" in m.get("body", b"") for m in client.messages):
        await asyncio.sleep(0.005)
    api.app.state.service.draining.set()
    await client.task
    assert client.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_streams_are_limited_in_number(api: Api) -> None:
    api.app.state.service.max_streams = 1
    client = await EventClient.begin(api)
    refused = await api.get("/api/v1/events")
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    await client.leave()


async def test_one_key_cannot_take_all_streams(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    service = api.app.state.service
    service.max_streams = 4  # one for each key
    (_, greedy), (_, other) = [await service.keys.create(name, "read") for name in ("a", "b")]
    clients = [await EventClient.begin(api, key=text) for text in (greedy, other)]
    refused = await api.get("/api/v1/events", headers={"Authorization": f"Bearer {greedy}"})
    assert refused.status_code == 429
    assert "this key has 1 open event streams" in refused.json()["detail"]
    assert "retry-after" in refused.headers
    for client in clients:
        await client.leave()
    assert not service.streams


@pytest.mark.parametrize("loopback", [True, False])
async def test_the_stream_of_a_revoked_key_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch, loopback: bool
) -> None:
    clock = FakeClock()
    api: Api = await make(workers=0, loopback=loopback, service_clock=clock)
    service = api.app.state.service
    monkeypatch.setattr(events, "KEY_CHECK_SECONDS", 0.01)
    good, bad = [await service.keys.create(name, "read") for name in ("good", "bad")]
    _, short = await service.keys.create("short", "read", timedelta(milliseconds=300))
    texts = (good[1], bad[1], short)
    kept, revoked, expired = [await EventClient.begin(api, key=text) for text in texts]
    clock.advance(0.3)
    await expired.task
    assert not revoked.task.done()
    await ApiKeys(api.scheduler).revoke(bad[0].id)  # by another instance
    clock.advance(CACHE_SECONDS - events.KEY_CHECK_SECONDS - 0.299)
    await revoked.task
    assert revoked.messages[-1]["more_body"] is False
    await enqueue(api, 1)
    while not any(b"run.enqueued" in one.get("body", b"") for one in kept.messages):
        await asyncio.sleep(0)
    assert not any(b"run.enqueued" in one.get("body", b"") for one in revoked.messages)
    await kept.leave()
    assert service.streams.total() == 0


async def test_the_stream_of_a_session_ends_when_its_person_signs_out(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    api: Api = await make(workers=0, loopback=False, service_clock=clock)
    service = api.app.state.service
    monkeypatch.setattr(events, "KEY_CHECK_SECONDS", 0.01)
    key, _ = await service.keys.create("ada", "read")
    texts = [(await service.sessions.create(key))[0] for _ in range(3)]
    here, elsewhere, kept = [
        await EventClient.begin(api, cookie=f"mainspring_session={text}") for text in texts
    ]
    await service.sessions.end(texts[0])
    await here.task
    assert here.messages[-1]["more_body"] is False
    await Sessions(api.scheduler, service.keys).end(texts[1])  # by another instance
    clock.advance(CACHE_SECONDS)
    await elsewhere.task
    assert not kept.task.done()
    await kept.leave()


async def test_streams_without_a_key_end_when_the_first_key_is_made(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEY_CHECK_SECONDS", 0.01)
    client = await EventClient.begin(api)
    await api.app.state.service.keys.create("first", "read")
    await client.task
    assert client.messages[-1]["more_body"] is False


async def test_streams_stay_open_while_the_store_is_away(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = SwitchableFaults()
    store = FaultyStore(MemoryStore(), faults)
    api: Api = await make(sample_scheduler(store, workers=0), loopback=False)
    monkeypatch.setattr(events, "KEY_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(events, "CACHE_SECONDS", 0.0)
    made, text = await api.app.state.service.keys.create("mine", "read")
    client = await EventClient.begin(api, key=text)
    faults.failing = {"notes"}
    while faults.met.get("notes", 0) < 3:
        await asyncio.sleep(0.001)
    assert not client.task.done()
    faults.failing = set()
    await ApiKeys(api.scheduler).revoke(made.id)
    await client.task


# -- clients that stop reading, on real sockets ---------------------------------------------


@pytest.fixture
def unread() -> Iterator[Callable[..., socket.socket]]:
    """`unread(served)`: a client of the event stream that reads its beginning, and no more."""
    with ExitStack() as stack:

        def begin(served: ServiceProcess, key: str = "") -> socket.socket:
            one = stack.enter_context(socket.socket())
            one.settimeout(LONG)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            parts = urlsplit(served.url)
            one.connect((parts.hostname, parts.port))
            head = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n{key and 'X-Api-Key: '}{key}"
            one.sendall(head.rstrip().encode() + b"\r\n\r\n")
            read_to(one, b"retry: 2000")
            return one

        yield begin


def cut_off(one: socket.socket, seconds: float = LONG) -> bool:
    """Whether it is, without reading: who reads would let the server be done with it."""
    poll = select.poll()
    poll.register(one, select.POLLERR | select.POLLHUP)
    return bool(poll.poll(seconds * 1000))


def add_large(client: httpx.Client) -> None:
    large = {"id": "large", "schedule": None, "endpoint": "https://example.com/"}
    assert client.post("/api/v1/jobs", json=large).status_code == 201


def change(client: httpx.Client) -> None:
    body = "x" * 250_000 + uuid4().hex  # an edit that changes nothing is no event
    changed = client.patch("/api/v1/jobs/large", json={"body": body})
    assert changed.status_code == 200, changed.text


def test_a_client_that_stops_reading_loses_its_connection(
    serve: Serve, unread: Callable[..., socket.socket]
) -> None:
    served = serve(MAX_CONNECTIONS="10")
    with served.client() as client:
        add_large(client)
        slow = [unread(served) for _ in range(5)]
        refused = client.get("/api/v1/events")
        assert refused.status_code == 503
        assert (
            refused.json()["detail"]
            == "5 event streams are open, and no more are allowed; try later"
        )
        for _ in range(50):  # megabytes are in the buffers of the sockets before any has to wait
            change(client)
            if all(cut_off(one, 0) for one in slow):
                break
        assert all(cut_off(one) for one in slow)
        unread(served)  # there is room again
    for _ in range(10):
        assert httpx.get(f"{served.url}/livez", timeout=LONG).status_code == 200
    served.signal()
    assert served.ends() == 0
    assert "without completing" not in "".join(served.err)


def test_streams_leave_half_of_the_connections_to_the_rest(serve: Serve) -> None:
    served = serve(MAX_CONNECTIONS="20")
    told = []
    with ExitStack() as stack:
        for _ in range(30):
            one = stack.enter_context(connected(served))
            one.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            told.append(one.recv(12))
        with served.client() as client:
            assert client.get("/livez").status_code == 200
    assert told == 10 * [b"HTTP/1.1 200"] + 20 * [b"HTTP/1.1 503"]
