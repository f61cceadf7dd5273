"""API keys. The store keeps a hash of each; the key itself is shown once, when it is made.

A key is `ms_ID_SECRET`. The id finds its note. The secret has 256 random bits, so a plain SHA-256
is as safe as a slow hash; it is compared in constant time. Also the rate limits of keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar, cast

from msgspec import Struct, structs

from mainspring.core import note_kinds
from mainspring.core.clock import CarriedClock, Clock, SystemClock
from mainspring.core.model import Note
from mainspring.errors import Conflict, InvalidInput, NotFound, StoreUnavailable
from mainspring.scheduler.client import Client

Scope = Literal["read", "write", "admin"]
KeyState = Literal["active", "expired", "revoked"]
SCOPES: Mapping[str, int] = {"read": 0, "write": 1, "admin": 2}
"""Each scope includes those before it."""

CACHE_SECONDS = 5.0
"""How long a key that was read is reused: a revoked key is valid for at most so many seconds."""

STORE_SECONDS = 2.0
"""How long a scrape waits for the store before its key is checked by what was read last. Drivers
wait longer for a store that is away, and Prometheus ends a scrape after ten seconds."""

T = TypeVar("T")

_UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class Key(Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    scope: Scope
    hash: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def usable(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def state(self, now: datetime) -> KeyState:
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.usable(now) else "expired"

    def to_dict(self, now: datetime) -> dict[str, Any]:
        """What may be shown of the key."""
        return {
            "id": self.id,
            "name": self.name,
            "scope": self.scope,
            "state": self.state(now),
            "created_at": self.created_at,
            "expires_at": self.expires_at,
        }

    def allows(self, scope: Scope) -> bool:
        return SCOPES.get(self.scope, -1) >= SCOPES[scope]


class ApiKeys:
    """The keys of a store. Keys that were read are cached for a few seconds."""

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._time = CarriedClock(self._clock)
        self._known: dict[str, tuple[float, Key]] = {}
        self._any: tuple[float, bool] | None = None

    async def create(
        self, name: str, scope: str, expires_in: timedelta | None = None
    ) -> tuple[Key, str]:
        """Make a key. Returns it and its text, which cannot be read again."""
        if scope not in SCOPES:
            raise InvalidInput(f"a scope is one of {', '.join(SCOPES)}, not {scope!r}")
        if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
            raise InvalidInput(f"a key's name is 1 to 200 printable characters, not {name!r}")
        if expires_in is not None and expires_in <= timedelta(0):
            # Once there is a key, every request needs a valid one: this one would lock out all.
            raise InvalidInput(
                "is longer than zero, as in 90d, or left out for a key that does not expire",
                subject="the time until a key expires",
                field="expires_in",
                given=expires_in,
            )
        now = await self._client.now()
        secret = secrets.token_urlsafe(32)
        key = Key(
            id=secrets.token_hex(6),
            name=name,
            scope=cast(Scope, scope),
            hash=_hash(secret),
            created_at=now,
            expires_at=None if expires_in is None else now + expires_in,
        )
        note = Note(kind=note_kinds.API_KEY, name=key.id, value=_value(key))
        if await self._client.put_note(note) is None:
            raise Conflict("a key with the same random id exists; try again")
        self._any = (self._clock.monotonic(), True)
        return key, f"ms_{key.id}_{secret}"

    async def list(self) -> list[Key]:
        keys: list[Key] = []
        cursor: str | None = None
        while True:
            page = await self._client.list_notes(note_kinds.API_KEY, cursor=cursor)
            keys += [_read(note) for note in page.items]
            if (cursor := page.cursor) is None:
                return sorted(keys, key=lambda key: key.created_at)

    async def revoke(self, key_id: str) -> Key:
        """Make a key invalid. It stays in the list, so that a store with revoked keys alone still
        needs a key."""
        while True:
            note = await self._client.note(note_kinds.API_KEY, key_id)
            if note is None:
                raise NotFound(f"there is no key {key_id!r}")
            key = _read(note)
            if key.revoked_at is not None:
                self._known[key_id] = (self._clock.monotonic(), key)
                return key
            key = structs.replace(key, revoked_at=await self._client.now())
            if await self._client.put_note(
                Note(kind=note_kinds.API_KEY, name=key_id, value=_value(key), version=note.version)
            ):
                self._known[key_id] = (self._clock.monotonic(), key)
                return key

    async def is_only_admin(self, key_id: str) -> bool:
        """Whether this key is valid and of the scope admin, and no other is."""
        now = await self._client.now()
        admins = {key.id for key in await self.list() if key.usable(now) and key.scope == "admin"}
        return admins == {key_id}

    async def any_exists(
        self, max_age: float = CACHE_SECONDS, *, cached_if_away: bool = False
    ) -> bool:
        """Whether a key was ever made: from then on every request needs one. `cached_if_away` as in
        `check`."""
        known = self._any
        if known is None:
            return await self._read_any()
        if self._clock.monotonic() - known[0] <= max_age:
            return known[1]
        return await (_read_or(self._read_any(), known[1]) if cached_if_away else self._read_any())

    async def _read_any(self) -> bool:
        now = self._clock.monotonic()
        page = await self._client.list_notes(note_kinds.API_KEY, limit=1)
        if self._any is None or self._any[0] <= now:  # else a newer read is stored
            self._any = (now, bool(page.items))
        return self._any[1]

    async def now(self) -> datetime:
        """The store's clock, by which keys expire."""
        return await self._client.now()

    async def check(self, text: str, *, cached_if_away: bool = False) -> Key | None:
        """The key with this text, if it is valid now. With `cached_if_away`, what was last read
        counts while the store does not answer, but never beyond the key's expiry."""
        prefix, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        fits = prefix == "ms" and key_id.isascii()
        known = await self._key(key_id, cached_if_away=cached_if_away) if fits else None
        # Always compared, so that the time taken does not show which ids exist.
        same = hmac.compare_digest(_hash(secret), known.hash if known else _hash(""))
        return known if same and known is not None and known.usable(self._time.now()) else None

    async def usable(self, key_id: str) -> Key | None:
        """The key of this id, if it is valid now."""
        known = await self._key(key_id)
        return known if known is not None and known.usable(self._time.now()) else None

    async def still_valid(self, key_id: str | None, max_age: float) -> bool:
        """Whether a request with that key, or with none, would be accepted now, by what was read at
        most `max_age` seconds ago."""
        if key_id is None:
            return not await self.any_exists(max_age)
        known = await self._key(key_id, max_age)
        return known is not None and known.usable(self._time.now())

    async def _key(
        self, key_id: str, max_age: float = CACHE_SECONDS, *, cached_if_away: bool = False
    ) -> Key | None:
        if len(key_id) != 12:
            return None
        read_at, known = self._known.get(key_id, (None, None))
        if read_at is not None and self._clock.monotonic() - read_at <= max_age:
            return known
        if cached_if_away and known is not None:
            return await _read_or(self._read_key(key_id), known)
        return await self._read_key(key_id)

    async def _read_key(self, key_id: str) -> Key | None:
        now = self._clock.monotonic()
        note = await self._client.note(note_kinds.API_KEY, key_id)
        if note is None:
            # Not cached: made-up ids would fill the cache.
            self._known.pop(key_id, None)
            return None
        self._time.correct(await self._client.now())
        known = self._known.get(key_id)
        if known is None or known[0] <= now:  # else a newer read is stored
            known = self._known[key_id] = (now, _read(note))
        return known[1]


