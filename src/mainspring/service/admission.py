"""What a request must pass before its route runs: the key and its scope, the rate, and the body.

The body is read here, within limits of size, time and memory, so no route has to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from mainspring.service.access import Access, CheckedRoute
from mainspring.service.api_keys import Key, RateLimiter
from mainspring.service.dependencies import SAFE_METHODS, Service, check_query
from mainspring.service.middleware import host_name
from mainspring.service.problems import ApiError, FieldError, local_path, too_many
from mainspring.service.sessions import session_cookie
from mainspring.service.settings import is_loopback
from mainspring.stores.url import without_password

log = logging.getLogger("mainspring.service")

PROXY_HEADERS = {
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-original-host",
    "cf-connecting-ip",
    "true-client-ip",
}
"""Headers that a proxy adds, beside X-Forwarded-…: its client may be on any machine."""

BODY_SECONDS = 20.0
DISCARD_SECONDS, DISCARD_IDLE_SECONDS, DISCARD_BYTES = 10.0, 1.0, 64 * 1024 * 1024
"""How much of a body that is too large is read and thrown away."""
BODIES_BYTES = 32 * 1024 * 1024
"""Bytes that the bodies of all requests may have together, or four of the largest."""
SHARE_OF_A_KEY = 4
"""The bodies of one key, or of all requests without a key, may have this part of these bytes: slow
requests of one key must not keep out the others."""
WRONG_KEYS_A_MINUTE = 30
BYTES_A_TOKEN = 64 * 1024
"""So many bytes of a response after the first so many count as one more request."""
UNKNOWN_PATH = Access("read", is_change=False)
"""What a request for a path that does not exist needs: strangers learn nothing of the paths."""


class Admission:
    """Admits requests to the routes of one application."""

    def __init__(self, service: Service) -> None:
        self._service = service
        settings, clock, url = service.settings, service.clock, service.client.url
        self._limit = settings.body_limit
        self._budget = max(BODIES_BYTES, SHARE_OF_A_KEY * settings.body_limit)
        self._held: Counter[str] = Counter()
        self._rates = RateLimiter(settings.rate_limit, 2 * settings.rate_limit, clock)
        self._wrong_keys = RateLimiter(WRONG_KEYS_A_MINUTE / 60, WRONG_KEYS_A_MINUTE, clock)
        self._wrong_key_logs = RateLimiter(1 / 60, 1, clock)
        self._store_name = "the store" if url is None else without_password(url)

    @asynccontextmanager
    async def admit(
        self, route: CheckedRoute, scope: Scope, receive: Receive
    ) -> AsyncIterator[Receive]:
        """Check a request, and read its body. Gives a `receive` that has the body; its memory is
        counted until the route is done. Raises `ApiError` for a request that is refused."""
        headers = Headers(scope=scope)
        if scope["method"] not in (route.methods or ()):  # the route answers 405
            is_open = route.access.needed == "open"
            await self.check_caller(route.access if is_open else UNKNOWN_PATH, scope, headers)
            yield receive
            return
        await self.check_caller(route.access, scope, headers)
        _check_content_type(scope["method"], headers)
        state = scope.setdefault("state", {})
        check_query(route, scope, headers)
        held = _HeldBytes(self, state["key"].id if "key" in state else "")
        try:
            body, last = await self._read_body(headers, receive, held)
            if scope["method"] not in SAFE_METHODS:
                _check_body_is_taken(route, scope, body)
                check_json(body)
            message = last or {"type": "http.request", "body": body, "more_body": False}
            del body
            yield _replay(message, receive)
        finally:
            held.release()

    def charge(self, key: Key, size: int) -> None:
        """Count the bytes of a response towards the rate of its key: long lists cost more."""
        if size > BYTES_A_TOKEN:
            self._rates.charge(key.id, size / BYTES_A_TOKEN - 1)

    async def refuse_unknown(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a path that does not exist."""
        if scope["type"] == "http":
            await self.check_caller(UNKNOWN_PATH, scope, Headers(scope=scope))
        raise HTTPException(404)

    async def check_caller(self, access: Access, scope: Scope, headers: Headers) -> None:
        if access.needed == "open":
            return
        self._check_started()
        if self._service.without_keys:
            return
        key = await self._key_of(access, scope, headers)
        if key is None:
            return
        state = scope.setdefault("state", {})
        wait = self._rates.take(key.id)
        state["rate"] = self._rates.state(key.id)
        if wait:
            raise too_many("this key makes too many requests, or too large ones", wait)
        if not key.allows(access.needed):
            raise ApiError(
                403,
                f"the key {key.name!r} has the scope {key.scope}, and this request needs"
                f" {access.needed}: use a key that has it (`mainspring keys create NAME --scope"
                f" {access.needed}`)",
                code="scope_too_small",
            )
        state["key"] = key

    def _check_started(self) -> None:
        """Refuse requests until the scheduler is started. Nobody runs the lifespan of a mounted
        application: the program that mounts it has to start the scheduler."""
        if not self._service.started:
            raise ApiError(
                503,
                "the scheduler of this API is not started: the program that mounts it has to start"
                " it, with `async with scheduler:` in its own lifespan",
                headers={"Retry-After": "5"},
            )

    async def _key_of(self, access: Access, scope: Scope, headers: Headers) -> Key | None:
        """The key that the request is made with: by a header, else by the cookie of a session. None
        where no key is needed."""
        texts, cookie = _key_texts(headers), session_cookie(scope)
        if texts and (cookie is None or texts != [""]):  # a proxy may use another scheme for itself
            return await self._find_key(access, scope, texts, headers)
        local = self._service.loopback and _is_local(headers)
        if local and not await self._service.keys.any_exists(
            cached_if_away=access.works_without_store
        ):
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

    async def _find_key(
        self, access: Access, scope: Scope, texts: list[str], headers: Headers
    ) -> Key:
        """The first of the texts that is a valid key.

        They are checked also after many wrong keys from the same address: behind a proxy all
        clients share one address, and one that guesses must not lock out the others. Guessing finds
        nothing, because a secret has 256 random bits; after many wrong keys the answer is 429."""
        for text in texts:
            key = await self._service.keys.check(text, cached_if_away=access.works_without_store)
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
            raise too_many("too many wrong keys came from this address", wait)

    def _log_wrong_key(self) -> None:
        """Say which store has no such key, at most once a minute. The client must not learn it."""
        if not self._wrong_key_logs.take(""):
            log.warning(
                "refused a request: %s has no such API key, or the key is revoked or expired. A key"
                " belongs to the store in which it was created; `mainspring keys list` lists the"
                " keys of a store",
                self._store_name,
            )

    async def _read_body(
        self, headers: Headers, receive: Receive, held: _HeldBytes
    ) -> tuple[bytes, Message | None]:
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
                    held.add(len(parts[-1]))
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:.0f} s") from None
        return b"".join(parts), None

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"a body may have at most {self._limit:,} bytes", headers={"Connection": "close"}
        )

    def take_bytes(self, key_id: str, count: int) -> None:
        """Count bytes of a body for a key; the id is empty for requests without a key."""
        headers = {"Retry-After": "1", "Connection": "close"}
        if self._held[key_id] + count > self._budget // SHARE_OF_A_KEY:
            whose = "of this key" if key_id else "without a key"
            why = f"the requests {whose} hold as many bytes as they may: try again in 1 s"
            raise ApiError(429, why, headers=headers)
        if self._held.total() + count > self._budget:
            why = "the service holds as many bytes of requests as it may: try again in 1 s"
            raise ApiError(503, why, code="busy", headers=headers)
        self._held[key_id] += count

    def give_bytes_back(self, key_id: str, count: int) -> None:
        self._held[key_id] -= count
        if not self._held[key_id]:
            del self._held[key_id]


