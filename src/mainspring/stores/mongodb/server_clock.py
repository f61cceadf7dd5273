"""Reads the clock of the server that holds the data, also through a router (mongos).

A router replaces `$$NOW` by its own time in every write and aggregate. In a `find` the shard uses
its own time, and for `$currentDate` too. So there are three rules:

1. What is due and what has lapsed is decided by a `find`, with `now` in an `$expr`.
2. Leases are stamped by `$currentDate`, or with the `now` that such a `find` has returned.
3. A write is guarded by values that were read (token, leased_at), never by time.

Times that clients write are whole microseconds. Those that a server stamps are dates, which MongoDB
keeps in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from mainspring.core.clock import Clock, SystemClock, from_us, to_us

Expression = Any
Update = dict[str, Any]


def microseconds(field: str) -> Expression:
    """A field that is a date or whole microseconds, as the latter."""
    number = {"$convert": {"input": field, "to": "long", "onError": _NEVER // 1000, "onNull": None}}
    return {"$cond": [{"$isNumber": field}, field, {"$multiply": [number, 1000]}]}


_NEVER = 2**60
"""The value of a damaged lease. It does not lapse, because its worker may be alive, and the next
renewal repairs it."""


def until(since: str, span: str) -> Expression:
    """The time `span` microseconds after `since`; both are names of fields."""
    length = {"$cond": [{"$isNumber": f"${span}"}, f"${span}", _NEVER]}
    return {"$add": [microseconds(f"${since}"), length]}


class ServerTime:
    """Each server's own clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: tuple[int, float] | None = None

    def record_now(self, now: int, asked_at: float) -> None:
        """The server's time, and the value of `elapsed` before it was asked for."""
        self._known = now, asked_at

    def expected_now(self) -> int | None:
        """The server's time in microseconds, as far as it is known without asking: too late by the
        time that the answer took, and a millisecond. So it finds what may be due. None: unknown."""
        if self._known is None:
            return None
        now, asked_at = self._known
        return now + round((self.elapsed() - asked_at) * 1e6) + 1000

    def elapsed(self) -> float:
        """Seconds by the clock of this process, to measure how long something lasts."""
        return self._clock.monotonic()

    @property
    def now(self) -> Expression:
        """An expression for `find`: the time in microseconds. The server computes it once for a
        query, so indexes can be used."""
        return {"$multiply": [{"$toLong": "$$NOW"}, 1000]}

    def ago(self, span: int) -> Expression:
        """An expression for `find`: the time `span` microseconds ago, or up to a millisecond later,
        comparable with what `stamped` writes."""
        return {"$subtract": ["$$NOW", span // 1000]}

    def stamped(self, update: Mapping[str, Any], *fields: str) -> Update:
        """The update, with these fields set to the time when it is applied."""
        return {**update, "$currentDate": dict.fromkeys(fields, True)}

    def stamp(self, now: int) -> datetime | int:
        """A `now` that a `find` has returned, in the form that `stamped` writes."""
        return from_us(now)


class GivenTime(ServerTime):
    """A clock that a test moves, in place of the servers' clocks. It is only for tests, because
    each client has its own."""

    def expected_now(self) -> int | None:
        return to_us(self._clock.now())

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
    """A time of a document: microseconds, or a date that a server stamped."""
    if kept is None:
        return None
    if isinstance(kept, datetime):
        return kept.replace(tzinfo=UTC) if kept.tzinfo is None else kept.astimezone(UTC)
    return from_us(kept)


def span_us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
