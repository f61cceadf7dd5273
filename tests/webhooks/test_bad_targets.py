"""Hostile endpoints: each frees its slot in time and costs little memory.

Real sockets on loopback. The bounds are those of the contract: timeout + 1 s, 10 MB.
"""

from __future__ import annotations

import asyncio
import gzip
import sys
from functools import cache
from pathlib import Path

import pytest

from mainspring import Run, Scheduler, State
from mainspring.webhooks import PreparedRequest
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.request import PartialResponse
from mainspring.webhooks.transport import WebhookClient
from tests.support.webhook_endpoint import (
    Behaviour,
    endpoint,
    read_request,
    reset,
    scheduler,
    self_signed,
    serving,
)

TIMEOUT = 1.0
LONG = 20.0
"""Seconds that an attempt takes at most on a busy machine: it would take for ever."""
Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


@cache
def gzip_bomb() -> bytes:
    return gzip.compress(bytes(200_000_000), 9)


@pytest.fixture(scope="module", autouse=True)
def _made_before_it_is_needed() -> None:
    gzip_bomb()


async def silent(reader: Reader, writer: Writer) -> None:
    await asyncio.Event().wait()


async def dripping_headers(reader: Reader, writer: Writer) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def dripping_body(reader: Reader, writer: Writer) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\nbegun")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


