"""Bytes after a response, and responses without a request."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import State
from tests.support.webhook_endpoint import endpoint, read_request, response, scheduler, serving

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\n<!-- page made in 3 ms -->",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nokjunk",
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokjunk",
    ],
    ids=range(7),
)
async def test_what_stands_behind_an_answer_does_not_take_it_back(answer: bytes) -> None:
    async with endpoint(lambda request: answer) as made, scheduler() as mainspring:
        await mainspring.add_job("call", webhook=made.url, retries=2, retry_delay="10ms")
        run = await mainspring.wait((await mainspring.trigger("call")).id, timeout=30)
    assert run.state is State.SUCCEEDED
    assert len(made.requests) == 1


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
            run = await mainspring.wait((await mainspring.trigger(name)).id, timeout=30)
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
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()

    async with serving(serve) as port, scheduler() as mainspring:
        await mainspring.add_job("call", webhook=f"http://127.0.0.1:{port}/", timeout="1h")
        run = await mainspring.wait((await mainspring.trigger("call")).id, timeout=30)
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
        await mainspring.add_job("call", webhook=webhook)
        run = await mainspring.wait((await mainspring.trigger("call")).id, timeout=30)
    assert "sent a response that is not valid HTTP" in str(run.error)
    assert "s3cr3t" not in str(run)
