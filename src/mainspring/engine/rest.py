"""Waiting without losing a wake-up."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["rest"]


async def rest(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set, or for so long; say whether it is set. Who waits clears it
    before it looks at what the event is about, so that nothing told meanwhile is missed."""
    if seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
    return event.is_set()
