"""What a webhook job sends, made from its definition and the facts of an attempt. Pure.

The handler sends what `prepare` gives, and a dry run shows it: there is no second way. Only what
a connection adds itself (Host, Content-Length) is not in it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from mainspring.clock import EPOCH
from mainspring.model import Webhook
from mainspring.webhooks.headers import MASK
from mainspring.webhooks.templates import Template

__all__ = ["Facts", "Form", "Prepared", "prepare", "signature", "webhook_id"]

USER_AGENT = "Mainspring/0.1"

_OURS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": USER_AGENT,
    "Idempotency-Key": "{{executionId}}",
}


class Facts(Struct, frozen=True, kw_only=True):
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
        plain = {name: made.texts[0] for name, made in written.items() if not made.names}
        return cls(
            webhook.method,
            Template.of(webhook.url),
            {**plain, **secret_headers},
            tuple((name, made) for name, made in written.items() if made.names),
            Body.of(webhook.body),
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

    def filled(self, facts: Mapping[str, str]) -> bytes:
        quote = _within_json if self.type == "application/json" else str
        return self.text.filled(facts, quote).encode()


_NONE = Body(Template(("",), ()))


class Prepared(Struct, frozen=True):
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


def prepare(form: Form, facts: Facts, signing: Iterable[bytes] = ()) -> Prepared:
    """The request of one attempt: filled in, signed."""
    known = _Known(facts)
    body = form.body if facts.body is None else Body.of(facts.body)
    sent = body.filled(known)
    headers = dict(form.headers)
    for name, text in form.filled_headers:
        headers[name] = text.filled(known)
    if body.type is not None and not form.typed:
        headers["Content-Type"] = body.type
    headers |= _signed(facts, sent, signing)
    return Prepared(form.method, _url(form.url, known), headers, sent, form.secret)


def webhook_id(run_id: str) -> str:
    """The same for every try of a run. The scheme joins its parts with full stops, so that an id
    has none; no run id has a tilde."""
    return run_id.replace(".", "~")


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,…` as Standard Webhooks has it: HMAC-SHA256 over id, timestamp and body."""
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    # Not `hmac.digest`: it lets go of the interpreter lock, and beside the engine's thread waits
    # 230 µs to have it back (python -m bench webhooks, profiled); this keeps it for small bodies.
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _signed(facts: Facts, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    message_id = webhook_id(facts.run_id)
    timestamp = int((facts.now - EPOCH).total_seconds())
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if signatures := [signature(key, message_id, timestamp, body) for key in keys]:
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def _url(url: Template, facts: Mapping[str, str]) -> str:
    return url.filled(facts, _within_url).replace("{", "%7B").replace("}", "%7D")


def _within_url(fact: str) -> str:
    return quote(fact, safe="")


def _within_json(fact: str) -> str:
    return msgspec.json.encode(fact).decode()[1:-1]


class _Known(dict[str, str]):
    """What the names of templates stand for, made where one is used."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __missing__(self, name: str) -> str:
        made = self[name] = _NAMES[name](self._facts)
        return made


_NAMES: dict[str, Callable[[Facts], str]] = {
    "timestamp": lambda facts: _iso(facts.now),
    "scheduledAt": lambda facts: _iso(facts.scheduled_at),
    "jobId": lambda facts: facts.job_id,
    "executionId": lambda facts: facts.run_id,
    "attempt": lambda facts: str(facts.attempt),
}


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
