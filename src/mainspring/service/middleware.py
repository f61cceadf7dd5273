"""What holds for every request, whatever its route: framing, host and origin before it, headers,
metrics and the audit log after it. `admission.py` has the checks that depend on the route."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import NamedTuple

from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.core.trace_context import passing_on, read_trace
from mainspring.service.access import CheckedRoute
from mainspring.service.api_keys import Key
from mainspring.service.audit import AuditEntry
from mainspring.service.dependencies import SAFE_METHODS, Service
from mainspring.service.problems import ApiError, local_path, respond
from mainspring.service.sessions import browser_scheme
from mainspring.service.settings import is_loopback

DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}


class RequestChecks:
    """The middleware. It is plain ASGI."""

    def __init__(self, app: ASGIApp, service: Service, charge: Callable[[Key, int], None]) -> None:
        self._app = app
        self._charge = charge
        self._service = service
        self._hosts = service.settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the service has no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        send = self._with_headers_metrics_and_audit(scope, send)
        try:
            headers = Headers(scope=scope)
            _check_framing(scope["method"], headers)
            self._check_host(headers)
            self._check_origin(scope["method"], headers, scope["scheme"])
        except ApiError as error:
            await respond(Request(scope), error)(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, receive, send = _as_get(scope, receive, send)
        trace = read_trace(headers.getlist("traceparent"), headers.getlist("tracestate"))
        with passing_on(trace):
            await self._app(scope, receive, send)

    def _with_headers_metrics_and_audit(self, scope: Scope, send: Send) -> Send:
        """Add the security headers to the answer, count it, and log it if it changed something."""
        method = scope["method"]

        async def sending(message: Message) -> None:
            state = scope.get("state", {})
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if (rate := state.get("rate")) is not None:
                    for name, number in rate._asdict().items():
                        headers[f"ratelimit-{name}"] = str(number)
                self._service.metrics.count_response(method, message["status"])
                if _is_change(scope) and message["status"] < 400:
                    self._audit(scope, message["status"])
            elif "key" in state and not state.get("limits_unread"):  # an event stream
                self._charge(state["key"], len(message.get("body", b"")))
            # The server itself has answered a request that broke HTTP half way.
            with contextlib.suppress(LocalProtocolError):
                await send(message)

        return sending

    def _audit(self, scope: Scope, status: int) -> None:
        state = scope.get("state", {})
        key = state.get("key")
        self._service.audit.record(
            AuditEntry(
                key_id=None if key is None else key.id,
                key_name=None if key is None else key.name,
                address=(scope.get("client") or (None,))[0],
                method=scope["method"],
                path=local_path(scope),
                status=status,
                created_id=state.get("created"),
                detail=state.get("detail") or None,
            )
        )

    def _check_host(self, headers: Headers) -> None:
        """Refuse requests whose Host is another name: a page of another site can have a DNS name
        that resolves to 127.0.0.1, and its requests carry that name."""
        name = host_name(headers.get("host", ""))
        if self._service.loopback and not is_loopback(name) and name not in self._hosts:
            raise ApiError(
                403,
                f"Host {headers.get('host')!r} is not allowed: this service listens on loopback."
                " Use localhost or 127.0.0.1, or set ALLOWED_HOSTS to the name of a proxy",
            )

    def _check_origin(self, method: str, headers: Headers, scheme: str) -> None:
        """Refuse requests that pages of other origins make in a browser: of other sites, and of
        other ports of this host, to which a browser sends the same cookies. Following a link is
        allowed."""
        site = headers.get("sec-fetch-site", "none")
        if site not in ("same-origin", "none"):
            navigates = method in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate"
            if not (navigates and headers.get("sec-fetch-dest") == "document"):
                raise ApiError(
                    403,
                    f"cross-site request refused: Sec-Fetch-Site is {site[:50]!r}. Call the API"
                    " from a program, or from a page of this service",
                )
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is None:
            return
        # A proxy says which scheme the browser uses; without one that is not known.
        known = browser_scheme(headers, scheme)
        page = _place(origin)
        if page is not None and known in ("", page.scheme):
            name, port = page.host, page.port
            if (name, port) == _host_and_port(host, page.scheme):
                return
            served = self._hosts.get(name, 0)  # the port under which a proxy serves this API
            if port == served or (served is None and port == DEFAULT_PORTS[page.scheme]):
                return
        advice = ""
        if page is not None:
            advice = (
                f" If {page.host!r} is the name of a proxy in front of this service, have the proxy"
                f" send X-Forwarded-Proto: {page.scheme} and the Host header unchanged, or set"
                f" ALLOWED_HOSTS={page.host} (with :PORT if it is neither 80 nor 443)."
            )
        raise ApiError(
            403,
            f"cross-site request refused: Origin {origin[:200]!r} is not allowed, because the"
            f" request is for Host {host[:200]!r}.{advice}",
        )


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


def _is_change(scope: Scope) -> bool:
    """Whether the request changes something, if it is done."""
    route = scope.get("route")
    if scope["method"] in SAFE_METHODS or not isinstance(route, CheckedRoute):
        return False
    return route.access.is_change and not scope.get("state", {}).get("dry_run", False)


class _Place(NamedTuple):
    """The place of a page: its origin."""

    scheme: str
    host: str
    port: int


def _place(origin: str) -> _Place | None:
    scheme, _, host = origin.partition("://")
    if scheme not in DEFAULT_PORTS or (place := _host_and_port(host, scheme)) is None:
        return None
    return _Place(scheme, *place)


def _host_and_port(host: str, scheme: str) -> tuple[str, int] | None:
    """The name and the port of a Host header, or None if it is not one. Written by hand: a parser
    of URLs accepts `[::1]evil` and `localhost#x` for a part of them."""
    parts = _HOST.fullmatch(host)
    if parts is None:
        return None
    name, port = parts[1].strip("[]").lower(), parts[2]
    return name, int(port) if port else DEFAULT_PORTS[scheme]


def _check_framing(method: str, headers: Headers) -> None:
    """Refuse two lengths of one body: a proxy may use the other length, and the rest of the body
    would be the next request here (request smuggling). Refuse bodies that no route reads, before
    they take memory."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ApiError(
            400,
            "a request may have Content-Length or Transfer-Encoding, not both",
            headers={"Connection": "close"},
        )
    if method in SAFE_METHODS and (
        "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    ):
        raise ApiError(
            400,
            f"{method} takes no body here: nothing reads it",
            headers={"Connection": "close"},
        )


def host_name(host: str) -> str:
    place = _host_and_port(host, "http")
    return "" if place is None else place[0]
