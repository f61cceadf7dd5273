"""The request of an attempt: built from the job's definition, filled in and signed. Pure.

The handler sends what `prepare` returns, and a dry run shows the same. Only Host and
Content-Length, which the transport adds, are not in it. `{{name}}` is replaced by one of five facts
of the attempt. There are no expressions, filters or lookups, so a definition cannot read anything
else. A name that is not in `TEMPLATE_NAMES` is refused when the job is defined.
"""

from __future__ import annotations

import binascii
import difflib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from mainspring.core.model import Webhook
from mainspring.core.version import __version__
from mainspring.errors import InvalidInput
from mainspring.webhooks.redaction import MASK

USER_AGENT = f"Mainspring/{__version__}"

_DEFAULT_HEADERS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "User-Agent": USER_AGENT,
    "Idempotency-Key": "{{executionId}}",
}

TEMPLATE_NAMES = ("timestamp", "scheduledAt", "jobId", "executionId", "attempt")

_MARK = re.compile(r"\{\{([^{}]{0,200})\}\}")
"""The pattern is unambiguous, so it cannot backtrack: one that matched spaces separately took
minutes for 15,000 of them."""


def check_templates(value: Any, where: str) -> None:
    """Refuse unknown names anywhere in a text, or in the texts of a JSON value."""
    if isinstance(value, str):
        for name in map(str.strip, _MARK.findall(value)):
            if name not in TEMPLATE_NAMES:
                known = ", ".join(f"{{{{{known}}}}}" for known in TEMPLATE_NAMES)
                near = difflib.get_close_matches(name, TEMPLATE_NAMES, n=1)
                advice = f" (did you mean {{{{{near[0]}}}}}?)" if near else ""
                raise InvalidInput(
                    f"{where} has {{{{{name}}}}}, which is not a template name{advice}: use {known}"
                )
    elif isinstance(value, dict):
        for item in value.values():
            check_templates(item, where)
    elif isinstance(value, list | tuple):
        for item in value:
            check_templates(item, where)


def strip_template_spaces(text: str) -> str:
    """The text without spaces inside `{{ }}`, for URLs, which cannot contain spaces."""
    return _MARK.sub(lambda mark: f"{{{{{mark[1].strip()}}}}}", text)


class Template(Struct, frozen=True):
    """A text split at its names: `texts[0] names[0] texts[1] names[1] … texts[-1]`."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """Split a text. Unknown names, which `check_templates` refuses, stay as text."""
        texts, names, end = [], [], 0
        for mark in _MARK.finditer(text):
            if (name := mark[1].strip()) in TEMPLATE_NAMES:
                texts.append(text[end : mark.start()])
                names.append(name)
                end = mark.end()
        return cls((*texts, text[end:]), tuple(names))

    @classmethod
    def of_json(cls, value: Any) -> Template:
        """Split the JSON text of a value. Names in its strings are replaced, names in its keys are
        not."""
        edge = secrets.token_hex(16)  # occurs in no text, and JSON does not escape it
        marked = _mark_names(value, {name: f"{edge}{name}{edge}" for name in TEMPLATE_NAMES})
        parts = msgspec.json.encode(marked).decode().split(edge)
        return cls(tuple(parts[::2]), tuple(parts[1::2]))

    def fill(self, known: Mapping[str, str]) -> str:
        first, *others = self.texts
        for name, text in zip(self.names, others, strict=True):
            first += known[name] + text
        return first


def _mark_names(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return Template.of(value).fill(known)
    if isinstance(value, dict):
        return {key: _mark_names(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_names(item, known) for item in value]
    return value


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
        plain = {
            name: template.texts[0] for name, template in written.items() if not template.names
        }
        return cls(
            webhook.method,
            url,
            {**plain, **secret_headers},
            tuple((name, template) for name, template in written.items() if template.names),
            Body.of(webhook.body),
            frozenset(name for template in (url, *written.values()) for name in template.names),
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
    form: RequestTemplate, facts: AttemptFacts, signing: Iterable[bytes] = ()
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
    if signatures := [signature(key, signed) for key in signing]:
        headers["webhook-signature"] = " ".join(signatures)
    return PreparedRequest(form.method, _url(form.url, known), headers, sent, form.secret)


def webhook_id(run_id: str) -> str:
    """The webhook-id header: the same for every attempt of a run. Standard Webhooks joins the
    signed parts with full stops, so they are replaced by tildes, which no run id contains."""
    return run_id.replace(".", "~")


def signature(key: bytes, signed: bytes) -> str:
    """A signature of Standard Webhooks: `v1,` and the HMAC-SHA256 of `id.timestamp.body`."""
    return "v1," + binascii.b2a_base64(hmac.digest(key, signed, "sha256"), newline=False).decode()


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


class PartialResponse:
    """Filled while a response arrives, so that a cancelled call keeps what it received."""

    __slots__ = ("address", "body", "headers", "more", "reason", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.more = False
        """Whether the response is longer than what was read, or the call ended before its end."""
        self.address: str | None = None
