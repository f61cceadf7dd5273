"""The bytes of requests and responses, which connections are reused, and stray responses."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import State
from mainspring.errors import WebhookFailed
from mainspring.webhooks import PreparedRequest
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.request import PartialResponse
from mainspring.webhooks.transport import WebhookClient, _Protocol
from tests.support.webhook_endpoint import (
    Behaviour,
    Request,
    call,
    called,
    read_request,
    reset,
    response,
    scheduler,
    self_signed,
    serving,
)

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
BIG = os.urandom(8_000_000)
"""More than the sockets of both sides hold."""


@asynccontextmanager
async def client() -> AsyncIterator[WebhookClient]:
    made = WebhookClient(AllowList.of(["127.0.0.1"]))
    yield made
    await made.close()


async def asked(
    made: WebhookClient, port: int, body: bytes = b"", method: str = "POST", path: str = "/"
) -> PartialResponse:
    response = PartialResponse()
    request = PreparedRequest(method, f"http://127.0.0.1:{port}{path}", {"X-One": "1"}, body)
    async with asyncio.timeout(20):
        await made.send(request, response)
    return response


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("GET", b"", b""),
        ("HEAD", b"", b""),
        ("OPTIONS", b"", b""),
        ("POST", b"", b"Content-Length: 0\r\n"),
        ("DELETE", b"", b"Content-Length: 0\r\n"),
        ("PURGE", b"", b"Content-Length: 0\r\n"),
        ("GET", b"\xff", b"Content-Length: 1\r\n"),
        ("PUT", b"12345", b"Content-Length: 5\r\n"),
    ],
)
async def test_a_request_as_it_is_sent(method: str, body: bytes, length: bytes) -> None:
    """Nothing is in it that the dry run does not show, but the host and the length."""
    seen = bytearray()

    async def serve(reader: Reader, writer: Writer) -> None:
        seen.extend(await reader.readuntil(b"\r\n\r\n"))
        seen.extend(await reader.readexactly(len(body)))
        writer.write(response(200))
        await writer.drain()

    async with serving(serve) as port, client() as made:
        await asked(made, port, body, method, "/a%20b/?q=%2F&r=1#not-sent")
    line = f"{method} /a%20b/?q=%2F&r=1 HTTP/1.1\r\n".encode()
    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    assert bytes(seen) == line + host + b"X-One: 1\r\n" + length + b"\r\n" + body


async def test_no_header_can_end_a_line() -> None:
    """Definitions are checked; should one come through, nothing of it is sent."""
    async with serving(never) as port, client() as made:
        request = PreparedRequest("GET", f"http://127.0.0.1:{port}/", {"X": "1\r\nY: 2"}, b"")
        with pytest.raises(WebhookFailed):
            await made.send(request, PartialResponse())


async def never(reader: Reader, writer: Writer) -> None:
    assert await reader.read() == b""


async def test_a_body_that_is_read_slowly_arrives_whole() -> None:
    got: list[Request] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(0.2)
        while (request := await read_request(reader)) is not None:
            got.append(request)
            writer.write(response(200))
            await writer.drain()

    async with serving(serve) as port, client() as made:
        assert (await asked(made, port, BIG)).status == 200
        assert (await asked(made, port, b"next")).status == 200
    digests = [hashlib.sha256(request.body).digest() for request in got]
    assert digests == [hashlib.sha256(body).digest() for body in (BIG, b"next")]


async def test_an_answer_that_comes_before_the_body_is_read_counts() -> None:
    """Its connection still has the rest of that body to send: the next request needs another."""
    connections = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(413 if connections == 1 else 200))
        await writer.drain()
        await reader.read()

    async with serving(serve, limit=1_000) as port, client() as made:
        assert (await asked(made, port, BIG)).status == 413
        assert (await asked(made, port)).status == 200
    assert connections == 2


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 1),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 1),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 1),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 3),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 3),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000, 3),
    ],
    ids=range(7),
)
async def test_a_connection_is_used_again_where_it_can_be(answer: bytes, connections: int) -> None:
    seen = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal seen
        seen += 1
        while await read_request(reader) is not None:
            writer.write(answer)
            await writer.drain()

    async with serving(serve) as port, client() as made:
        for _ in range(3):
            assert (await asked(made, port)).status in (200, 204)
    assert seen == connections


@pytest.mark.parametrize("broken", [False, True])
async def test_an_answer_without_a_length_ends_with_its_connection(broken: bool) -> None:
    """Its status stands also when the connection broke; its body is then known to be a part."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await writer.drain()
        await asyncio.sleep(0.05)
        if broken:
            reset(writer)

    async with serving(serve) as port, client() as made:
        response = await asked(made, port)
    assert (response.status, bytes(response.body), response.more) == (200, b"some", broken)


