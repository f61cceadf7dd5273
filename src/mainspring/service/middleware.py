"""The checks that every request passes before a route sees it: host, origin, key, rate, body.

It is plain ASGI: the body is read here, within limits of size and time, so no route has to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.core.clock import Clock
from mainspring.errors import MainspringError
from mainspring.service.api_keys import Key
from mainspring.service.api_keys import Scope as KeyScope
from mainspring.service.dependencies import SAFE_METHODS, Service
from mainspring.service.problems import (
    ApiError,
    FieldError,
    from_library_error,
    local_path,
    problem_response,
    wants_page,
)
from mainspring.service.sessions import session_cookie
from mainspring.service.settings import is_loopback
from mainspring.stores.url_redaction import without_password

__all__ = ["RateLimiter", "RequestChecks"]

log = logging.getLogger("mainspring.service")

OPEN_PATHS = frozenset(
    {
        *("/livez", "/readyz", "/docs", "/docs.js", "/docs.css", "/openapi.json"),
        *("/sign-in", "/favicon.ico"),
    }
)
"""Paths that need no key: they show nothing of jobs."""

ASSETS = "/assets/"
"""Where the files of the pages are. They need no key."""

ADMIN_PATHS = ("/api/keys", "/api/v1/keys", "/api/v1/audit", "/keys", "/audit")
"""Where a key of the scope admin is needed."""

READ_ONLY_POSTS = re.compile(r"/api(/v1)?/schedules/preview")
"""POST requests that change nothing, for which a key of the scope read is enough."""

SESSION = "/api/v1/session"
"""Every key may sign in and out."""

PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers that a proxy adds: its client may be on any machine."""

DRY_RUN_PATHS = re.compile(r"/api(/v1)?/jobs(/prune-orphans|/[^/]+/(trigger|backfill))?")
"""POST requests that have a dry run."""

DRY_RUN_VALUES = {"true": True, "1": True, "false": False, "0": False}

BODY_SECONDS = 20.0
DISCARD_SECONDS, DISCARD_IDLE_SECONDS, DISCARD_BYTES = 10.0, 1.0, 64 * 1024 * 1024
"""How much of a body that is too large is read and thrown away."""
WRONG_KEYS_A_MINUTE = 30
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


class RateLimiter:
    """A token bucket for each name: `rate` tokens a second, and up to `burst` saved."""

    MAX_NAMES = 10_000

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left: dict[str, tuple[float, float]] = {}

    def _tokens(self, name: str, now: float) -> float:
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def take(self, name: str) -> float:
        """Take a token. Returns 0, or if none is left how many seconds to wait for the next."""
        now = self._clock.monotonic()
        left = self._tokens(name, now)
        wait = max(0.0, (1 - left) / self._rate)
        self._left.pop(name, None)
        self._left[name] = (left if wait else left - 1, now)
        if len(self._left) > self.MAX_NAMES:  # the name that was used longest ago
            del self._left[next(iter(self._left))]
        return wait


