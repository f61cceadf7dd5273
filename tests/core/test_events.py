"""Events and their listeners, where the loop of the listeners ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

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
    events, closing, other = Events(), Loop(), Loop()
    events.on("*", seen.append)
    closing.closes = True
    events.deliver_on(cast("asyncio.AbstractEventLoop", closing))
    events.emit(STARTED)
    events.deliver_on(cast("asyncio.AbstractEventLoop", other))
    events.emit(STARTED)
    [deliver] = other.calls
    deliver()
    assert seen == [STARTED]


async def test_a_listener_that_is_cancelled_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listening: asyncio.Future[asyncio.Task[Any] | None] = asyncio.Future()

    async def listen(event: Event) -> None:
        listening.set_result(asyncio.current_task())
        await asyncio.Event().wait()

    events = Events()
    events.on("run.started", listen)
    events.deliver_on(asyncio.get_running_loop())
    events.emit(STARTED)
    task = await listening
    assert task is not None
    task.cancel()
    await events.drained()
    assert task.cancelled()
    assert caplog.records == []


async def test_a_listener_that_fails_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def listen(event: Event) -> None:
        raise SystemExit("no")

    events = Events()
    events.on("run.started", listen)
    events.deliver_on(asyncio.get_running_loop())
    events.emit(STARTED)
    await asyncio.sleep(0)
    await events.drained()
    assert [record.message for record in caplog.records] == ["a listener to run.started failed"]
