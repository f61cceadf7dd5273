"""The page at `/load`: what the schedules will start, by weekday and hour, and what collides."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from msgspec import Struct

from mainspring.core.forecast import Forecast
from mainspring.core.plurals import plural
from mainspring.core.schedules.zones import zone_named
from mainspring.dashboard.pages import page_router, render, service_of
from mainspring.errors import InvalidInput, MainspringError
from mainspring.service.access import access
from mainspring.service.api.schedules import one_at_a_time
from mainspring.service.dependencies import Service
from mainspring.service.problems import ApiError, FieldError

router = page_router()

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SHADES = 7
"""Shades of the heat map; 0 is an hour in which nothing starts."""

JOBS_NAMED = 4
"""Jobs that a line names; it counts the others."""

COLLISIONS_SHOWN = 10

ZONES = (
    *("UTC", "Europe/London", "Europe/Berlin", "Europe/Paris", "Europe/Moscow", "Africa/Lagos"),
    *("Africa/Johannesburg", "America/New_York", "America/Chicago", "America/Denver"),
    *("America/Los_Angeles", "America/Sao_Paulo", "America/Mexico_City", "Asia/Dubai"),
    *("Asia/Kolkata", "Asia/Shanghai", "Asia/Singapore", "Asia/Tokyo", "Australia/Sydney"),
    "Pacific/Auckland",
)
"""Zones that the field offers; every other one can be typed."""


@router.get("/load")
@access("read")
async def load(
    request: Request,
    days: Annotated[Literal["7", "30"], Query()] = "7",
    zone: Annotated[str, Query(max_length=100)] = "",
) -> Response:
    client = service_of(request).client
    name = zone.strip() or client.timezone
    try:
        zone_named(name)
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError("zone", str(error))) from None
    cache: ForecastCache = request.app.state.forecasts
    kept = await cache.read(int(days), name)
    forecast = None if kept is None else kept.forecast
    return render(
        request,
        "load.html",
        page="load",
        title="Load",
        days=int(days),
        zone=name,
        zones=sorted({client.timezone, *ZONES}),
        problem=None if kept is None else kept.problem,
        forecast=forecast,
        heat=None if forecast is None else _heat_map_rows(forecast),
        busiest=None if forecast is None else _busiest_hour(forecast),
        least=None if forecast is None else describe_mean(min(map(min, forecast.heat))),
        most=None if forecast is None else describe_mean(max(map(max, forecast.heat))),
        named=JOBS_NAMED,
        collisions_shown=COLLISIONS_SHOWN,
    )


def _heat_map_rows(forecast: Forecast) -> list[dict[str, Any]]:
    """A row for each weekday; a cell has its number, its shade and what it says when pointed at."""
    least, most = min(map(min, forecast.heat)), max(map(max, forecast.heat))
    return [
        {
            "day": day,
            "cells": [
                {
                    "text": short_number(count),
                    "level": shade_of(count, least, most),
                    "title": f"{day} {hour:02}:00 to {hour + 1:02}:00: {describe_mean(count)}",
                }
                for hour, count in enumerate(row)
            ],
        }
        for day, row in zip(WEEKDAYS, forecast.heat, strict=True)
    ]


def shade_of(count: float, least: float, most: float) -> int:
    """The shade of a number between the quietest and the busiest hour: by the square root, so that
    small numbers differ, too."""
    if not count:
        return 0
    share = (count - least) / (most - least) if most > least else 0.5
    return max(1, math.ceil(math.sqrt(share) * SHADES))


def describe_mean(mean: float) -> str:
    """A mean number of runs, to a tenth: 1 run, 2.5 runs."""
    rounded = round(mean, 1)
    return plural(int(rounded) if rounded.is_integer() else rounded, "run")


def short_number(count: float) -> str:
    """12, 0.5, 1.2k: at most four characters."""
    if not count:
        return ""
    if count < 10:
        return f"{count:.1f}".removesuffix(".0")
    if count < 1000:
        return f"{count:.0f}"
    thousands = count / 1000
    return f"{thousands:.1f}k".replace(".0k", "k") if thousands < 10 else f"{thousands:.0f}k"


def _busiest_hour(forecast: Forecast) -> str | None:
    """The hour in which most runs start, on average."""
    count, day, hour = max(
        (count, -day, -hour)
        for day, row in enumerate(forecast.heat)
        for hour, count in enumerate(row)
    )
    return f"{WEEKDAYS[-day][:3]} {-hour:02}:00" if count else None


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
                forecast = await self._service.client.forecast(days, timezone=zone)
            short = replace(forecast, jobs=forecast.jobs[:JOBS_KEPT])
            kept = KeptForecast(self._service.clock.monotonic(), short)
        except (ApiError, MainspringError) as error:
            kept = KeptForecast(self._service.clock.monotonic() - FRESH_SECONDS, None, str(error))
        finally:
            del self._tasks[key]
        self._kept.pop(key, None)
        self._kept[key] = kept
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
