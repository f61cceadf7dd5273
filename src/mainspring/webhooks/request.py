"""What a webhook job sends, made from its definition and the facts of an attempt. Pure.

The handler sends what `prepare` gives, and a dry run shows it: there is no second way. Only what
a connection adds itself (Host, Content-Length) is not in it.
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
from mainspring.webhooks.headers import MASK
from mainspring.webhooks.templates import Template

__all__ = ["Facts", "Form", "Mac", "Prepared", "prepare", "webhook_id"]

USER_AGENT = "Mainspring/0.1"

_BLOCK = 64

_OURS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": USER_AGENT,
    "Idempotency-Key": "{{executionId}}",
}


class Facts(Struct, frozen=True, kw_only=True, gc=False):
    """What an attempt knows of itself. `body` stands in for the job's, where one was given."""

    job_id: str
    run_id: str
    attempt: int
    scheduled_at: datetime
    now: datetime
    body: Any = None


class Form(Struct, frozen=True):
    """A webhook's request with its secrets in clear, taken apart: worked out once, filled in for
    each attempt."""

    method: str
    url: Template
    headers: Mapping[str, str]
    filled_headers: tuple[tuple[str, Template], ...]
    body: Body
    names: frozenset[str]
    """In its URL and its headers."""
    typed: bool
    """Whether its headers say what the body is."""
    secret: tuple[str, ...]

    @classmethod
    def of(cls, webhook: Webhook, secret_headers: Mapping[str, str] | None = None) -> Form:
        secret_headers = secret_headers or {}
        given = {name.lower() for name in (*webhook.headers, *secret_headers)}
        # What was given stands over what we would say, however it is written.
        ours = {name: text for name, text in _OURS.items() if name.lower() not in given}
        written = {name: Template.of(text) for name, text in {**ours, **webhook.headers}.items()}
        url = _written_out(Template.of(webhook.url))
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
        return f"Form({self.method} ********)"


class Body(Struct, frozen=True):
    text: Template
    type: str | None = None

    @classmethod
    def of(cls, value: Any) -> Body:
        if value is None:
            return _NONE
        if isinstance(value, str):
            return cls(Template.of(value), "text/plain; charset=utf-8")
        return cls(Template.of_json(value), "application/json")

    def filled(self, known: Mapping[str, str]) -> bytes:
        return self.text.filled(known).encode()


_NONE = Body(Template(("",), ()))


class Prepared(Struct, frozen=True, gc=False):
    """A request as it is sent. `secret` are the names of headers that are never shown."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    secret: tuple[str, ...] = ()

    def shown_headers(self) -> dict[str, str]:
        return {**self.headers, **dict.fromkeys(self.secret, MASK)}

    def __repr__(self) -> str:
        return f"Prepared({self.method} {self.url}, {self.shown_headers()})"


def prepare(form: Form, facts: Facts, signing: Iterable[Mac] = ()) -> Prepared:
    """The request of one attempt: filled in, signed."""
    body = form.body if facts.body is None else Body.of(facts.body)
    known = {name: _FACTS[name](facts) for name in (*form.names, *body.text.names)}
    sent = body.filled(known)
    headers = dict(form.headers)
    for name, text in form.filled_headers:
        headers[name] = text.filled(known)
    if body.type is not None and not form.typed:
        headers["Content-Type"] = body.type
    message_id, timestamp = webhook_id(facts.run_id), str(int(facts.now.timestamp()))
    headers["webhook-id"] = message_id
    headers["webhook-timestamp"] = timestamp
    signed = f"{message_id}.{timestamp}.".encode() + sent
    if signatures := [_signature(mac, signed) for mac in signing]:
        headers["webhook-signature"] = " ".join(signatures)
    return Prepared(form.method, _url(form.url, known), headers, sent, form.secret)


def webhook_id(run_id: str) -> str:
    """The same for every try of a run. The scheme joins its parts with full stops, so that an id
    has none; no run id has a tilde."""
    return run_id.replace(".", "~")


class Mac:
    """HMAC-SHA256 (RFC 2104) under one key: what depends on the key alone is worked out once."""

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


def _signature(mac: Mac, signed: bytes) -> str:
    """`v1,…` as Standard Webhooks has it: HMAC-SHA256 over `id.timestamp.body`."""
    return "v1," + binascii.b2a_base64(mac.digest(signed), newline=False).decode()


def _written_out(url: Template) -> Template:
    """Braces that are no template's cannot stand in a URL."""
    texts = (text.replace("{", "%7B").replace("}", "%7D") for text in url.texts)
    return Template(tuple(texts), url.names)


def _url(url: Template, known: Mapping[str, str]) -> str:
    if not url.names:
        return url.texts[0]
    quoted = {name: quote(text, safe="") for name, text in known.items()}
    return url.filled(quoted)


_FACTS: dict[str, Callable[[Facts], str]] = {
    "timestamp": lambda facts: _iso(facts.now),
    "scheduledAt": lambda facts: _iso(facts.scheduled_at),
    "jobId": lambda facts: facts.job_id,
    "executionId": lambda facts: facts.run_id,
    "attempt": lambda facts: str(facts.attempt),
}
"""What the names of templates stand for. Each stands as it is inside a text of JSON: neither ids
nor times have quotes or backslashes."""


def _iso(moment: datetime) -> str:
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"
