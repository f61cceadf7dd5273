"""Which headers are secret, and how secrets are masked, also where an endpoint echoes them.

An endpoint may return a header as JSON, HTML or part of a URL, or return only a part of it. The
redactor computes these forms once, when a job's secrets are decrypted; each call only searches for
them. A secret that was hashed, shortened or written in capitals is not recognised.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote

MASK = "********"
"""Shown in place of a secret. As a value in an edit it means "unchanged"."""

SECRET = frozenset({"authorization", "cookie", "x-api-key"})
"""Headers that are encrypted even if the user does not mark them as secret."""

_SECRET_WORDS = re.compile(r"token|secret|key|auth(?!or(?!i))|passw|credential")
"""What the name of a header with a secret usually contains: `X-Gitlab-Token`, `Api-Key`."""

_PUBLIC = re.compile(
    r"(x-)?idempotency-key|(www|proxy)-authenticate|authentication-info|:?authority"
    r"|sec-websocket-key|(surrogate|cache|x-cache)-key"
)
"""Headers whose names contain such a word, and whose values are no secrets."""

SHORTEST = 6
"""A shorter text would match parts of ordinary words."""

MAX_FORMS = 300
"""With more forms all of a response is masked: a search for 30,000 blocks the loop for a second."""

_MASK = MASK.encode()
_SCHEMES = frozenset({"basic", "bearer", "token", "apikey"})
_SEPARATORS = re.compile(r"[;,\s]+")
_GO_JSON_ESCAPES = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&"})
_DOTNET_JSON_ESCAPES = str.maketrans({sign: f"\\u{ord(sign):04X}" for sign in "\"&'+<>`"})


def is_secret(name: str, value: str = "") -> bool:
    """Whether a header is a secret by its name. A value with a template is none: a secret is sent
    as it is, and `X-Dedupe-Key: {{executionId}}` has to be filled in."""
    lower = name.lower()
    if lower in SECRET:
        return True
    return bool(_SECRET_WORDS.search(lower)) and not _PUBLIC.fullmatch(lower) and "{{" not in value


def without_secrets(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers of a response with secret values masked."""
    return [
        (name, MASK if name.lower() == "set-cookie" or is_secret(name) else text)
        for name, text in headers
    ]


class SecretRedactor:
    """Knows every form in which a response may contain one of the secrets; the longest first."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for part in _parts(secret) for form in part}
        found_by = (form for form in forms if len(form) >= SHORTEST)
        self.texts = tuple(sorted(found_by, key=len, reverse=True))
        self._hides_all = len(self.texts) > MAX_FORMS
        self._bytes = tuple(text.encode() for text in self.texts)

    def redact(self, text: str) -> str:
        """The text with every secret masked."""
        if self._hides_all and text:
            return MASK
        for part in self.texts:
            text = text.replace(part, MASK)
        return text

    def redact_bytes(self, body: bytes, *, cut: bool = False) -> bytes:
        """The bytes with every secret masked. `cut`: they are the beginning of a longer text, so
        their end may be the beginning of a secret, and is masked too."""
        if self._hides_all and body:
            return _MASK
        for part in self._bytes:
            body = body.replace(part, _MASK)
        if cut and (begun := max((_overlap(body, part) for part in self._bytes), default=0)):
            body = body[:-begun] + _MASK
        return body

    def __repr__(self) -> str:
        return "SecretRedactor(********)"


def _overlap(body: bytes, secret: bytes) -> int:
    """How many bytes at the end of the body are the beginning of the secret."""
    end = body[-(len(secret) - 1) :]
    at = end.find(secret[:1])
    while at >= 0:
        if secret.startswith(end[at:]):
            return len(end) - at
        at = end.find(secret[:1], at + 1)
    return 0


def _parts(secret: str) -> Iterator[Iterable[str]]:
    """The forms of the whole secret, and of the parts that servers take out of it."""
    scheme, _, credentials = secret.partition(" ")
    if scheme.lower() in _SCHEMES and " " not in credentials:
        yield (secret,)  # the scheme is not secret: the forms of the rest suffice
    else:
        yield _forms(secret)
    yield _forms(secret.rpartition(" ")[2])
    if scheme.lower() == "basic":
        pair = _decoded(credentials)
        yield _forms(pair)
        yield _forms(pair.partition(":")[2])
    for word in _SEPARATORS.split(secret):  # a=b; c="d": cookies, and the fields of Digest
        value = word.partition("=")[2].strip('"')
        yield _forms(value)
        yield _forms(unquote(value))


def _decoded(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode("utf-8", "replace")
    except ValueError:
        return ""


def _forms(part: str) -> Iterator[str]:
    if len(part) < SHORTEST:
        return
    # Most servers read the bytes of a header as Latin-1.
    for text in {part, part.encode(errors="replace").decode("latin-1")}:
        yield text
        yield html.escape(text)
        for plain in (True, False):
            escaped = json.dumps(text, ensure_ascii=plain)[1:-1]
            yield escaped
            yield escaped.replace("/", "\\/")  # PHP
            yield escaped.translate(_GO_JSON_ESCAPES)
        yield text.translate(_DOTNET_JSON_ESCAPES)
        yield quote_plus(text)
        for safe in ("", "/", "!'()*"):  # in a query, in a path, by encodeURIComponent
            yield quote(text, safe=safe)