class RequestChecks:
    """The middleware: runs the checks in order, and answers with a problem if one fails."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        settings, clock, url = service.settings, service.clock, service.client.url
        self._limit = settings.body_limit
        self._hosts = settings.hosts
        self._rates = RateLimiter(settings.rate_limit, 2 * settings.rate_limit, clock)
        self._wrong_keys = RateLimiter(WRONG_KEYS_A_MINUTE / 60, WRONG_KEYS_A_MINUTE, clock)
        self._wrong_key_logs = RateLimiter(1 / 60, 1, clock)
        self._store_name = "the store" if url is None else without_password(url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the service has no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        send = self._with_headers_metrics_and_audit(scope, send)
        try:
            receive = await self._check(scope, receive)
        except (ApiError, MainspringError) as error:
            found = error if isinstance(error, ApiError) else from_library_error(error)
            await self._refusal(scope, found)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, receive, send = _as_get(scope, receive, send)
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, error: ApiError) -> Response:
        """A page for a browser that asked for one, else a problem document."""
        make_page, request = self._service.error_page, Request(scope)
        if make_page is not None and wants_page(request):
            return make_page(request, error)
        return problem_response(error, scope)

    async def _check(self, scope: Scope, receive: Receive) -> Receive:
        """Run every check. Returns a `receive` that gives the body, which has been read."""
        headers = Headers(scope=scope)
        _check_framing(headers)
        self._check_host(headers)
        self._check_origin(headers)
        _check_open_path_method(scope)
        self._check_started(scope)
        await self._check_key(scope, headers)
        _check_content_type(scope["method"], headers)
        scope.setdefault("state", {})["dry_run"] = _read_dry_run(scope)
        body, last = await self._read_body(headers, receive)
        if scope["method"] not in SAFE_METHODS:  # no route reads the body of a GET
            check_duplicate_names(body)
        return _replay(last or {"type": "http.request", "body": body, "more_body": False}, receive)

    def _with_headers_metrics_and_audit(self, scope: Scope, send: Send) -> Send:
        """Add the security headers to the answer, count it, and log it if it changed something."""
        method = scope["method"]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                self._service.metrics.count_response(method, message["status"])
                if _is_change(scope) and message["status"] < 400:
                    client = (scope.get("client") or ("",))[0]
                    state = scope.get("state", {})
                    self._service.audit.record(
                        state.get("key"),
                        client,
                        method,
                        local_path(scope),
                        message["status"],
                        state.get("created", ""),
                    )
            # The server itself has answered a request that broke HTTP half way.
            with contextlib.suppress(LocalProtocolError):
                await send(message)

        return sending

    def _check_host(self, headers: Headers) -> None:
        """Refuse requests whose Host is another name: a page of another site can have a DNS name
        that resolves to 127.0.0.1, and its requests carry that name."""
        name = _host_name(headers.get("host", ""))
        if self._service.loopback and not is_loopback(name) and name not in self._hosts:
            raise ApiError(
                403,
                f"Host {headers.get('host')!r} is not allowed: this service listens on loopback."
                " Use localhost or 127.0.0.1, or set ALLOWED_HOSTS to the name of a proxy",
            )

    def _check_origin(self, headers: Headers) -> None:
        """Refuse requests that pages of other sites make in a browser; following a link is
        allowed."""
        if headers.get("sec-fetch-site") == "cross-site":
            navigates = headers.get("sec-fetch-mode") == "navigate"
            if not (navigates and headers.get("sec-fetch-dest") == "document"):
                raise ApiError(
                    403,
                    "cross-site request refused: Sec-Fetch-Site is 'cross-site'. Call the API from"
                    " a program, or from a page of this service",
                )
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is None or _host_and_port(origin) == _host_and_port(f"//{host}"):
            return
        name = (_host_and_port(origin) or ("", None))[0]
        if name and name in self._hosts:  # the name under which a proxy serves this API
            return
        advice = (
            f" If {name!r} is the name of a proxy in front of this service, have the proxy pass the"
            f" Host header on unchanged, or set ALLOWED_HOSTS={name}."
            if name
            else ""
        )
        raise ApiError(
            403,
            f"cross-site request refused: Origin {origin[:200]!r} is not allowed, because the"
            f" request is for Host {host[:200]!r}.{advice}",
        )

    def _check_started(self, scope: Scope) -> None:
        """Refuse requests until the scheduler is started. Nobody runs the lifespan of a mounted
        application: the program that mounts it has to start the scheduler."""
        if not self._service.started and not _is_open(local_path(scope)):
            raise ApiError(
                503,
                "the scheduler of this API is not started: the program that mounts it has to start"
                " it, with `async with scheduler:` in its own lifespan",
                headers={"Retry-After": "5"},
            )

    async def _check_key(self, scope: Scope, headers: Headers) -> None:
        path = local_path(scope)
        if _is_open(path) or self._service.without_keys:
            return
        key = await self._key_of(scope, headers)
        if key is None:
            return
        if wait := self._rates.take(key.id):
            raise _too_many("this key makes too many requests", wait)
        needed = _needed_scope(scope["method"], path)
        if not key.allows(needed):
            raise ApiError(
                403,
                f"the key {key.name!r} has the scope {key.scope}, and this request needs {needed}:"
                f" use a key that has it (`mainspring keys create NAME --scope {needed}`)",
                code="scope_too_small",
            )
        scope.setdefault("state", {})["key"] = key

    async def _key_of(self, scope: Scope, headers: Headers) -> Key | None:
        """The key that the request is made with: by a header, else by the cookie of a session. None
        where no key is needed."""
        texts, cookie = _key_texts(headers), session_cookie(headers)
        if texts and (cookie is None or texts != [""]):  # a proxy may use another scheme for itself
            return await self._find_key(scope, texts, headers)
        local = self._service.loopback and _is_local(headers)
        if local and not await self._service.keys.any_exists(cached_if_away=_is_scrape(scope)):
            return None
        key = None if cookie is None else await self._service.sessions.key(cookie)
        if key is None:
            if cookie is not None:
                self._count_wrong_key(scope)
            raise ApiError(
                401,
                "this request needs an API key: send the header 'Authorization: Bearer ms_…'"
                " (`mainspring keys create` makes a key)",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] not in SAFE_METHODS:
            _check_same_origin(headers)
        scope.setdefault("state", {})["by_session"] = True
        return key

    async def _find_key(self, scope: Scope, texts: list[str], headers: Headers) -> Key:
        """The first of the texts that is a valid key.

        They are checked also after many wrong keys from the same address: behind a proxy all
        clients share one address, and one that guesses must not lock out the others. Guessing finds
        nothing, because a secret has 256 random bits; after many wrong keys the answer is 429."""
        for text in texts:
            key = await self._service.keys.check(text, cached_if_away=_is_scrape(scope))
            if key is not None:
                return key
        self._count_wrong_key(scope)
        given = headers.get("authorization", "").lower()
        if texts == [""] and given and not given.startswith("bearer"):
            raise ApiError(
                401,
                "the header Authorization does not begin with 'Bearer': send the key as"
                " 'Authorization: Bearer ms_…'",
                headers={"WWW-Authenticate": "Bearer"},
            )
        self._log_wrong_key()
        raise ApiError(
            401,
            "this API key is unknown, revoked or expired: `mainspring keys list` shows the keys,"
            " `mainspring keys create NAME` makes one",
            code="key_unknown",
            headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
        )

    def _count_wrong_key(self, scope: Scope) -> None:
        """Count a key or a session that is not valid. Refuse the request if there were many."""
        client = (scope.get("client") or ("unknown",))[0]
        if wait := self._wrong_keys.take(client):
            raise _too_many("too many wrong keys came from this address", wait)

    def _log_wrong_key(self) -> None:
        """Say which store has no such key, at most once a minute. The client must not learn it."""
        if not self._wrong_key_logs.take(""):
            log.warning(
                "refused a request: %s has no such API key, or the key is revoked or expired. A key"
                " belongs to the store in which it was created; `mainspring keys list` lists the"
                " keys of a store",
                self._store_name,
            )

    async def _read_body(self, headers: Headers, receive: Receive) -> tuple[bytes, Message | None]:
        """The whole body. If the client disconnects meanwhile, also the message that says so."""
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._limit:
            if "expect" not in headers:  # with Expect the client has not sent the body yet
                await _discard(receive)
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return b"", message
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._limit:
                        await _discard(receive)
                        raise self._too_large()
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:.0f} s") from None
        return b"".join(parts), None

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"a body may have at most {self._limit:,} bytes", headers={"Connection": "close"}
        )


async def _discard(receive: Receive) -> None:
    """Read the rest of a body that is too large, within limits. A client that sends everything
    before it reads (as urllib does) would otherwise see a reset connection and no reason."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while size < DISCARD_BYTES:
                async with asyncio.timeout(DISCARD_IDLE_SECONDS):
                    message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _as_get(scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
    """Answer HEAD as GET without the body. An event stream ends at once, as if the client had
    disconnected."""
    received = False

    async def receiving() -> Message:
        nonlocal received
        if not received:
            received = True
            return await receive()
        return {"type": "http.disconnect"}

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return {**scope, "method": "GET"}, receiving, sending


def _is_scrape(scope: Scope) -> bool:
    """Whether this is a scrape of the metrics, which is answered also while the store is away."""
    return scope["method"] == "GET" and local_path(scope) == "/metrics"


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(ASSETS)


def _check_same_origin(headers: Headers) -> None:
    """A browser sends the cookie of a session by itself. So a change needs a sign that one of our
    own pages asks for it: every browser sends Origin, which was compared before, or
    Sec-Fetch-Site. The cookie's SameSite=Strict forbids the same, in browsers that know it."""
    if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
        raise ApiError(
            403,
            "cross-site request refused: a change that a session's cookie allows must come from a"
            " page of this service; programs send the header 'Authorization: Bearer ms_…'",
        )


def _is_change(scope: Scope) -> bool:
    """Whether the request changes something, if it is done."""
    if scope["method"] in SAFE_METHODS or READ_ONLY_POSTS.fullmatch(local_path(scope)):
        return False
    return not scope.get("state", {}).get("dry_run", False)


def _needed_scope(method: str, path: str) -> KeyScope:
    if path.startswith(ADMIN_PATHS):
        return "admin"
    if method in SAFE_METHODS or path == SESSION or READ_ONLY_POSTS.fullmatch(path):
        return "read"
    return "write"


def _host_and_port(url: str) -> tuple[str, int | None] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return (parts.hostname or "", None if port in (80, 443) else port)


def _check_framing(headers: Headers) -> None:
    """Refuse two lengths of one body. A proxy may use the other length, and the rest of the body
    would be the next request here (request smuggling)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ApiError(
            400,
            "a request may have Content-Length or Transfer-Encoding, not both",
            headers={"Connection": "close"},
        )


def _check_open_path_method(scope: Scope) -> None:
    """Refuse anything but reads of open paths: no body is read of a client without a key."""
    path = local_path(scope)
    if _is_open(path) and scope["method"] not in ("GET", "HEAD"):
        why = f"{path} does not take {scope['method'][:100]}; it takes GET, HEAD"
        raise ApiError(405, why, headers={"Allow": "GET, HEAD"})


def check_duplicate_names(body: bytes) -> None:
    """Refuse a JSON object with the same name twice: one of the two values would be dropped."""

    def pairs(found: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in found:
            if name in seen:
                why = "is given twice in one object: give it once"
                raise ApiError.of_fields(FieldError.predicate(name[:100], why))
            seen.add(name)

    if body.count(b":") > 1:
        with contextlib.suppress(ValueError, RecursionError):  # the route says what is wrong
            json.loads(body, object_pairs_hook=pairs)


def _check_content_type(method: str, headers: Headers) -> None:
    """Refuse bodies that are not JSON, which a form of another site could send, and compressed
    ones, which would be read as they are."""
    if method in SAFE_METHODS:
        return
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return  # no body; aiohttp and curl send a type all the same
    given = headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"a body must be application/json, not {given[:100]!r}")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        why = f"Content-Encoding {coding[:100]!r} is not supported: send the body uncompressed"
        raise ApiError(415, why, headers={"Accept-Encoding": "identity"})


def _read_dry_run(scope: Scope) -> bool:
    """Whether the request is a dry run. Refuses one of a request that has none, other spellings of
    the parameter and other values than true, false, 1 and 0: the client expects that nothing is
    done, and the audit log and the route must read the value alike."""
    method, path = scope["method"], local_path(scope)
    if method in SAFE_METHODS or not scope.get("query_string"):
        return False
    given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    for name in given:
        if name != "dryRun" and re.sub(r"[^a-z]", "", name.lower()) in ("dryrun", "dry"):
            why = f"is the spelling, not {name[:100]!r}: nothing was done"
            raise ApiError.of_fields(FieldError.predicate("dryRun", why))
    value = given.get("dryRun", "false")
    if value.lower() not in DRY_RUN_VALUES:
        why = f"is true, false, 1 or 0, not {value[:100]!r}: nothing was done"
        raise ApiError.of_fields(FieldError.predicate("dryRun", why))
    dry_run = DRY_RUN_VALUES[value.lower()]
    if dry_run and not (method == "POST" and DRY_RUN_PATHS.fullmatch(path)):
        why = (
            "is for creating, triggering and backfilling a job and for pruning orphans, not for"
            f" {method} {path}: nothing was done"
        )
        raise ApiError.of_fields(FieldError.predicate("dryRun", why))
    return dry_run


def _key_texts(headers: Headers) -> list[str]:
    """The texts that may be API keys. `Authorization` may be for a proxy, with the API key in
    `X-Api-Key`. Another scheme than Bearer counts as a wrong key if there is no other."""
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


def _is_local(headers: Headers) -> bool:
    """Whether the request was made on this machine, and not passed on by a proxy."""
    local_name = is_loopback(_host_name(headers.get("host", "")))
    return local_name and not any(name in headers for name in PROXY_HEADERS)


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _too_many(why: str, wait: float) -> ApiError:
    seconds = max(1, round(wait + 0.5))
    return ApiError(429, f"{why}: try again in {seconds} s", headers={"Retry-After": str(seconds)})


def _replay(message: Message, receive: Receive) -> Receive:
    """A `receive` that gives this message first."""
    waiting = [message]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
