"""What every request must pass before a route sees it: host, origin, key, rate, body.

Plain ASGI, so that bodies are read here, bounded in size and time, and nothing behind it has to
be careful.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.core.clock import Clock
from mainspring.errors import MainspringError
from mainspring.service import problems
from mainspring.service.api_keys import Key, Keys
from mainspring.service.api_keys import Scope as KeyScope
from mainspring.service.problems import Problem
from mainspring.service.settings import ServiceSettings, is_loopback

__all__ = ["Guard", "GuardRules", "Rates"]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN = frozenset({"/", "/livez", "/readyz", "/docs", "/docs.js", "/docs.css", "/openapi.json"})
"""Paths that need no key: they tell nothing of jobs."""

READS = re.compile(r"/api(/v1)?/schedules/preview")
"""What is asked by POST and changes nothing."""

PASSED_ON = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""What a proxy adds: who asked it may be anywhere."""

DRY = re.compile(r"/api(/v1)?/jobs(/[^/]+/trigger)?")
"""What can be asked for as a dry run, by POST."""

BODY_SECONDS = 20.0
AWAY_SECONDS, AWAY_IDLE_SECONDS, AWAY_BYTES = 10.0, 1.0, 64 * 1024 * 1024
FAILED_KEYS_A_MINUTE = 30
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


class GuardRules(Protocol):
    """`loopback`: only this machine connects, so that Host names must be its own (or a proxy's),
    and who asks it by its own needs no key until there is one. `open`: the program that mounts the
    service guards it."""

    loopback: bool
    open: bool

    @property
    def started(self) -> bool: ...


