"""The service closes event streams whose client stops reading, on real sockets."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from mainspring.service.dependencies import Service
from tests.service.test_connection_limits import connected, read_to
from tests.support.service import LONG, Serve, ServiceProcess

LIMITS = Path(__file__).parents[3] / "docs" / "reference" / "limits.md"


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
            head = f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n{key and 'X-Api-Key: '}{key}"
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
    assert client.post("/api/jobs", json=large).status_code == 201


def change(client: httpx.Client, times: int) -> None:
    for n in range(times):
        changed = client.put("/api/jobs/large", json={"body": "x" * 250_000 + str(n)})
        assert changed.status_code == 200, changed.text


def test_a_client_that_stops_reading_loses_its_connection(
    serve: Serve, unread: Callable[..., socket.socket]
) -> None:
    served = serve(MAX_CONNECTIONS="10")
    with served.client() as client:
        add_large(client)
        slow = [unread(served) for _ in range(5)]
        refused = client.get("/api/events")
        assert refused.status_code == 503
        assert (
            refused.json()["error"]
            == "5 event streams are open, and no more are allowed; try later"
        )
        for _ in range(50):  # megabytes are in the buffers of the sockets before any has to wait
            change(client, 1)
            if all(cut_off(one, 0) for one in slow):
                break
        assert all(cut_off(one) for one in slow)
        unread(served)  # there is room again
    for _ in range(10):
        assert httpx.get(f"{served.url}/livez", timeout=LONG).status_code == 200
    served.signal()
    assert served.ends() == 0
    assert "without completing" not in "".join(served.err)


def test_a_revoked_client_that_stops_reading_loses_its_connection(
    serve: Serve, unread: Callable[..., socket.socket]
) -> None:
    served = serve()
    with served.client() as client:
        made = client.post("/api/keys", json={"name": "ops", "scope": "admin"}).json()["data"]
        client.headers["X-Api-Key"] = made["key"]
        bad = client.post("/api/keys", json={"name": "bad", "scope": "read"}).json()["data"]
        add_large(client)
        slow = unread(served, bad["key"])
        change(client, 20)  # more than the sockets' buffers hold, less than is too slow
        assert not cut_off(slow, 0)
        assert client.delete(f"/api/keys/{bad['id']}").status_code == 200
        assert cut_off(slow)


def test_streams_leave_half_of_the_connections_to_the_rest(serve: Serve) -> None:
    served = serve(MAX_CONNECTIONS="20")
    told = []
    with ExitStack() as stack:
        for _ in range(30):
            one = stack.enter_context(connected(served))
            one.sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            told.append(one.recv(12))
        with served.client() as client:
            assert client.get("/livez").status_code == 200
    assert told == 10 * [b"HTTP/1.1 200"] + 20 * [b"HTTP/1.1 503"]


def test_the_limits_are_those_that_are_written_down() -> None:
    written = LIMITS.read_text()
    assert f"{Service.max_streams} for each instance, and at most half of" in written
