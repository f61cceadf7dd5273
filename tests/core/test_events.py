"""Events and their listeners, where the loop of the listeners ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mainspring.core.events import Event, Events

STARTED = Event("run.started", datetime(2027, 1, 1, tzinfo=UTC))


class Loop:
    """A loop in another thread, which may close it at any moment."""

    def __init__(self) -> None:
        self.closes = False
        self.calls: list[Any] = []

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, call: Any) -> None:
        if self.closes:
            raise RuntimeError("Event loop is closed")
        self.calls.append(call)


def test_an_event_is_dropped_when_the_loop_closes_in_between() -> None:
    seen: list[Event] = []
    events = Events()
    closing: Any = Loop()
    other: Any = Loop()
    events.on("*", seen.append)
    closing.closes = True
    events.deliver_on(closing)
    events.emit(STARTED)
    events.deliver_on(other)
    events.emit(STARTED)
    [deliver] = other.calls
    deliver()
    assert seen == [STARTED]
