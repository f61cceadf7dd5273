"""Waiting without losing a wake-up."""

from __future__ import annotations

import asyncio

__all__ = ["rest"]


async def rest(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or for so long. It is left set: who waits clears it before
    it looks at what the event is about, so that nothing told meanwhile is missed."""
    if seconds <= 0:
        return
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
