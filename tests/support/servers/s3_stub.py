"""A small server that speaks enough S3 to misbehave on purpose. What behaves is SeaweedFS.

It ignores conditions, lets two writers win, fails with any status before or after a write, and has
a clock that is off: real servers cannot be made to do that.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import formatdate
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from tests.support.servers.server import TIMEOUT
from tests.support.startable import Startable

__all__ = ["Conditions", "Fault", "S3Stub"]


class Conditions(Enum):
    OBEYED = "obeyed"
    IGNORED = "ignored"
    ONLY_CREATE = "it knows If-None-Match and ignores If-Match"
    RACY = "two writers that come at once both win"


class Fault(msgspec.Struct, frozen=True):
    """An answer in place of the right one. `done`: the request is done all the same. `status=0`:
    the connection is closed without an answer."""

    status: int
    code: str = "Fault"
    message: str = "on purpose"
    done: bool = False


class S3Stub(Startable):
    """One bucket, whatever its name is. Use it as a context."""

    def __init__(self, conditions: Conditions = Conditions.OBEYED) -> None:
        self.conditions = conditions
        self.objects: dict[str, bytes] = {}
        self.faults: dict[str, deque[Fault]] = {}
        """The next faults, by method."""
        self.clock: Callable[[], float] = time.time
        self.headers: dict[str, str] = {}
        """Sent with every answer; `date` is left out where it is empty."""
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []
        self.guard = threading.Lock()
        self.meeting = threading.Barrier(2)

    def start(self) -> Self:
        handler = type("Handler", (_Handler,), {"server_stub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def fail(self, method: str, *faults: Fault) -> None:
        self.faults.setdefault(method, deque()).extend(faults)

    def etag(self, key: str) -> str | None:
        data = self.objects.get(key)
        return None if data is None else f'"{hashlib.md5(data).hexdigest()}"'

    def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> str | None:
        """The new entity tag, or None where the condition failed."""
        with self.guard:
            allowed = self._allows(key, headers)
        if self.conditions is Conditions.RACY and allowed and self._is_conditional(headers):
            try:
                self.meeting.wait(0.3)  # for a second writer that passed the check, too
            except threading.BrokenBarrierError:
                self.meeting.reset()
        with self.guard:
            if self.conditions is not Conditions.RACY:
                allowed = self._allows(key, headers)
            if not allowed:
                return None
            self.objects[key] = data
            return self.etag(key)

    def _is_conditional(self, headers: Mapping[str, str]) -> bool:
        return "if-match" in headers or "if-none-match" in headers

    def _allows(self, key: str, headers: Mapping[str, str]) -> bool:
        if self.conditions is Conditions.IGNORED:
            return True
        if headers.get("if-none-match") == "*" and key in self.objects:
            return False
        if self.conditions is Conditions.ONLY_CREATE:
            return True
        return "if-match" not in headers or headers["if-match"] == self.etag(key)


class _Handler(BaseHTTPRequestHandler):
    server_stub: S3Stub
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def handle_request(self) -> None:
        stub = self.server_stub
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        stub.requests.append((self.command, self.path, headers))
        waiting = stub.faults.get(self.command)
        fault = waiting.popleft() if waiting else None
        if fault is None or fault.done:
            status, more, answer = self._do(body, headers)
        if fault is not None:
            if fault.status == 0:
                self.close_connection = True
                return
            text = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
            status, more, answer = fault.status, {}, text.encode()
        self._answer(status, more, answer)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_request  # noqa: N815

    def _do(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        stub = self.server_stub
        parts = urlsplit(self.path)
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        match self.command:
            case "PUT":
                etag = stub.put(key, body, headers)
                return (
                    (412, {}, _error("PreconditionFailed"))
                    if etag is None
                    else (
                        200,
                        {"ETag": etag},
                        b"",
                    )
                )
            case "POST":
                names = re.findall(r"<Key>([^<]*)</Key>", body.decode())
                for name in names:
                    stub.objects.pop(name, None)
                told = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
                return 200, {}, f"<DeleteResult>{told}</DeleteResult>".encode()
            case "DELETE":
                stub.objects.pop(key, None)
                return 204, {}, b""
            case "GET" if not key:
                return 200, {}, self._list(parse_qs(parts.query))
        found = stub.objects.get(key)
        if found is None:
            return 404, {}, _error("NoSuchKey")
        etag = stub.etag(key)
        if headers.get("if-none-match") == etag:
            return 304, {}, b""
        return 200, {"ETag": str(etag), "Last-Modified": formatdate(usegmt=True)}, found

    def _list(self, query: Mapping[str, list[str]]) -> bytes:
        stub = self.server_stub
        prefix = query.get("prefix", [""])[0]
        after = query.get("start-after", [""])[0]
        found = sorted(key for key in stub.objects if key.startswith(prefix) and key > after)
        items = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>x</ETag><Size>{len(stub.objects[key])}</Size></Contents>"
            for key in found
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        return text.encode()

    def _answer(self, status: int, more: Mapping[str, str], body: bytes) -> None:
        stub = self.server_stub
        self.send_response_only(status)
        headers = {"Date": formatdate(stub.clock(), usegmt=True), **more, **stub.headers}
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != 304:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing on the screen."""


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as S3 says it</Message></Error>".encode()
