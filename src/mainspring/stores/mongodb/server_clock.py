"""The clock of the server that holds the data, also through a router.

A router (mongos) puts its own clock in place of `$$NOW` in every write and aggregate; in a
`find` the shard reads its own, and so it does for `$currentDate`. Hence the three rules here:

1. What is due and what has lapsed is decided by a `find`, with `now` in an `$expr`.
2. Leases are stamped by `$currentDate`, or with the `now` that such a `find` has told.
3. A write is guarded by values that were seen (token, leased_at), never by time.

Moments that clients give are whole microseconds. Those that a server stamps are dates, which
MongoDB keeps in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from mainspring.core.clock import Clock, SystemClock, from_us, to_us

__all__ = ["GivenTime", "ServerTime", "microseconds", "read_moment", "span_us", "until"]

Expression = Any
Update = dict[str, Any]


def microseconds(field: str) -> Expression:
    """A field that is a date or whole microseconds, as the latter."""
    number = {"$convert": {"input": field, "to": "long", "onError": _NEVER // 1000, "onNull": None}}
    return {"$cond": [{"$isNumber": field}, field, {"$multiply": [number, 1000]}]}


_NEVER = 2**60
"""For what is neither: a lease that is damaged has not lapsed, for its owner may live, and the next
renewal makes it whole."""


def until(since: str, span: str) -> Expression:
    """When something that lasts `span` microseconds is over."""
    length = {"$cond": [{"$isNumber": f"${span}"}, f"${span}", _NEVER]}
    return {"$add": [microseconds(f"${since}"), length]}


class ServerTime:
    """Each server's own clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def elapsed(self) -> float:
        """Seconds by this process's own: only for how long it has seen something."""
        return self._clock.monotonic()

    @property
    def now(self) -> Expression:
        """In a `find`: whole microseconds. Folded to a constant, so indexes serve it."""
        return {"$multiply": [{"$toLong": "$$NOW"}, 1000]}

    def ago(self, span: int) -> Expression:
        """In a `find`: that long ago, at least, comparable with what `stamped` writes."""
        return {"$subtract": ["$$NOW", span // 1000]}

    def stamped(self, update: Mapping[str, Any], *fields: str) -> Update:
        """The update, and these fields set to the moment it is applied."""
        return {**update, "$currentDate": dict.fromkeys(fields, True)}

    def stamp(self, now: int) -> datetime | int:
        """A `now` that a `find` has told, as `stamped` writes it."""
        return from_us(now)


class GivenTime(ServerTime):
    """A clock that a test moves, in place of the servers'. One client's clock: never for real."""

    @property
    def now(self) -> Expression:
        return {"$literal": to_us(self._clock.now())}

    def ago(self, span: int) -> Expression:
        return {"$literal": to_us(self._clock.now()) - span}

    def stamp(self, now: int) -> datetime | int:
        return now

    def stamped(self, update: Mapping[str, Any], *fields: str) -> Update:
        moment = to_us(self._clock.now())
        return {**update, "$set": {**update.get("$set", {}), **dict.fromkeys(fields, moment)}}


def read_moment(kept: datetime | int | None) -> datetime | None:
    """What a document keeps as a time: microseconds, or a date that a server stamped."""
    if kept is None:
        return None
    if isinstance(kept, datetime):
        return kept.replace(tzinfo=UTC) if kept.tzinfo is None else kept.astimezone(UTC)
    return from_us(kept)


def span_us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
