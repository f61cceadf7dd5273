"""Builds the request of an attempt from the job's definition, and signs it. Pure.

The handler sends what `prepare` returns, and a dry run shows the same. Only Host and
Content-Length, which the transport adds, are not in it.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from mainspring.core.model import Webhook
from mainspring.core.version import __version__
from mainspring.webhooks.headers import MASK
from mainspring.webhooks.templates import Template

USER_AGENT = f"Mainspring/{__version__}"

_BLOCK = 64

_DEFAULT_HEADERS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": USER_AGENT,
    "Idempotency-Key": "{{executionId}}",
}


class AttemptFacts(Struct, frozen=True, kw_only=True, gc=False):
    """The facts of an attempt that a request may contain. `body`, if given, replaces the job's."""

    job_id: str
    run_id: str
    attempt: int
    scheduled_at: datetime
    now: datetime
    body: Any = None


class RequestTemplate(Struct, frozen=True):
    """A webhook's request with decrypted secrets and parsed templates. Built once for a definition,
    filled in for each attempt."""

    method: str
    url: Template
    headers: Mapping[str, str]
    filled_headers: tuple[tuple[str, Template], ...]
    body: Body
    names: frozenset[str]
    """The template names in the URL and the headers."""
    typed: bool
    """Whether the headers name the content type."""
    secret: tuple[str, ...]

    @classmethod
    def of(
        cls, webhook: Webhook, secret_headers: Mapping[str, str] | None = None
    ) -> RequestTemplate:
        secret_headers = secret_headers or {}
        given = {name.lower() for name in (*webhook.headers, *secret_headers)}
        # A header of the user replaces our default, in upper or lower case.
        ours = {name: text for name, text in _DEFAULT_HEADERS.items() if name.lower() not in given}
        written = {name: Template.of(text) for name, text in {**ours, **webhook.headers}.items()}
        url = _escape_braces(Template.of(webhook.url))
        plain = {name: made.texts[0] for name, made in written.items() if not made.names}
        return cls(
            webhook.method,
            url,
            {**plain, **secret_headers},
            tuple((name, made) for name, made in written.items() if made.names),
            Body.of(webhook.body),
            frozenset(name for made in (url, *written.values()) for name in made.names),
            "content-type" in given,
            tuple(secret_headers),
        )

    def __repr__(self) -> str:
        return f"RequestTemplate({self.method} ********)"


class Body(Struct, frozen=True):
    text: Template
    type: str | None = None

    @classmethod
    def of(cls, value: Any) -> Body:
        if value is None:
            return _NO_BODY
        if isinstance(value, str):
            return cls(Template.of(value), "text/plain; charset=utf-8")
        return cls(Template.of_json(value), "application/json")

    def fill(self, known: Mapping[str, str]) -> bytes:
        return self.text.fill(known).encode()


_NO_BODY = Body(Template(("",), ()))


class PreparedRequest(Struct, frozen=True, gc=False):
    """A request as it is sent. `secret` holds the names of headers that are never shown."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    secret: tuple[str, ...] = ()

    def masked_headers(self) -> dict[str, str]:
        return {**self.headers, **dict.fromkeys(self.secret, MASK)}

    def __repr__(self) -> str:
        return f"PreparedRequest({self.method} {self.url}, {self.masked_headers()})"


def prepare(
    form: RequestTemplate, facts: AttemptFacts, signing: Iterable[HmacKey] = ()
) -> PreparedRequest:
    """The request of one attempt, filled in and signed."""
    body = form.body if facts.body is None else Body.of(facts.body)
    known = {name: _FACTS[name](facts) for name in (*form.names, *body.text.names)}
    sent = body.fill(known)
    headers = dict(form.headers)
    for name, text in form.filled_headers:
        headers[name] = text.fill(known)
    if body.type is not None and not form.typed:
        headers["Content-Type"] = body.type
    message_id, timestamp = webhook_id(facts.run_id), str(int(facts.now.timestamp()))
    headers["webhook-id"] = message_id
    headers["webhook-timestamp"] = timestamp
    signed = f"{message_id}.{timestamp}.".encode() + sent
    if signatures := [_signature(mac, signed) for mac in signing]:
        headers["webhook-signature"] = " ".join(signatures)
    return PreparedRequest(form.method, _url(form.url, known), headers, sent, form.secret)


def webhook_id(run_id: str) -> str:
    """The webhook-id header: the same for every attempt of a run. Standard Webhooks joins the
    signed parts with full stops, so they are replaced by tildes, which no run id contains."""
    return run_id.replace(".", "~")


class HmacKey:
    """HMAC-SHA256 (RFC 2104) with one key. What depends only on the key is computed once."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        if len(key) > _BLOCK:
            key = hashlib.sha256(key).digest()
        key = key.ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))

    def digest(self, message: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


def _signature(mac: HmacKey, signed: bytes) -> str:
    """A signature of Standard Webhooks: `v1,` and the HMAC-SHA256 of `id.timestamp.body`."""
    return "v1," + binascii.b2a_base64(mac.digest(signed), newline=False).decode()


def _escape_braces(url: Template) -> Template:
    """The URL with braces percent-encoded, except those of templates."""
    texts = (text.replace("{", "%7B").replace("}", "%7D") for text in url.texts)
    return Template(tuple(texts), url.names)


def _url(url: Template, known: Mapping[str, str]) -> str:
    if not url.names:
        return url.texts[0]
    quoted = {name: quote(text, safe="") for name, text in known.items()}
    return url.fill(quoted)


_FACTS: dict[str, Callable[[AttemptFacts], str]] = {
    "timestamp": lambda facts: _iso(facts.now),
    "scheduledAt": lambda facts: _iso(facts.scheduled_at),
    "jobId": lambda facts: facts.job_id,
    "executionId": lambda facts: facts.run_id,
    "attempt": lambda facts: str(facts.attempt),
}
"""The values of template names. They need no escaping inside a JSON string: neither ids nor times
contain quotes or backslashes."""


def _iso(moment: datetime) -> str:
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"
