"""Reads the storage's clock from the `Date` of its answers.

Object storage says its time to the second. A request that was sent at `sent` and answered at
`answered` (monotonic times of this process) with the date D was answered when the storage's clock
showed at least D and less than D + 1 s. So the distance between the two clocks lies between
D - answered and D + 1 s - sent. Each reading gives such an interval, and the distance lies in all
of them: readings at different parts of a second narrow it down. `best_moment` says when the next
reading would halve it.

One reading leaves an interval of a second and a round trip; five leave about a sixteenth of a
second and a round trip. All servers of one storage are taken for one clock: if theirs differ, the
error grows by their difference.

The request is not signed. A storage that refuses the request also sends its date, and on some
services a signature needs permissions that reads and writes do not need.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from msgspec import Struct

from mainspring.core.clock import EPOCH
from mainspring.errors import StoreUnavailable


class Answer(Struct, frozen=True):
    """The answer to a HEAD request: its headers, and when it was sent and answered."""

    headers: Mapping[str, str]
    sent: float
    answered: float

    def date(self) -> datetime:
        text = self.headers.get("date")
        if text is None or "age" in self.headers:
            raise StoreUnavailable(
                "the storage's answer has no date of its own, so its clock cannot be read. A proxy"
                " in between has to pass the Date header on, and must not cache answers"
            )
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            raise StoreUnavailable(f"the storage's answer has the date {text!r}") from None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class DateBounds:
    """Bounds of the distance between the storage's clock and this process's monotonic clock, from
    readings within a few seconds."""

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf

    def add(self, answer: Answer) -> None:
        """Take an answer into account. One that contradicts the earlier ones replaces them: the
        clock was set, or two servers of the storage differ."""
        seconds = (answer.date() - EPOCH).total_seconds()
        low, high = seconds - answer.answered, seconds + 1 - answer.sent
        if low <= self._high and self._low <= high:
            low, high = max(low, self._low), min(high, self._high)
        self._low, self._high = low, high

    def at(self, monotonic: float) -> tuple[datetime, datetime]:
        """The earliest and the latest time that the storage's clock may show then."""
        return (
            EPOCH + timedelta(seconds=monotonic + self._low),
            EPOCH + timedelta(seconds=monotonic + self._high),
        )

    def best_moment(self, monotonic: float) -> float:
        """Seconds until a reading halves the interval: then the storage's clock shows the next
        second if the distance is in the upper half, and not yet if it is in the lower one."""
        return -(monotonic + (self._low + self._high) / 2) % 1.0


def send_head(url: str, timeout: float, monotonic: Callable[[], float]) -> Answer:
    """Send a HEAD request, unsigned, and take any answer. Blocks.

    The time counts from the moment when the connection is there, so that the interval does not
    include the handshakes.
    """
    parts = urlsplit(url)
    connection = _connection(url, timeout)
    try:
        connection.connect()
        sent = monotonic()
        connection.request("HEAD", parts.path or "/", headers={"Cache-Control": "no-cache"})
        answer = connection.getresponse()
        answered = monotonic()
        headers = {name.lower(): value for name, value in answer.getheaders()}
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailable(
            f"the clock of {parts.scheme}://{parts.netloc} cannot be read: there was no answer"
            f" ({error or type(error).__name__})"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            connection.close()
    return Answer(headers, sent, answered)


def _connection(url: str, timeout: float) -> http.client.HTTPConnection:
    """A connection to the URL's server, through the proxy that the environment names."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    if parts.scheme == "https":
        make = _https_connection
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return make(host, port, timeout=timeout)
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = make(through.hostname or "", through.port or 80, timeout=timeout)
    connection.set_tunnel(host, port)
    return connection


def _https_connection(host: str, port: int | None, timeout: float) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(
        host, port, timeout=timeout, context=ssl.create_default_context()
    )
