"""Keeps forecasts for a few minutes: one of 10,000 jobs takes seconds, and a page must not wait
that long."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from msgspec import Struct

from mainspring.core.forecast import Forecast
from mainspring.errors import MainspringError
from mainspring.service.api.schedules import one_at_a_time
from mainspring.service.dependencies import Service
from mainspring.service.problems import ApiError

__all__ = ["ForecastCache", "KeptForecast"]

FRESH_SECONDS = 300.0
WAIT_SECONDS = 0.08
"""How long a page waits for a forecast. One of few jobs is made by then."""

MOST_KEPT = 8
JOBS_KEPT = 20

Key = tuple[int, str]


class KeptForecast(Struct, frozen=True):
    """`problem`: why there is none."""

    made_at: float
    forecast: Forecast | None
    problem: str | None = None


class ForecastCache:
    """By days and zone: the last forecast, and the task that makes a new one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept: dict[Key, KeptForecast] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    async def read(self, days: int, zone: str) -> KeptForecast | None:
        """The forecast, perhaps an old one while a new one is made; None if there is none yet."""
        key = (days, zone)
        kept = self._kept.get(key)
        if kept is None or self._service.clock.monotonic() - kept.made_at > FRESH_SECONDS:
            if key not in self._tasks:
                self._tasks[key] = asyncio.ensure_future(self._make(key))
            if kept is None:
                await asyncio.wait([self._tasks[key]], timeout=WAIT_SECONDS)
        return self._kept.get(key)

    async def _make(self, key: Key) -> None:
        days, zone = key
        try:
            async with one_at_a_time(self._service):
                found = await self._service.client.forecast(days, timezone=zone)
            short = replace(found, jobs=found.jobs[:JOBS_KEPT])
            made = KeptForecast(self._service.clock.monotonic(), short)
        except (ApiError, MainspringError) as error:
            made = KeptForecast(self._service.clock.monotonic() - FRESH_SECONDS, None, str(error))
        finally:
            del self._tasks[key]
        self._kept.pop(key, None)
        self._kept[key] = made
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
