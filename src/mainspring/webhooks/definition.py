"""Checks webhooks as users write them, and encrypts their secrets."""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from mainspring.core import codec
from mainspring.core.model import Sealed, SigningSecret, Webhook, replace
from mainspring.errors import InputErrors, InvalidInput
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.redaction import MASK, is_secret
from mainspring.webhooks.request import check_templates, strip_template_spaces
from mainspring.webhooks.vault import Vault, new_signing_secret, signing_bytes

Given = str | Mapping[str, Any] | Webhook
"""A URL, an object of `FIELDS`, or a Webhook without secrets."""

FIELDS = (
    "url", "method", "headers", "secret_headers", "body", "success", "retry_on", "signing_secret",
)  # fmt: skip

MAX_URL = 2_000
MAX_HEADERS = 50
MAX_HEADER_VALUE = 8_000
MAX_HEADER_CHARACTERS = 32_000
MAX_STATUS_CODES = 500
"""In one list: there are so many codes."""
_ANY_URL = "https://example.org/"
"""Stands for a wrong URL while the other fields are checked."""

_METHOD = re.compile(r"[A-Z][A-Z-]{0,19}")
_USUAL_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_UNSAFE = re.compile(r"[\s\\\x00-\x1f\x7f-\x9f]")
_USER = re.compile(r"[^/?#]*//[^/?#]*@")
_RANGE = re.compile(r"([1-5])xx|([1-5]\d\d)(?:\s*-\s*([1-5]\d\d))?")
_UNESCAPED = "/%:@!$&'()*+,;=~?[]{}"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\U0010ffff]*")
_RESERVED_HEADERS = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade"),
        *("proxy-connection", "proxy-authorization", "te", "trailer", "expect"),
        *("webhook-id", "webhook-timestamp", "webhook-signature"),
    }
)
"""Headers of the connection and of the signature."""


def define(job_id: str, given: Given, vault: Vault, allow: AllowList) -> Webhook:
    """A new webhook. It gets a new signing secret if none was given. Without an encryption key no
    secret can be kept, so the webhook is not signed."""
    fields = _fields(given)
    errors, url = InputErrors(), _ANY_URL
    if "url" not in fields:
        errors.add(InvalidInput("a webhook needs a url", field="webhook.url"))
    else:
        with errors:
            url = _url(fields["url"], allow)
    webhook = Webhook(url=url, **_check_fields(fields, errors))
    with errors:
        webhook = _with_headers(webhook, job_id, fields, {}, vault)
    secret = fields.get("signing_secret")
    if secret is not None or vault.is_usable:
        with errors:
            signing = sign_with(job_id, secret or new_signing_secret(), vault)
            webhook = replace(webhook, signing=(signing,))
    errors.check()
    return webhook


def change(job_id: str, webhook: Webhook, given: Given, vault: Vault, allow: AllowList) -> Webhook:
    """A webhook with changes. Fields that are not given stay.

    `headers` replaces all headers; the mask as a value keeps the stored secret. A change to another
    origin drops secret headers that are not given again, and refuses the mask: people who may edit
    a job must not be able to send its secrets to a host of theirs.
    """
    fields = _fields(given)
    if "signing_secret" in fields:
        raise InvalidInput(
            "a signing secret is replaced by rotating it, not by an edit",
            field="webhook.signing_secret",
        )
    errors, url = InputErrors(), webhook.url
    if "url" in fields:
        with errors:
            url = _url(fields["url"], allow)
    moved = origin_of(url) != origin_of(webhook.url)
    after = replace(webhook, url=url, **_check_fields(fields, errors))
    kept = {} if moved else webhook.secret_headers
    if "headers" in fields or "secret_headers" in fields:
        marked = {name.lower() for name in webhook.secret_headers}
        with errors:
            after = _with_headers(after, job_id, fields, kept, vault, marked)
    else:
        after = replace(after, secret_headers=kept)
    errors.check()
    return after


def sign_with(job_id: str, secret: str, vault: Vault) -> SigningSecret:
    with _errors_of("webhook.signing_secret"):
        signing_bytes(secret)
        return SigningSecret(vault.seal(secret, job_id, "the signing secret"))


