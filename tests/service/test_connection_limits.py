"""Connections that wait for their client: how long each may wait, and how many there may be."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.raw_connection import connected, read_to
from tests.support.service import LONG, Serve, ServiceProcess

HEAD = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
OK = b'{"status":"ok"}'
SLOW_BODY = (
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000\r\n\r\n{"
)


def ends(one: socket.socket) -> bool:
    """Whether the next thing that comes is the end."""
    try:
        return one.recv(65536) == b""
    except ConnectionError:
        return True


def ended(one: socket.socket) -> bool:
    return bool(select.select([one], [], [], 0)[0]) and ends(one)


def trickle(one: socket.socket, until: float) -> bool:
    """A header that never ends, a few bytes at a time: whether it was cut off."""
    while time.monotonic() < until:
        try:
            one.sendall(b"X-")
        except ConnectionError:
            return True
        if ended(one):
            return True
        time.sleep(0.02)
    return False


def silent(one: socket.socket) -> None: ...


def half_a_line(one: socket.socket) -> None:
    one.sendall(b"GET /li")


def half_a_head(one: socket.socket) -> None:
    one.sendall(HEAD)


def one_and_a_half(one: socket.socket) -> None:
    one.sendall(HEAD + b"\r\n")
    read_to(one, OK)
    one.sendall(HEAD)


def unasked_body(one: socket.socket) -> None:
    """It was refused before its body was read; the body comes on."""
    one.sendall(SLOW_BODY.replace(b"127.0.0.1", b"elsewhere"))
    read_to(one, b'"instance":"/api/v1/jobs"}')


@pytest.mark.parametrize("begin", [silent, half_a_line, half_a_head, one_and_a_half, unasked_body])
def test_a_connection_that_brings_no_request_is_closed(
    serve: Serve, begin: Callable[[socket.socket], None]
) -> None:
    served = serve(HEADER_TIMEOUT="2000")
    with ExitStack() as stack:
        connections = []
        for _ in range(2):
            one = stack.enter_context(connected(served))
            begin(one)  # at once: a busy machine may need long for the answer to the other one
            connections.append(one)
        still, moving = connections
        assert trickle(moving, time.monotonic() + LONG)
        assert ends(still)
    with served.client() as client:
        assert client.get("/livez").status_code == 200


def test_a_response_may_take_longer_than_the_header_timeout(serve: Serve) -> None:
    served = serve(HEADER_TIMEOUT="1500")
    with connected(served) as stream, ExitStack() as stack:
        stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        other = stack.enter_context(connected(served))
        other.sendall(SLOW_BODY)  # its head has come: the body has a time of its own
        read_to(stream, b"retry: 2000")
        with connected(served) as late:
            assert ends(late)  # so long is over
        assert not ended(stream)
        assert not ended(other)


def test_a_connection_that_keeps_sending_requests_outlives_the_header_timeout(serve: Serve) -> None:
    served = serve(HEADER_TIMEOUT="2000")
    with connected(served) as one:
        ends_at = time.monotonic() + 3
        while time.monotonic() < ends_at:
            one.sendall(HEAD + b"\r\n")
            read_to(one, OK)
            time.sleep(0.02)
        one.sendall(2 * (HEAD + b"\r\n"))  # both at once
        read_to(one, OK, times=2)
        assert not ended(one)


@pytest.mark.parametrize("sent", [HEAD, SLOW_BODY], ids=["head", "body"])
def test_idle_connections_beyond_the_limit_are_closed_oldest_first(
    serve: Serve, sent: bytes
) -> None:
    served = serve(HEADER_TIMEOUT="600000", MAX_CONNECTIONS="20")
    with served.client() as client, ExitStack() as stack:
        crowd = []
        for n in range(100):
            one = stack.enter_context(connected(served))
            one.sendall(sent)
            crowd.append(one)
            if n % 10 == 0:
                assert client.get("/livez", headers={"Connection": "close"}).status_code == 200
        assert client.get("/readyz").status_code == 200
        assert all(ends(one) for one in crowd[:80])  # who came first has to go first
        assert not any(ended(one) for one in crowd[90:])


def connected_without_reading(served: ServiceProcess, stack: ExitStack) -> socket.socket:
    """A client that asks for more than the system buffers, and reads none of it."""
    parts = urlsplit(served.url)
    one = stack.enter_context(socket.socket())
    one.settimeout(LONG)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect((parts.hostname, parts.port))
    one.sendall(60 * b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return one


def one_is_reset(connections: list[socket.socket]) -> bool:
    """Whether the service aborted one: nothing is read, so only an error or a hangup is seen."""
    poll = select.poll()
    for one in connections:
        poll.register(one, 0)
    return bool(poll.poll(LONG * 1000))


def test_a_client_that_reads_nothing_is_cut_off(serve: Serve) -> None:
    served = serve(HEADER_TIMEOUT="1000")
    with ExitStack() as stack:
        assert one_is_reset([connected_without_reading(served, stack)])


def test_a_client_that_reads_slowly_gets_its_whole_answer(serve: Serve) -> None:
    served = serve(HEADER_TIMEOUT="1000")
    with ExitStack() as stack:
        one = connected_without_reading(served, stack)
        ends_at = time.monotonic() + 3
        answers, rest = 0, b""
        while answers < 60:
            more = one.recv(65536)
            assert more
            answers += (rest + more).count(b'"openapi":') - rest.count(b'"openapi":')
            rest = more[-20:]  # the word may lie in two parts
            if time.monotonic() < ends_at:
                time.sleep(0.1)


def test_clients_that_read_nothing_do_not_keep_others_out(serve: Serve) -> None:
    served = serve(HEADER_TIMEOUT="600000", MAX_CONNECTIONS="10")
    with served.client() as client, ExitStack() as stack:
        for _ in range(10):
            connected_without_reading(served, stack)
        ends_at = time.monotonic() + LONG
        answers: list[int] = []
        # As long as the service is busy with their requests, it has to refuse others.
        while len(answers) < 5:
            assert time.monotonic() < ends_at, "others are kept out"
            with suppress(httpx.TransportError):
                answers.append(client.get("/livez", headers={"Connection": "close"}).status_code)
        assert set(answers) == {200}


def test_headers_above_the_limit_are_refused_also_when_they_arrive_at_once(serve: Serve) -> None:
    served = serve()
    with connected(served) as one:
        one.sendall(HEAD + b"X: " + 20_000 * b"a" + b"\r\n\r\n")
        read_to(one, b"more than 16384 bytes")
    with connected(served) as one:
        one.sendall(HEAD + b"X: " + 16_000 * b"a" + b"\r\n\r\n")
        read_to(one, OK)