async def _read_or(read: Coroutine[Any, Any, T], known: T) -> T:
    """What the store answers, or what is known if it does not answer in time. A slow read goes on,
    so that the next request has its result."""
    task = asyncio.ensure_future(read)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([task], timeout=STORE_SECONDS)
    if not task.done() or isinstance(task.exception(), StoreUnavailable):
        return known
    return task.result()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _value(key: Key) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(key).items() if name != "id"}


def _read(note: Note) -> Key:
    """The key of a note. One that cannot be read is revoked: it must not be valid, and it must stay
    in the list, because a store that has a key needs one."""
    try:
        return Key(id=note.name, **note.value)
    except TypeError:
        return Key(
            id=note.name,
            name="(unreadable)",
            scope="read",
            hash="",
            created_at=_UNKNOWN_TIME,
            revoked_at=_UNKNOWN_TIME,
        )


# -- how often a key may be used ------------------------------------------------------------------


class RateState(NamedTuple):
    """What a client may know of its rate: as the headers `RateLimit-*` say it."""

    limit: int
    remaining: int
    reset: int
    """Seconds until all is there again."""


class RateLimiter:
    """A token bucket for each name: `rate` tokens a second, and up to `burst` saved."""

    MAX_NAMES = 10_000
    MOST_DEBT = 10
    """How many bursts a name may owe after it was charged."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take a token. Returns 0, or if none is left how many seconds to wait for the next."""
        left = self._tokens(name)
        wait = max(0.0, (1 - left) / self._rate)
        self._keep(name, left if wait else left - 1)
        return wait

    def charge(self, name: str, tokens: float) -> None:
        """Take tokens for what was done already. If there are fewer, the name owes them."""
        self._keep(name, max(self._tokens(name) - tokens, -self.MOST_DEBT * self._burst))

    def state(self, name: str) -> RateState:
        left = self._tokens(name)
        reset = math.ceil((self._burst - left) / self._rate)
        return RateState(math.floor(self._burst), max(0, math.floor(left)), reset)

    def _tokens(self, name: str) -> float:
        now = self._clock.monotonic()
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _keep(self, name: str, left: float) -> None:
        self._left.pop(name, None)
        self._left[name] = (left, self._clock.monotonic())
        if len(self._left) > self.MAX_NAMES:  # the name that was used longest ago
            del self._left[next(iter(self._left))]