@lru_cache(maxsize=4096)
def origin_of(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{parts.hostname}:{port}"


@lru_cache(maxsize=4096)
def host_of(url: str) -> str:
    """Host and port: calls are limited for each of them, whatever the scheme and path."""
    return origin_of(url).partition("//")[2]


def check_body(body: Any, what: str = "the body") -> Any:
    """A copy of a body that can be sent: text or JSON, with known templates only."""
    # This refuses NaN, keys that are not text, and large values.
    codec.encode(body, what=what.removeprefix("the "))
    _refuse_non_json(body, what)
    check_templates(body, what)
    try:
        return msgspec.json.decode(msgspec.json.encode(body))
    except (ValueError, msgspec.DecodeError):
        raise InvalidInput(
            f"{what} contains text that is not valid Unicode (a lone surrogate)"
        ) from None


def check_payload(payload: Any) -> None:
    """Refuse the payload of a run that cannot be the body of its request."""
    with _errors_of("payload"):
        check_body(payload, "the payload")


@contextmanager
def _errors_of(field: str) -> Iterator[None]:
    """Give errors the field that is being checked."""
    try:
        yield
    except InvalidInput as error:
        error.field = field
        raise


def _fields(given: Given) -> dict[str, Any]:
    if isinstance(given, str):
        return {"url": given}
    if isinstance(given, Webhook):
        if given.secret_headers or given.signing:
            raise InvalidInput(
                "the secrets of a stored webhook belong to its job: give a URL or an object with"
                " the secrets in clear",
                field="webhook",
            )
        names = set(given.__struct_fields__) - {"secret_headers", "signing"}
        return {name: getattr(given, name) for name in names}
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"a webhook is a URL or an object, not {type(given).__name__}", field="webhook"
        )
    unknown = sorted(map(str, given.keys() - set(FIELDS)))
    if unknown:
        raise InvalidInput(
            f"a webhook has no {', '.join(unknown)}; it takes {', '.join(FIELDS)}",
            field=f"webhook.{unknown[0]}",
            allowed=FIELDS,
        )
    return dict(given)


def _check_fields(fields: Mapping[str, Any], errors: InputErrors) -> dict[str, Any]:
    """Check the fields that need neither keys nor the old webhook. None means the default."""
    checked: dict[str, Any] = {}
    readers: dict[str, Callable[[Any], Any]] = {
        "method": _method,
        "body": check_body,
        "success": lambda codes: _codes(codes) or ((200, 299),),
        "retry_on": _codes,
    }
    for name, read in readers.items():
        if name in fields:
            with errors, _errors_of(f"webhook.{name}"):
                checked[name] = read(fields[name])
    return checked


def _method(given: Any) -> str:
    method = "POST" if given is None else given
    if not isinstance(method, str) or not _METHOD.fullmatch(method.upper()):
        raise InvalidInput(f"a method is a word such as POST or GET, not {given!r}")
    if method.upper() == "CONNECT":
        raise InvalidInput("the method CONNECT opens a tunnel; use a method such as POST or GET")
    near = difflib.get_close_matches(method.upper(), _USUAL_METHODS, 1, 0.66)
    if near and near[0] != method.upper() and abs(len(near[0]) - len(method)) < 2:
        raise InvalidInput(f"{given!r} is not a usual method (did you mean {near[0]!r}?)")
    return method.upper()


@_errors_of("webhook.url")
def _url(given: Any, allow: AllowList) -> str:
    if not isinstance(given, str) or not given:
        shown = repr(given) if given in ("", None) else type(given).__name__
        raise InvalidInput(f"a url is text such as https://example.org/hook, not {shown}")
    given = strip_template_spaces(given)
    if len(given) > MAX_URL:
        raise InvalidInput(f"a url has at most {MAX_URL:,} characters, not {len(given):,}")
    if _UNSAFE.search(given):
        raise InvalidInput("a url has no spaces, backslashes or control characters: encode them")
    if _USER.match(given):  # checked before any message quotes the URL: it holds a password
        raise InvalidInput(
            "a url cannot contain a user or password: give them in the header Authorization,"
            " which is kept encrypted"
        )
    try:
        parts = urlsplit(given)
        port = parts.port
        host = _canonical_host((parts.hostname or "").encode("idna").decode())
    except (ValueError, UnicodeError) as error:
        words = f": {error}" if "@" not in given else ""
        raise InvalidInput(f"the url{_quoted_url(given, ' ')} cannot be read{words}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidInput(
            f"a url begins with https:// or http:// and a host{_quoted_url(given, ', not ')}"
        )
    if "{{" in parts.netloc:
        raise InvalidInput("a template may be in the path or the query of a url, not in its host")
    if port == 0 or parts.fragment:
        raise InvalidInput(f"a url has no fragment (#…) and no port 0{_quoted_url(given, ': ')}")
    check_templates(given, "the url")
    why = allow.refusal_of_host(host)
    if why is not None:
        raise InvalidInput(
            f"webhooks may not call {why}; an operator can allow it by host or range:"
            f" MAINSPRING_ALLOW_PRIVATE={host}, `mainspring serve --allow-private {host}`, or"
            f" WebhookSettings(allow=[{host!r}])"
        )
    netloc = f"[{host}]" if ":" in host else host
    netloc += f":{port}" if port is not None else ""
    path, query = quote(parts.path or "/", safe=_UNESCAPED), quote(parts.query, safe=_UNESCAPED)
    canonical: str = urlunsplit((parts.scheme, netloc, path, query, ""))
    return canonical


def _quoted_url(url: str, before: str) -> str:
    """The URL for a message, unless it has an @: the text before it may be a password."""
    return "" if "@" in url else f"{before}{url!r}"


