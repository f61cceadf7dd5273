"""Sessions of people who signed in with an API key: a cookie that stands for the key.

The key itself stays out of the browser. The store keeps a hash of the cookie and the id of the key,
as a note that expires. A session ends when it expires, when its person signs out, or when its key
is revoked or expires.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from starlette.datastructures import Headers

from mainspring.core.clock import Clock, SystemClock
from mainspring.core.model import Note
from mainspring.errors import Conflict
from mainspring.service.api_keys import CACHE_SECONDS, ApiKeys, Key, NoteStore

__all__ = ["SESSION_TTL", "Sessions", "cookie_name", "session_cookie"]

COOKIE = "mainspring_session"
HOST_PREFIX = "__Host-"
"""A browser takes a cookie of such a name only over HTTPS, from this host itself: no page
of another port or subdomain can put its own in place."""
KIND = "session"
SESSION_TTL = timedelta(hours=12)
MOST_CACHED = 1000


class Sessions:
    """The sessions of a store. What was read is cached for a few seconds, as keys are."""

    def __init__(self, notes: NoteStore, keys: ApiKeys, clock: Clock | None = None) -> None:
        self._notes = notes
        self._keys = keys
        self._clock = clock or SystemClock()
        self._known: dict[str, tuple[float, str]] = {}

    async def create(self, key: Key) -> tuple[str, datetime]:
        """Begin a session. Returns the cookie's text and when the session ends."""
        text = secrets.token_urlsafe(32)
        ends = await self._notes.now() + SESSION_TTL
        note = Note(kind=KIND, name=_hash(text), value={"key": key.id}, expires_at=ends)
        if await self._notes.put_note(note) is None:
            raise Conflict("a session with the same random text exists; try again")
        return text, ends

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
        now = self._clock.monotonic()
        note = await self._notes.note(KIND, name)
        self._known.pop(name, None)
        if note is None or note.value is None:
            return None
        key_id = str(note.value["key"])
        self._known[name] = (now, key_id)
        if len(self._known) > MOST_CACHED:
            del self._known[next(iter(self._known))]
        return key_id

    async def end(self, text: str) -> None:
        name = _hash(text)
        await self._notes.remove_note(KIND, name)
        self._known.pop(name, None)


def cookie_name(headers: Headers) -> str:
    """The name of the session's cookie. It has the port of the address that the browser uses: a
    browser sends cookies to all ports of a host, and each service there needs its own."""
    _, _, port = headers.get("host", "").rpartition(":")
    return f"{COOKIE}_{port}" if port.isascii() and port.isdigit() else COOKIE


def session_cookie(headers: Headers) -> str | None:
    """The text of the session's cookie, or None. Read by hand: the standard library's parser drops
    every cookie behind one that it cannot read."""
    parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    cookies = {name: value for name, _, value in parts if value}
    name = cookie_name(headers)
    return cookies.get(HOST_PREFIX + name) or cookies.get(name)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