async def test_a_late_response_to_an_aborted_call_is_dropped() -> None:
    arrived = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        first = not arrived.is_set()
        await read_request(reader)
        arrived.set()
        if first:
            await asyncio.sleep(0.1)
        writer.write(response(200, b"first" if first else b"second"))
        await writer.drain()

    async with serving(serve) as port, client() as made:
        call = asyncio.create_task(asked(made, port))
        await arrived.wait()
        call.cancel()
        await asyncio.wait([call])
        assert (await asked(made, port)).body == b"second"
    assert call.cancelled()


async def test_what_cannot_be_read_is_told_in_whole_words() -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        both = "Content-Length: 1\r\nTransfer-Encoding: chunked"
        writer.write(f"HTTP/1.1 200 OK\r\n{both}\r\n\r\n".encode())
        await reader.read()

    async with serving(serve) as port, client() as made:
        with pytest.raises(WebhookFailed, match=r"can't be present with Content-Length$"):
            await asked(made, port)


async def test_a_call_that_is_cut_off_sends_no_more() -> None:
    """And holds neither its socket nor its body until the other side cares to read."""
    begun, over, ended, got = asyncio.Event(), asyncio.Event(), asyncio.Event(), 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await over.wait()
        with suppress(ConnectionError):
            while part := await reader.read(1_000_000):
                got += len(part)
        ended.set()

    async with serving(serve) as port, client() as made:
        call = asyncio.create_task(asked(made, port, BIG))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])
        over.set()
        await ended.wait()
    assert got < len(BIG)


# -- one answer, in whatever parts it comes -------------------------------------------------


class Pipe(asyncio.Transport):
    """The end of a connection that a protocol holds."""

    closing = False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "response", "again"),
    [
        (OK, (200, b"ok"), True),
        (CHUNKED, (200, b"ok"), True),
        (EMPTY, (204, b""), True),
        (b"\r\n\r\n" + OK, (200, b"ok"), True),
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" * 3 + OK, (200, b"ok"), True),
        (OK + b"\n<!-- made in 3 ms -->", (200, b"ok"), False),
        (OK + b"H", (200, b"ok"), False),
        (OK + b"HTTP/1.1 200 OK\r\nContent-Le", (200, b"ok"), False),
        (OK + OK, (200, b"ok"), False),
        (CHUNKED + b"junk", (200, b"ok"), False),
        (CHUNKED + b"HTTP/1.1 200 OK\r\n", (200, b"ok"), False),
        (EMPTY + b"junk", (204, b""), False),
        (b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello", (204, b""), False),
        (b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (204, b""), False),
        (b"HTTP/1.1 200 OK\r\nX: HTTP/1.1 418 no\r\nContent-Length: 0\r\n\r\nX", (200, b""), False),
        (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok!",
            (200, b"ok"),
            False,
        ),
    ],
    ids=range(16),
)
@given(data=st.data())
def test_an_answer_is_the_same_in_whatever_parts_it_comes(
    answer: bytes, response: tuple[int, bytes], again: bool, data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=6))
    places = [0, *sorted(cuts), len(answer)]
    parts = [answer[begin:end] for begin, end in pairwise(places)]

    async def read() -> tuple[int, bytes]:
        protocol, pipe = _Protocol(asyncio.get_running_loop()), Pipe()
        protocol.connection_made(pipe)
        protocol.expect(answer_to="GET")
        for part in parts:
            if not pipe.closing:
                protocol.data_received(part)
        message, content = await protocol.read()
        while message.code == 103:
            message, content = await protocol.read()
        body = await content.read()
        assert (protocol.is_complete and not protocol.should_close and not pipe.closing) is again
        return message.code, body

    assert asyncio.run(read()) == response