def _canonical_host(host: str) -> str:
    """The usual form of an address: `127.1`, `0x7f.1` and `2130706433` mean 127.0.0.1."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host.rstrip(".")))
    except OSError:
        return host


@_errors_of("webhook.headers")
def _with_headers(
    webhook: Webhook,
    job_id: str,
    fields: Mapping[str, Any],
    kept: Mapping[str, Sealed],
    vault: Vault,
    marked: set[str] | frozenset[str] = frozenset(),
) -> Webhook:
    plain, secret = _mapping(fields, "headers"), _mapping(fields, "secret_headers")
    check_headers({**plain, **secret})
    for name in list(plain):
        if is_secret(name, plain[name]) or name.lower() in marked:
            secret.setdefault(name, plain.pop(name))
    if {name.lower() for name in plain} & {name.lower() for name in secret}:
        raise InvalidInput("a header is given both plain and as a secret")
    for name, text in plain.items():
        if text == MASK:
            raise _missing_secret_error(name)
        check_templates(text, f"the header {name}")
    there = {name.lower(): sealed for name, sealed in kept.items()}
    sealed: dict[str, Sealed] = {}
    for name, text in secret.items():
        if text != MASK:
            origin = origin_of(webhook.url)
            sealed[name] = vault.seal(text, job_id, f"the header {name.lower()}", origin)
        elif name.lower() in there:
            sealed[name] = there[name.lower()]
        else:
            raise _missing_secret_error(name)
    return replace(webhook, headers=plain, secret_headers=sealed)


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse names and values that would break the request, such as line breaks."""
    if len(headers) > MAX_HEADERS:
        raise InvalidInput(f"a webhook has at most {MAX_HEADERS} headers, not {len(headers)}")
    seen: set[str] = set()
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(
                f"a header name is 1 to 100 letters, digits and dashes, not {shown_name(name)!r}"
            )
        lower = name.lower()
        if lower in _RESERVED_HEADERS:
            raise InvalidInput(f"the header {name} cannot be set: Mainspring sets it itself")
        if lower in seen:
            raise InvalidInput(f"the header {name} is given twice")
        seen.add(lower)
        if not isinstance(value, str):  # the message does not quote the value: it may be a secret
            raise InvalidInput(f"the header {name} takes text, not {type(value).__name__}")
        if len(value) > MAX_HEADER_VALUE:
            raise InvalidInput(
                f"the header {name} has {len(value):,} characters; {MAX_HEADER_VALUE:,} are allowed"
            )
        size += len(name) + len(value)
        if size > MAX_HEADER_CHARACTERS:
            raise InvalidInput(
                f"a webhook's headers have at most {MAX_HEADER_CHARACTERS:,} characters"
            )
        if not _HEADER_VALUE.fullmatch(value) or not _encodes(value):
            raise InvalidInput(
                f"the header {name} has a line break or another character that no header can hold"
            )


def shown_name(name: object) -> str:
    """The part of a name that may be quoted: `Authorization: Bearer x` as a name holds a secret."""
    text = str(name)
    match = _HEADER_NAME.match(text)
    begins = match[0] if match else ""
    return text if begins == text else f"{begins}…"


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return value == value.strip()


def _missing_secret_error(name: str) -> InvalidInput:
    return InvalidInput(
        f"{MASK} stands for a stored secret, and there is none for {name} at this host: send the"
        " value of the header, or leave the header out"
    )


def _mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = fields.get(name)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{name} is an object of names and texts, not {type(given).__name__}")
    return dict(given)


def _codes(given: Any) -> tuple[tuple[int, int], ...] | None:
    """Parse status codes: 204, "2xx", "200-299", or a list of them."""
    if given is None:
        return None
    items = given if isinstance(given, list | tuple) else [given]
    if len(items) > MAX_STATUS_CODES:
        raise InvalidInput(f"has at most {MAX_STATUS_CODES} items, not {len(items):,}")
    ranges = []
    for item in items:
        if isinstance(item, list | tuple) and len(item) == 2:
            item = f"{item[0]}-{item[1]}"
        match = None if isinstance(item, bool) else _RANGE.fullmatch(str(item).strip().lower())
        if match is None or (match[3] and match[3] < match[2]):
            raise InvalidInput(
                f'a status code is 204, "2xx", "200-299", or a list of such, not {item!r}'
            )
        if match[1]:
            ranges.append((int(match[1]) * 100, int(match[1]) * 100 + 99))
        else:
            ranges.append((int(match[2]), int(match[3] or match[2])))
    return tuple(sorted(ranges))


def _refuse_non_json(value: Any, what: str) -> None:
    """Refuse values that JSON does not have: an endpoint cannot read our tags for dates and the
    like."""
    if isinstance(value, dict):
        for item in value.values():
            _refuse_non_json(item, what)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_non_json(item, what)
    elif not isinstance(value, str | int | float | bool | None):
        raise InvalidInput(f"{what} holds a {type(value).__name__}: write it as text or a number")