class Rates:
    """A token bucket for each name: `rate` a second, up to `burst` saved."""

    MOST = 10_000

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left: dict[str, tuple[float, float]] = {}

    def _saved(self, name: str, now: float) -> float:
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def take(self, name: str) -> float:
        """Take one; how many seconds to wait where there is none left (0: taken)."""
        now = self._clock.monotonic()
        left = self._saved(name, now)
        wait = max(0.0, (1 - left) / self._rate)
        self._left.pop(name, None)
        self._left[name] = (left if wait else left - 1, now)
        if len(self._left) > self.MOST:  # the one that asked longest ago
            del self._left[next(iter(self._left))]
        return wait


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        rules: GuardRules,
        keys: Keys,
        settings: ServiceSettings,
        clock: Clock,
        answered: Callable[[str, int], None],
    ) -> None:
        self._app = app
        self._answered = answered
        self._rules = rules
        self._keys = keys
        self._limit = settings.body_limit
        self._hosts = settings.hosts
        self._rates = Rates(settings.rate_limit, 2 * settings.rate_limit, clock)
        self._failures = Rates(FAILED_KEYS_A_MINUTE / 60, FAILED_KEYS_A_MINUTE, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: there is none
            await send({"type": "websocket.close", "code": 1008})
            return
        send = self._watched(scope["method"], send)
        try:
            headers = Headers(scope=scope)
            _check_framing(headers)
            self._check_host(headers)
            self._check_origin(headers)
            _check_method(scope)
            self._check_started(scope)
            await self._check_key(scope, headers)
            _check_type(scope["method"], headers)
            _check_dry_run(scope)
            receive = await self._read(scope["method"], headers, receive)
        except Problem as found:
            await _refuse(scope, receive, send, found)
            return
        except MainspringError as error:
            await _refuse(scope, receive, send, problems.of_error(error))
            return
        if scope["method"] == "HEAD":
            scope, receive, send = _as_get(scope, receive, send)
        await self._app(scope, receive, send)

    def _watched(self, method: str, send: Send) -> Send:
        """Every answer gets the security headers, and is counted."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                self._answered(method, message["status"])
            # A request that broke HTTP half way was answered by the server itself.
            with contextlib.suppress(LocalProtocolError):
                await send(message)

        return sending

    def _check_host(self, headers: Headers) -> None:
        """A page elsewhere may have a name that leads to 127.0.0.1; its Host gives it away."""
        name = _host_name(headers.get("host", ""))
        if self._rules.loopback and not is_loopback(name) and name not in self._hosts:
            raise Problem(
                403,
                f"this service listens on loopback only, and {headers.get('host')!r} is no name of"
                " that; ask for localhost or 127.0.0.1, or set ALLOWED_HOSTS for a proxy's name",
            )

    def _check_origin(self, headers: Headers) -> None:
        """A browser says which site's page asks. Pages of other sites may not ask here, but a
        person may follow a link that leads here."""
        if headers.get("sec-fetch-site") == "cross-site":
            follows = headers.get("sec-fetch-mode") == "navigate"
            if not (follows and headers.get("sec-fetch-dest") == "document"):
                raise Problem(
                    403, "cross-site request refused: it comes from a page of another site"
                )
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is None or _place(origin) == _place(f"//{host}"):
            return
        name = (_place(origin) or ("", None))[0]
        if name and name in self._hosts:  # the name under which a proxy serves this API
            return
        advice = (
            f" If {name!r} is the name of a proxy in front of this service, have the proxy pass the"
            f" Host header on unchanged, or set ALLOWED_HOSTS={name}."
            if name
            else ""
        )
        raise Problem(
            403,
            f"cross-site request refused: Origin {origin[:200]!r} is not allowed, because the"
            f" request asks for Host {host[:200]!r}.{advice}",
        )

    def _check_started(self, scope: Scope) -> None:
        """A mounted application's own lifespan is never run: its host has to start it."""
        if not self._rules.started and _path(scope) not in OPEN:
            raise Problem(
                503,
                "the scheduler behind this API is not started: the program that mounts it has to do"
                " that, with `async with scheduler:` in its own lifespan",
                headers={"Retry-After": "5"},
            )

    async def _check_key(self, scope: Scope, headers: Headers) -> None:
        path = _path(scope)
        if path in OPEN or self._rules.open:
            return
        texts = _key_texts(headers)
        if not texts:
            own = self._rules.loopback and _from_here(headers)
            if own and not await self._keys.exist(away=_watches(scope)):
                return
            raise Problem(
                401,
                "give an API key: the header 'Authorization: Bearer ms_…'"
                " (`mainspring keys create` makes one)",
                headers={"WWW-Authenticate": "Bearer"},
            )
        key = await self._known(scope, texts)
        if wait := self._rates.take(key.id):
            raise _slower("this key asks too often", wait)
        needed = _needed(scope["method"], path)
        if not key.allows(needed):
            raise Problem(
                403,
                f"the key {key.name!r} has the scope {key.scope}; this needs {needed}",
                code="scope_too_small",
            )
        scope.setdefault("state", {})["key"] = key

    async def _known(self, scope: Scope, texts: list[str]) -> Key:
        """The first of the texts that is a key. They are checked also after many wrong ones from
        the same address: behind a proxy all clients share one, and somebody who guesses must not
        lock the others out. A secret has 256 random bits, so guessing finds nothing; what is
        limited is only how long a client that guesses gets a plain 401."""
        for text in texts:
            key = await self._keys.check(text, away=_watches(scope))
            if key is not None:
                return key
        client = (scope.get("client") or ("unknown",))[0]
        if wait := self._failures.take(client):
            raise _slower("too many wrong keys from this address", wait)
        raise Problem(
            401,
            "this API key is not known here, or was revoked, or has expired",
            code="key_unknown",
            headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
        )

    async def _read(self, method: str, headers: Headers, receive: Receive) -> Receive:
        """The body, whole, before anything is done with it."""
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit:
            if "expect" not in headers:  # one that asks first has not sent it
                await _read_away(receive)
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return _replay([message], receive)
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._limit:
                        await _read_away(receive)
                        raise self._too_large()
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Problem(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
        body = b"".join(parts)
        if method not in SAFE:  # no route reads the body of a GET
            _check_duplicates(body)
        return _replay([{"type": "http.request", "body": body, "more_body": False}], receive)

    def _too_large(self) -> Problem:
        return Problem(
            413, f"a body has at most {self._limit:,} bytes", headers={"Connection": "close"}
        )


async def _read_away(receive: Receive) -> None:
    """The rest of a body that is too large, as far as that is no burden: who sends all before they
    listen (urllib does) would else see the connection reset, and not why."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(AWAY_SECONDS):
            while size < AWAY_BYTES:
                async with asyncio.timeout(AWAY_IDLE_SECONDS):
                    message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _as_get(scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
    """HEAD is GET without the body. An event stream ends at once, as if its client had gone."""
    asked = False

    async def receiving() -> Message:
        nonlocal asked
        if not asked:
            asked = True
            return await receive()
        return {"type": "http.disconnect"}

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return {**scope, "method": "GET"}, receiving, sending


def _watches(scope: Scope) -> bool:
    """Whether somebody looks how things stand: they shall hear it of a store that is away too."""
    return scope["method"] == "GET" and _path(scope) == "/metrics"


def _needed(method: str, path: str) -> KeyScope:
    if path.startswith(("/api/keys", "/api/v1/keys")):
        return "admin"
    return "read" if method in SAFE or READS.fullmatch(path) else "write"


def _place(url: str) -> tuple[str, int | None] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return (parts.hostname or "", None if port in (80, 443) else port)


def _check_framing(headers: Headers) -> None:
    """Two lengths of one body: a proxy in front may have gone by the other one, and what it takes
    for the rest of the body would be the next request here (request smuggling)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise Problem(
            400,
            "a request has Content-Length or Transfer-Encoding, not both",
            headers={"Connection": "close"},
        )


def _check_method(scope: Scope) -> None:
    """Open paths are only read: who has no key gets no body looked at."""
    path = _path(scope)
    if path in OPEN and scope["method"] not in ("GET", "HEAD"):
        why = f"{path} does not take {scope['method'][:100]}"
        raise Problem(405, why, headers={"Allow": "GET, HEAD"})


def _check_duplicates(body: bytes) -> None:
    """A name that is given twice in one JSON object: of two values one would be dropped."""

    def pairs(found: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in found:
            if name in seen:
                raise Problem.of_field(name[:100], "is given twice in one object: say it once")
            seen.add(name)

    if body.count(b":") > 1:
        with contextlib.suppress(ValueError, RecursionError):  # the route says what is wrong
            json.loads(body, object_pairs_hook=pairs)


def _check_type(method: str, headers: Headers) -> None:
    """JSON only: what a form on another site could send is refused before it is read."""
    if method in SAFE:
        return
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return  # no body, whatever type a client says that it is of (aiohttp and curl do)
    given = headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"a body is application/json, not {given[:100]!r}")


def _check_dry_run(scope: Scope) -> None:
    """Whoever asks for a dry run where there is none, or in another spelling, means no harm:
    nothing may be done."""
    method, path = scope["method"], _path(scope)
    if method in SAFE or not scope.get("query_string"):
        return
    asked = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    for name in asked:
        if name != "dryRun" and re.sub(r"[^a-z]", "", name.lower()) in ("dryrun", "dry"):
            raise Problem.of_field("dryRun", f"is written so, not {name[:100]!r}: nothing was done")
    if method == "POST" and DRY.fullmatch(path):
        return
    if asked.get("dryRun", "false").lower() not in ("false", "0"):
        why = f"is for creating and for triggering a job, not for {method} {path}: nothing was done"
        raise Problem.of_field("dryRun", why)


def _key_texts(headers: Headers) -> list[str]:
    """What may be an API key. `Authorization` may be a proxy's own, beside a key of ours in
    `X-Api-Key`; a scheme that is not ours counts as a wrong key where nothing else is given."""
    texts = []
    if (own := headers.get("x-api-key")) is not None:
        texts.append(own)
    if (given := headers.get("authorization")) is not None:
        scheme, _, text = given.partition(" ")
        if scheme.lower() == "bearer":
            texts.insert(0, text.strip())
        elif not texts:
            texts.append("")
    return texts


def _from_here(headers: Headers) -> bool:
    """Whether who connects from this machine asks for himself, and passes on nobody else."""
    named = is_loopback(_host_name(headers.get("host", "")))
    return named and not any(name in headers for name in PASSED_ON)


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _slower(why: str, wait: float) -> Problem:
    seconds = max(1, round(wait + 0.5))
    return Problem(429, f"{why}: try again in {seconds} s", headers={"Retry-After": str(seconds)})


def _replay(messages: list[Message], receive: Receive) -> Receive:
    waiting = list(messages)

    async def again() -> Message:
        return waiting.pop(0) if waiting else await receive()

    return again


async def _refuse(scope: Scope, receive: Receive, send: Send, found: Problem) -> None:
    await problems.problem(found, _path(scope))(scope, receive, send)
