"""Event streams and clients that do not keep up: the sockets' buffers would hide them from a test
with a real one, so these speak ASGI."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.service import stream
from tests.service.conftest import Api


class Client:
    """A client of `/api/events` that takes messages, or does not."""

    def __init__(self, api: Api, query: str = "") -> None:
        self.messages: list[Any] = []
        self.taking = asyncio.Event()
        self.taking.set()
        self.gone = asyncio.Event()
        self._asked = False
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/events",
            "raw_path": b"/api/events",
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1")],
            "http_version": "1.1",
            "scheme": "http",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 3000),
        }
        self.task = asyncio.ensure_future(api.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.taking.wait()
        self.messages.append(message)

    async def begun(self) -> None:
        while len(self.messages) < 2:
            await asyncio.sleep(0)


async def enqueue(api: Api, count: int) -> None:
    await api.scheduler.enqueue_many("greet", [{"name": "x"}] * count)


async def test_a_slow_client_is_dropped_and_costs_no_more_than_its_queue(api: Api) -> None:
    slow, quick = Client(api), Client(api)
    await slow.begun()
    await quick.begun()
    slow.taking.clear()
    sent = 0
    while not slow.task.done():
        await enqueue(api, 200)
        sent += 200
        while len(quick.messages) < 2 + sent:
            await asyncio.sleep(0)
        assert sent <= stream.QUEUE + 1000
    assert sent > stream.QUEUE
    # It got no end of its response: the server cuts such a connection off.
    assert all(message.get("more_body", True) for message in slow.messages)
    assert not quick.task.done()
    quick.gone.set()
    await quick.task
    assert api.app.state.service.streams == 0


async def test_an_event_that_several_patterns_fit_is_sent_once(api: Api) -> None:
    client = Client(api, "event=run.*&event=run.enqueued&event=run.*&event=job.created")
    await client.begun()
    await enqueue(api, 1)
    await api.scheduler.add_job("new", handler="greet")
    while b"event: job.created" not in client.messages[-1]["body"]:
        await asyncio.sleep(0)
    told = [one["body"].partition(b"\n")[0] for one in client.messages[2:]]
    assert told == [b"event: run.enqueued", b"event: job.created"]
    client.gone.set()
    await client.task


async def test_a_client_that_goes_is_forgotten(api: Api) -> None:
    client = Client(api)
    await client.begun()
    assert api.app.state.service.streams == 1
    client.gone.set()
    await client.task
    assert api.app.state.service.streams == 0
    await enqueue(api, 1)  # nobody is told


async def test_a_heartbeat_keeps_the_line_open(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT", 0.01)
    client = Client(api)
    while not any(b"still here" in m.get("body", b"") for m in client.messages):
        await asyncio.sleep(0.005)
    api.app.state.service.draining.set()
    await client.task
    assert client.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_there_is_room_for_so_many(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream, "MOST_CLIENTS", 1)
    client = Client(api)
    await client.begun()
    refused = await api.get("/api/events")
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    client.gone.set()
    await client.task
