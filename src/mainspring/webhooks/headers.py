"""Decides which headers may be set, which are secret, and how secrets are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mainspring.errors import InvalidInput

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

MAX_HEADERS = 50
MAX_HEADER_VALUE = 8_000
MAX_HEADER_CHARACTERS = 32_000

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\U0010ffff]*")
_RESERVED = {
    "host": "it is made from the URL",
    "content-length": "it is made from the body",
    "transfer-encoding": "bodies are sent whole",
    "connection": "Mainspring sets the headers that control the connection",
    "keep-alive": "Mainspring sets the headers that control the connection",
    "proxy-connection": "Mainspring sets the headers that control the connection",
    "proxy-authorization": "no proxy is used",
    "te": "Mainspring sets the headers that control the connection",
    "trailer": "bodies are sent whole",
    "upgrade": "Mainspring sets the headers that control the connection",
    "expect": "bodies are sent at once",
    "webhook-id": "every request is signed with it",
    "webhook-timestamp": "every request is signed with it",
    "webhook-signature": "every request is signed with it",
}


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse names and values that would break the request, such as line breaks."""
    if len(headers) > MAX_HEADERS:
        raise InvalidInput(f"a webhook has at most {MAX_HEADERS} headers, not {len(headers)}")
    seen: set[str] = set()
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInput(
                f"a header name is 1 to 100 letters, digits and dashes, not {shown_name(name)!r}"
            )
        lower = name.lower()
        if lower in _RESERVED:
            raise InvalidInput(f"the header {name} cannot be set: {_RESERVED[lower]}")
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
        if not _VALUE.fullmatch(value) or not _encodes(value):
            raise InvalidInput(
                f"the header {name} has a line break or another character that no header can hold"
            )


def shown_name(name: object) -> str:
    """The part of a name that may be quoted: `Authorization: Bearer x` as a name holds a secret."""
    text = str(name)
    found = _NAME.match(text)
    begins = found[0] if found else ""
    return text if begins == text else f"{begins}…"


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


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return value == value.strip()