def endless(name: str, head: bytes, piece: bytes) -> Behaviour:
    """An endpoint that sends a beginning, and then the same piece without end."""

    async def behave(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(head)
        await flood(writer, piece)

    behave.__name__ = f"endless_{name}"
    return behave


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
FILL = b"x" * 65_536
HEADER = b"X-Pad: " + b"x" * 8_000 + b"\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"

endless_body = endless("body", OK + b"\r\n", FILL)
endless_chunks = endless("chunks", CHUNKED, (b"40\r\n" + b"x" * 64 + b"\r\n") * 1_000)
endless_chunk_extension = endless("chunk_extension", CHUNKED + b"1;", FILL)
endless_headers = endless("headers", OK, HEADER)
endless_header = endless("header", OK + b"X-Pad: ", FILL)
endless_status = endless("status", b"HTTP/1.1 200 ", FILL)
endless_interim = endless("interim", b"", HINT * 500)
endless_trailers = endless("trailers", CHUNKED + b"0\r\n", HEADER)


async def resetting(reader: Reader, writer: Writer) -> None:
    await read_request(reader)
    reset(writer)


async def resetting_in_the_body(reader: Reader, writer: Writer) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegun")
    await writer.drain()
    await asyncio.sleep(0.05)
    reset(writer)


async def closing(reader: Reader, writer: Writer) -> None:
    await read_request(reader)


async def no_http(reader: Reader, writer: Writer) -> None:
    await read_request(reader)
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    await writer.drain()


async def bomb(reader: Reader, writer: Writer) -> None:
    await read_request(reader)
    body = gzip_bomb()
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    await asyncio.Event().wait()


async def flood(writer: Writer, block: bytes) -> None:
    while True:
        writer.write(block)
        await writer.drain()


async def called(
    mainspring: Scheduler, url: str, timeout: float = TIMEOUT, job: str = "bad"
) -> Run:
    await mainspring.add_job(job, webhook=url, timeout=timeout)
    run = await mainspring.trigger(job)
    return await mainspring.wait(run.id, timeout=60)


def peak_since(mark: int | None = None) -> int:
    """Bytes of memory at most in use since the last call of this (Linux counts them)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    names = {"VmRSS:": 0, "VmHWM:": 0}
    for line in lines:
        name, *rest = line.split()
        if name in names:
            names[name] = int(rest[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    return names["VmRSS:"] if mark is None else names["VmHWM:"] - mark


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by /proc")
@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (silent, "did not answer within"),
        (dripping_headers, "did not answer within"),
        (dripping_body, "did not answer within"),
        (endless_interim, "too many interim answers"),
        (endless_trailers, None),
        (endless_chunk_extension, None),
        (endless_headers, "sent a response that is not valid HTTP"),
        (endless_header, "sent a response that is not valid HTTP"),
        (endless_status, "sent a response that is not valid HTTP"),
        (no_http, "sent a response that is not valid HTTP"),
        (resetting, "the connection to 127.0.0.1 broke"),
        (resetting_in_the_body, "broke"),
        (closing, "closed the connection without an answer"),
        (endless_body, ""),
        (endless_chunks, ""),
        (bomb, ""),
    ],
)
async def test_a_bad_endpoint_frees_its_place_and_costs_little(
    behaviour: Behaviour, error: str | None
) -> None:
    async with endpoint() as good, serving(behaviour) as port, scheduler(workers=1) as mainspring:
        await called(mainspring, good.url, job="warm")
        before = peak_since()
        run = await called(mainspring, f"http://127.0.0.1:{port}/")
        cost = peak_since(before)
        after = await called(mainspring, good.url, job="after")
    attempt = run.attempts[0]
    assert (attempt.finished_at - attempt.started_at).total_seconds() < LONG
    assert cost < 30_000_000  # what they send is endless, or 200 MB
    assert after.state is State.SUCCEEDED
    if error == "":
        assert run.state is State.SUCCEEDED
        assert attempt.detail["response"]["truncated"] is True
    else:
        assert run.state is State.FAILED
        assert error is None or error in str(run.error)


async def test_no_more_than_64_kib_are_read() -> None:
    client, response = WebhookClient(AllowList.of(["127.0.0.1"])), PartialResponse()
    async with serving(endless_body) as port:
        request = PreparedRequest("GET", f"http://127.0.0.1:{port}/", {}, b"")
        await client.send(request, response)
        await client.close()
    assert (response.status, len(response.body), response.more) == (200, 65_536, True)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
@pytest.mark.parametrize("ending", [closing, resetting])
async def test_one_attempt_sends_one_request(method: str, ending: Behaviour) -> None:
    """aiohttp sends again by itself what it takes for harmless; a job that may be called once at
    most, or that counts its tries, does not."""
    seen = 0

    async def counted(reader: Reader, writer: Writer) -> None:
        nonlocal seen
        if (await reader.read(1)) == method[:1].encode():
            seen += 1
        await ending(reader, writer)

    async with serving(counted) as port, scheduler() as mainspring:
        webhook = {"url": f"http://127.0.0.1:{port}/", "method": method}
        await mainspring.add_job("once", webhook=webhook, delivery="at_most_once")
        run = await mainspring.wait((await mainspring.enqueue("once")).id, timeout=10)
    assert (run.state, seen) == (State.FAILED, 1)


async def test_what_came_of_a_slow_answer_is_kept() -> None:
    async with serving(dripping_body) as port, scheduler() as mainspring:
        run = await called(mainspring, f"http://127.0.0.1:{port}/")
    answer = run.attempts[0].detail["response"]
    assert answer["status"] == 200
    assert answer["body"].startswith("begunx")
    assert answer["truncated"] is True


async def test_a_compressed_answer_is_kept_as_it_came() -> None:
    async with serving(bomb) as port, scheduler() as mainspring:
        run = await called(mainspring, f"http://127.0.0.1:{port}/")
    answer = run.attempts[0].detail["response"]
    assert answer["encoding"] == "base64"
    assert answer["body"].startswith("H4sI")
    assert len(answer["body"]) < 22_000


async def test_a_refused_connection_fails_the_attempt() -> None:
    async with serving(silent) as port:
        pass
    async with scheduler() as mainspring:
        run = await called(mainspring, f"http://127.0.0.1:{port}/")
    assert str(run.error).endswith(f"no connection to 127.0.0.1:{port}: Connection refused")
    assert run.attempts[0].traceback is None


async def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    asked = []

    async def listening(reader: Reader, writer: Writer) -> None:
        asked.append(await read_request(reader))

    context, _ = self_signed(tmp_path)
    async with serving(listening, ssl=context) as port, scheduler() as mainspring:
        run = await called(mainspring, f"https://127.0.0.1:{port}/")
    assert run.state is State.FAILED
    assert "no secure connection to 127.0.0.1" in str(run.error)
    assert "certificate verify failed" in str(run.error)
    assert asked in ([], [None]), "nothing was sent over it"
