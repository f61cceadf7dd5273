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
from msgspec import Struct, field

from mainspring.clock import EPOCH
from mainspring.model import Webhook
from mainspring.webhooks import templates
from mainspring.webhooks.headers import MASK

__all__ = ["Facts", "Opened", "Prepared", "prepare", "signature", "webhook_id"]

USER_AGENT = "Mainspring/0.1"

_OURS = {
    name.lower(): name
    for name in ("Accept", "Accept-Encoding", "User-Agent", "Idempotency-Key", "Content-Type")
}


class Facts(Struct, frozen=True, kw_only=True):
    """What an attempt knows of itself. `body` stands in for the job's, where one was given."""

    job_id: str
    run_id: str
    attempt: int
    scheduled_at: datetime
    now: datetime
    body: Any = None


class Opened(Struct, frozen=True):
    """A webhook's secrets in clear, for as long as one request takes."""

    headers: Mapping[str, str] = field(default_factory=dict)
    signing: tuple[bytes, ...] = ()
    traces: tuple[str, ...] = ()
    """What the secrets can be known by in an answer."""

    def __repr__(self) -> str:
        return "Opened(********)"


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


def prepare(webhook: Webhook, facts: Facts, opened: Opened | None = None) -> Prepared:
    """The request of one attempt: filled in, with its secrets, signed."""
    opened = opened or Opened()
    known = _Known(facts)
    body, content_type = _body(webhook.body if facts.body is None else facts.body, known)
    given = {
        **{name: templates.fill_text(text, known) for name, text in webhook.headers.items()},
        **opened.headers,
    }
    ours = {
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        "Idempotency-Key": facts.run_id,
    }
    if content_type is not None:
        ours["Content-Type"] = content_type
    for name in given:  # what was given stands over what we would say, however it is written
        ours.pop(_OURS.get(name.lower(), ""), None)
    return Prepared(
        webhook.method,
        _url(webhook.url, known),
        {**ours, **given, **_signed(facts, body, opened.signing)},
        body,
        tuple(opened.headers),
    )


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


def _url(url: str, facts: Mapping[str, str]) -> str:
    filled = templates.fill_text(url, facts, lambda fact: quote(fact, safe=""))
    return filled.replace("{", "%7B").replace("}", "%7D")


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


def _body(body: Any, facts: Mapping[str, str]) -> tuple[bytes, str | None]:
    if body is None:
        return b"", None
    if isinstance(body, str):
        return templates.fill_text(body, facts).encode(), "text/plain; charset=utf-8"
    return msgspec.json.encode(templates.fill(body, facts)), "application/json"