# -- over TLS -------------------------------------------------------------------------------


CALLER = """
import asyncio, sys
from mainspring.webhooks import PreparedRequest
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.transport import WebhookClient
from mainspring.webhooks.request import PartialResponse

async def main():
    client = WebhookClient(AllowList.of(["127.0.0.0/8", "::1"]))
    for size in sys.argv[2:]:
        response = PartialResponse()
        await client.send(PreparedRequest("POST", sys.argv[1], {}, bytes(int(size))), response)
        print(response.status, response.body.decode())
    await client.close()

asyncio.run(main())
"""


async def called_over_tls(folder: Path, behaviour: Behaviour, *sizes: int) -> list[str]:
    """What a program says that sends bodies of these sizes. Certificates are checked against those
    that the system trusts, which `SSL_CERT_FILE` names here."""
    context, certificate = self_signed(folder)
    async with serving(behaviour, ssl=context, family=socket.AF_INET) as port:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CALLER,
            f"https://localhost:{port}/",
            *map(str, sizes),
            env={**os.environ, "SSL_CERT_FILE": str(certificate)},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 30)
    return said.decode().splitlines()


async def test_a_server_that_proves_itself_is_called(tmp_path: Path) -> None:
    connections = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal connections
        connections += 1
        while (request := await read_request(reader)) is not None:
            writer.write(response(200, str(len(request.body)).encode()))
            await writer.drain()

    said = await called_over_tls(tmp_path, serve, 3, 5_000, 300_000, 0)
    assert said == ["200 3", "200 5000", "200 300000", "200 0"]
    assert connections == 2, "one is not used again after a body of which nobody knows that it left"


# -- bytes after a response, and responses without a request --------------------------------


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("status", [200, 410])
async def test_an_unrequested_response_is_dropped(status: int, together: bool) -> None:
    """The next job of that host would have it, and its own request would never be sent."""
    stray, closed, seen = response(status, b"forged"), asyncio.Event(), []

    async def serve(reader: Reader, writer: Writer) -> None:
        while (request := await read_request(reader)) is not None:
            seen.append(request.target)
            if request.target == "/one":
                writer.write(response(200, b"one") + (stray if together else b""))
                await writer.drain()
                if not together:
                    await asyncio.sleep(0.05)
                    writer.write(stray)
            else:
                writer.write(response(200, b"two"))
            await writer.drain()
        closed.set()

    async with serving(serve) as port, scheduler() as mainspring:
        answers = []
        for name in ("one", "two"):
            webhook = {"url": f"http://127.0.0.1:{port}/{name}", "body": {"for": name}}
            await mainspring.add_job(name, webhook=webhook)
            run = await call(mainspring, name)
            answers.append(run.attempts[0].detail["response"]["body"])
            if name == "one":
                await asyncio.wait_for(closed.wait(), 10)  # what was sent unasked closed it
        assert (await mainspring.get_job("two")).enabled
    assert (answers, seen) == (["one", "two"], ["/one", "/two"])


@pytest.mark.parametrize("rest", [b"zz\r\n", b"5\r\nhelloxx", b"0\r\nno trailer\r\n\r\n"])
async def test_broken_chunks_are_told_at_once(rest: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        for part in (head, rest):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.5)  # the client reads the parts one by one, even if it is slow
        await asyncio.Event().wait()

    async with serving(serve) as port, scheduler() as mainspring:
        run = await called(mainspring, f"http://127.0.0.1:{port}/", timeout="1h")
    assert run.state is State.FAILED
    assert "broke inside" in str(run.error)
    assert run.attempts[0].detail["response"]["body"].startswith("hello")


async def test_a_secret_that_is_quoted_in_part_is_not_told() -> None:
    secret = "s3cr3t-token-" * 40

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nX-Echo: " + secret.encode() * 40 + b"\r\n\r\n")
        await writer.drain()
        await asyncio.Event().wait()

    async with serving(serve) as port, scheduler() as mainspring:
        webhook = {"url": f"http://127.0.0.1:{port}/", "headers": {"X-Api-Key": secret}}
        run = await called(mainspring, webhook)
    assert "sent a response that is not valid HTTP" in str(run.error)
    assert "s3cr3t" not in str(run)
