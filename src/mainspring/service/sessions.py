"""Sessions of people who signed in with an API key: a cookie that stands for the key.

The key itself stays out of the browser. The store keeps a note of each key with the hashes of its
cookies, so the sessions of a key are bounded. A session ends when it expires, when its person signs
out, or when its key is revoked or expires.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from starlette.datastructures import Headers
from starlette.types import Scope

from mainspring.core import note_kinds
from mainspring.core.clock import Clock, SystemClock
from mainspring.core.model import Note
from mainspring.scheduler.client import Client
from mainspring.service.api_keys import CACHE_SECONDS, ApiKeys, Key

COOKIE = "mainspring_session"
HOST_PREFIX = "__Host-"
"""A browser takes a cookie of such a name only over HTTPS, from this host itself: no page
of another port or subdomain can put its own in place."""
SESSION_TTL = timedelta(hours=12)
MAX_SESSIONS = 20
"""How many sessions a key may have at once."""
MOST_CACHED = 1000


class Sessions:
    """The sessions of a store. What was read is cached for a few seconds, as keys are."""

    def __init__(self, client: Client, keys: ApiKeys, clock: Clock | None = None) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock or SystemClock()
        self._known: dict[str, tuple[float, str]] = {}

    async def create(self, key: Key) -> tuple[str, datetime]:
        """Begin a session. Returns the cookie's text and when the session ends. The oldest session
        of the key ends if it has as many as it may."""
        text = f"{key.id}.{secrets.token_urlsafe(32)}"
        while True:
            now = await self._client.now()
            ends = now + SESSION_TTL
            note = await self._client.note(note_kinds.SESSION, key.id)
            sessions = {hash: end for hash, end in _sessions(note).items() if end > now}
            newest = sorted(sessions, key=sessions.__getitem__)[-(MAX_SESSIONS - 1) :]
            kept = {hash: sessions[hash] for hash in newest}
            if await self._put(key.id, note, {**kept, _hash(text): ends}):
                return text, ends

    async def _put(self, key_id: str, note: Note | None, sessions: dict[str, datetime]) -> bool:
        fresh = Note(
            kind=note_kinds.SESSION,
            name=key_id,
            value={"sessions": sessions},
            version=0 if note is None else note.version,
            expires_at=max(sessions.values()),
        )
        return await self._client.put_note(fresh) is not None

    async def key(self, text: str) -> Key | None:
        """The key that the session stands for, if both are valid now."""
        key_id = await self._key_id(text, CACHE_SECONDS)
        return None if key_id is None else await self._keys.usable(key_id)

    async def exists(self, text: str, max_age: float) -> bool:
        """Whether the session goes on, by what was read at most `max_age` seconds ago. Its key may
        be invalid."""
        return await self._key_id(text, max_age) is not None

    async def _key_id(self, text: str, max_age: float) -> str | None:
        """The id of the session's key, or None if there is no such session or its note is
        unreadable."""
        name = _hash(text)
        read_at, key_id = self._known.get(name, (None, ""))
        if read_at is not None and self._clock.monotonic() - read_at <= max_age:
            return key_id
        at = self._clock.monotonic()
        key_id = _key_id(text)
        note = await self._client.note(note_kinds.SESSION, key_id) if key_id else None
        self._known.pop(name, None)
        ends = _sessions(note).get(name)
        if ends is None or ends <= await self._client.now():
            return None
        self._known[name] = (at, key_id)
        if len(self._known) > MOST_CACHED:
            del self._known[next(iter(self._known))]
        return key_id

    async def end(self, text: str) -> None:
        name, key_id = _hash(text), _key_id(text)
        while True:
            note = await self._client.note(note_kinds.SESSION, key_id) if key_id else None
            sessions = dict(_sessions(note))
            if sessions.pop(name, None) is None:
                break
            if not sessions:
                await self._client.remove_note(note_kinds.SESSION, key_id)
                break
            if await self._put(key_id, note, sessions):
                break
        self._known.pop(name, None)


def _key_id(text: str) -> str:
    """The id of the key in a cookie's text; empty if it is no such text."""
    key_id = text.partition(".")[0]
    return key_id if len(key_id) == 12 and key_id.isascii() and key_id.isalnum() else ""


def _sessions(note: Note | None) -> dict[str, datetime]:
    """The sessions of a note, by the hash of their text: when each ends."""
    if note is None or note.value is None:
        return {}
    sessions: dict[str, datetime] = note.value["sessions"]
    return sessions


def cookie_name(headers: Headers) -> str:
    """The name of the session's cookie. It has the port of the address that the browser uses: a
    browser sends cookies to all ports of a host, and each service there needs its own."""
    _, _, port = headers.get("host", "").rpartition(":")
    return f"{COOKIE}_{port}" if port.isascii() and port.isdigit() else COOKIE


def browser_scheme(headers: Headers, scheme: str) -> str:
    """The scheme that the browser uses, or "" if that is not known. A proxy says it; each further
    proxy may add its own."""
    forwarded = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return forwarded or ("https" if scheme == "https" else "")


def has_host_cookie(scope: Scope) -> bool:
    """Whether the session's cookie has the prefix `__Host-`, as far as the request shows: its
    Origin, too, says that the browser uses HTTPS."""
    return uses_https(scope) and not scope.get("root_path")


def uses_https(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    known = browser_scheme(headers, scope.get("scheme", ""))
    return known == "https" or headers.get("origin", "").startswith("https:")


def session_cookie(scope: Scope) -> str | None:
    """The text of the session's cookie, or None. Read by hand: the standard library's parser drops
    every cookie behind one that it cannot read."""
    headers = Headers(scope=scope)
    parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    cookies = {name: value for name, _, value in parts if value}
    name = cookie_name(headers)
    text = cookies.get(HOST_PREFIX + name)
    return text if text or has_host_cookie(scope) else cookies.get(name)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
