"""A real HTTP endpoint on loopback, and schedulers that may call it."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mainspring import Run, Scheduler
from mainspring.webhooks import WebhookSettings

ALLOW = WebhookSettings(allow=["127.0.0.1"])


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Request], bytes]
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def response(status: int = 200, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Endpoint:
    """Answers each request with what `answer` makes of it, and remembers all of them."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer: Answer = answer or (lambda request: response())
        self.requests: list[Request] = []
        self.arrived = asyncio.Event()
        self.hold: asyncio.Event | None = None
        self.delay: Callable[[], float] | None = None
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while (request := await read_request(reader)) is not None:
            self.requests.append(request)
            self.arrived.set()
            if self.hold is not None:
                await self.hold.wait()
            if self.delay is not None:
                await asyncio.sleep(self.delay())
            writer.write(self.answer(request))
            await writer.drain()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): text for name, text in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, target, headers, body)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a machine that fails does."""
    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def serving(behaviour: Behaviour, **options: Any) -> AsyncIterator[int]:
    """A server on loopback whose every connection behaves so; gives its port."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            await behaviour(reader, writer)
        writer.close()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def endpoint(answer: Answer | None = None) -> AsyncIterator[Endpoint]:
    made = Endpoint(answer)
    async with serving(made.serve) as made.port:
        yield made


def scheduler(**settings: Any) -> Scheduler:
    settings.setdefault("webhooks", ALLOW)
    return Scheduler(settings.pop("store", "memory://"), **settings)


async def called(
    mainspring: Scheduler, webhook: Any, job: str = "call", payload: Any = None, **policy: Any
) -> Run:
    """The ended run of a new job with this webhook."""
    await mainspring.add_job(job, webhook=webhook, **policy)
    return await call(mainspring, job, payload)


async def call(mainspring: Scheduler, job: str = "call", payload: Any = None) -> Run:
    run = await mainspring.trigger(job, payload)
    return await mainspring.wait(run.id, timeout=60)


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server at localhost proves itself with, and the certificate that shows it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), False)
        .sign(key, hashes.SHA256())
    )
    shown, kept = folder / "cert.pem", folder / "key.pem"
    shown.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    kept.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, kept)
    return context, shown
