"""Malformed requests by seed: broken HTTP, broken JSON, wrong values, wrong paths.

`send_malformed_requests` sends them to a service process and returns what was wrong with its
responses. Tests send a few, `chaos/` sends thousands.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import string
from typing import Any
from urllib.parse import quote, urlsplit

FIELDS = (
    *("name", "id", "description", "tags", "schedule", "every", "runAt", "timezone", "jitter"),
    *("endpoint", "method", "headers", "secretHeaders", "body", "successCodes", "retryOn"),
    *("handler", "payload", "executionType", "enabled", "retryAttempts", "retryDelay", "backoff"),
    *("timeout", "priority", "queue", "concurrency", "concurrencyKey", "overlap", "misfire"),
    *("startDeadline", "breaker", "after", "metadata", "action", "ids", "match", "jobs", "count"),
    *("scope", "expiresIn", "limit", "rotateSecret", "__proto__", "$where", "_id"),
)
# No key may be made on the way: the rest would only be told to give one.
PATHS = (
    *(
        "/api/jobs",
        "/api/v1/jobs",
        "/api/v1/jobs/bulk",
        "/api/v1/jobs/known",
        "/api/v1/jobs/known/trigger",
    ),
    *("/api/v1/jobs/known/pause", "/api/v1/runs/bulk", "/api/v1/runs", "/api/v1/runs/none/cancel"),
    *("/api/v1/schedules/preview", "/api/v1/keys/none", "/api/jobs/none/executions"),
    *("/api/observability/failures", "/metrics", "/openapi.json"),
)
QUERIES = ("page", "limit", "cursor", "state", "since", "until", "tag", "search", "dryRun", "job")
TEXTS = (
    *("", "\0", "\ud800", "☃" * 50, "x" * 5000, "../../etc/passwd", "%00", "{{jobId}}", "{{"),
    *("* * * * *", "@every 1ns", "99 * * * * *", "0 0 31 2 *", "R" * 300, "RRULE:FREQ=SECONDLY"),
    *("2026-01-01T00:00:00", "9999-12-31T23:59:59.999999+00:00", "0001-01-01", "PT9999999999H"),
    *("http://127.0.0.1", "https://[::1", "http://a@b", "https://exa mple.org", "file:///etc"),
    *("';DROP TABLE mainspring_jobs;--", '{"$ne": null}', "\r\nX-Evil: 1", "1e999", "NaN", "-1"),
)
NUMBERS = (0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e308, 0.1, 5e-324)


def send_malformed_requests(url: str, seed: int, count: int) -> list[str]:
    """Send so many; what the service did wrong."""
    rng = random.Random(seed)
    wrong: list[str] = []
    for number in range(count):
        send = _raw if rng.random() < 0.15 else _formed
        found = send(url, rng)
        if found is not None:
            wrong.append(f"{number}: {found}")
    return wrong


def _formed(url: str, rng: random.Random) -> str | None:
    """Good HTTP with anything inside."""
    place = urlsplit(url)
    path = (
        rng.choice(PATHS)
        if rng.random() < 0.8
        else "/" + quote(rng.choice(TEXTS), errors="replace")
    )
    if rng.random() < 0.4:
        pairs = [
            f"{rng.choice(QUERIES)}={quote(str(_value(rng, 0)), errors='replace')}"
            for _ in range(rng.randint(1, 3))
        ]
        path = f"{path}?{'&'.join(pairs)[:4000]}"
    body = _body(rng)
    headers = {"Content-Type": "application/json"}
    if rng.random() < 0.1:
        headers["Content-Type"] = rng.choice(["text/plain", "", "application/json;x", "*/*"])
    if rng.random() < 0.1:
        name = rng.choice(["X-Odd", "If-Match", "Idempotency-Key", "Origin", "Host"])
        headers[name] = rng.choice(["", "*", "Bearer x", '"', "x" * 2000, "null"])
    method = rng.choice(["GET", "POST", "PATCH", "DELETE", "PATCH", "HEAD", "BREW"])
    if path.startswith("/api/v1/events"):
        return None
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
    except (http.client.HTTPException, OSError) as error:
        return f"{method} {path[:200]} {body[:200]!r}: {error!r}"
    finally:
        connection.close()
    if answer.status >= 500 or answer.status == 401:
        return f"{method} {path[:200]} {body[:300]!r}: {answer.status} {text[:300]!r}"
    if answer.status >= 400 and method != "HEAD":
        document = json.loads(text)
        if not document.get("code") or not document.get("detail"):
            return f"{method} {path[:200]}: {answer.status} without words"
    return None


def _body(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        text = json.dumps(_object(rng, 0))
        at = rng.randrange(len(text) + 1)
        broken = text[:at] + rng.choice(["", "{", "]", "\\", '"', "\\u12", "nul"]) + text[at + 1 :]
        return broken.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        return rng.choice([b"[" * 20_000, b'{"a":' * 5000, b"9" * 10_000, b"\xff" * 100, b""])
    return json.dumps(_object(rng, 0)).encode("utf-8", "surrogatepass")


def _object(rng: random.Random, depth: int) -> Any:
    names = rng.sample(FIELDS, rng.randint(0, 8))
    made = {name: _value(rng, depth + 1) for name in names}
    if depth == 0 and rng.random() < 0.5:
        made.setdefault("endpoint", "https://a.example/")
        made.setdefault("schedule", "@daily")
    return made


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth < 4 else 4)
    if kind == 0:
        return rng.choice(TEXTS)
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice([None, True, False])
    if kind == 3:
        return "".join(rng.choice(string.printable) for _ in range(rng.randint(0, 30)))
    if kind == 4:
        return [_value(rng, depth + 1) for _ in range(rng.randint(0, 5))]
    return _object(rng, depth + 1)


HEADS = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /\r\n\r\n",
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Content-Length: 6\r\n\r\nxxxxxx",
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100000\r\n\r\n{",
    b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/v1/jobs HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"GET http://evil.example/api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
)


def _raw(url: str, rng: random.Random) -> str | None:
    """What is hardly HTTP; any answer but a 5xx will do, and none at all too."""
    place = urlsplit(url)
    sent = bytearray(rng.choice(HEADS) if rng.random() < 0.8 else rng.randbytes(200))
    for _ in range(rng.choice([0, 0, 1, 3])):
        sent[rng.randrange(len(sent))] = rng.randrange(256)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as line:
        try:
            line.sendall(bytes(sent))
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(65536)
        except OSError:
            return None
    if answer.startswith(b"HTTP/1.1 5"):
        return f"{bytes(sent)[:200]!r}: {answer[:300]!r}"
    return None