class _HeldBytes:
    """The bytes of one body that count towards the budget of all."""

    def __init__(self, admission: Admission, key_id: str) -> None:
        self._admission, self._key_id, self._count = admission, key_id, 0

    def add(self, count: int) -> None:
        self._admission.take_bytes(self._key_id, count)
        self._count += count

    def release(self) -> None:
        self._admission.give_bytes_back(self._key_id, self._count)
        self._count = 0


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


def _check_body_is_taken(route: CheckedRoute, scope: Scope, body: bytes) -> None:
    """Refuse a body that the route would ignore: the client expects that it means something. `{}`
    means nothing, and some clients send it with every POST."""
    if not route.takes_body and body.strip() not in (b"", b"{}"):
        path = local_path(scope)
        raise ApiError(422, f"{scope['method']} {path} takes no body: nothing was done")


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


def check_json(body: bytes) -> None:
    """Refuse a JSON object with the same name twice, because one of the two values would be lost,
    and half of a surrogate pair, which JSON can spell and no store can keep."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for name, _ in members:
            if name in seen:
                why = "is given twice in one object: give it once"
                raise ApiError.of_fields(FieldError.predicate(name[:100], why))
            seen.add(name)
        return dict(members)

    is_plain = body.isascii() and b"\\u" not in body and b"\0" not in body  # no UTF-16 either
    if is_plain and body.count(b":") < 2:
        return
    try:
        value = json.loads(body, object_pairs_hook=pairs)
        if not is_plain:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(422, "the body holds text that is not Unicode") from None
    except (ValueError, RecursionError):
        pass  # the route says what is wrong


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
        raise ApiError(
            415,
            f"a body must be application/json, not {given[:100]!r}:"
            " send -H 'Content-Type: application/json'",
        )
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        why = f"Content-Encoding {coding[:100]!r} is not supported: send the body uncompressed"
        raise ApiError(415, why, headers={"Accept-Encoding": "identity"})


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
    local_name = is_loopback(host_name(headers.get("host", "")))
    return local_name and not any(
        name in PROXY_HEADERS or name.startswith("x-forwarded-") for name in headers
    )


def _replay(message: Message, receive: Receive) -> Receive:
    """A `receive` that gives this message first."""
    waiting = [message]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
