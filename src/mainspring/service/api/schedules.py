"""`/api/v1/schedules`: the next slots of a schedule, and the load that all schedules make."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Query
from pydantic.alias_generators import to_camel

from mainspring.core import schedules
from mainspring.core.forecast import MOST_DAYS
from mainspring.core.plurals import plural
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.base import moment
from mainspring.core.schedules.zones import check_zone, zone_named
from mainspring.errors import InvalidInput
from mainspring.service.access import access, api_router
from mainspring.service.dependencies import Service, ServiceDep
from mainspring.service.problems import ApiError, FieldError, field_errors
from mainspring.service.schemas.documents import Reply
from mainspring.service.schemas.job import SCHEDULE_FORMS, schedule_text
from mainspring.service.schemas.json_format import to_iso
from mainspring.service.schemas.schedule import Forecast, Preview, PreviewBody, Slot

router = api_router(prefix="/api/v1/schedules", tags=["schedules"])

ForecastDays = Annotated[int, Query(ge=1, le=MOST_DAYS, description="How many days.")]
ForecastStart = Annotated[
    str | None, Query(max_length=64, description="An ISO 8601 date-time. Now by default.")
]
ForecastZone = Annotated[
    str | None, Query(max_length=64, description="The zone of hours and weekdays.")
]

WARNED_AHEAD = timedelta(days=366)
"""How far ahead changes of the clock are looked for."""
MAX_SEARCH_SECONDS = 0.1
"""Seconds of work after which a preview shows the slots that it has found so far."""
MAX_WAIT_SECONDS = 2.0
"""How long a preview waits for the ones before it."""


@router.post("/preview", summary="Show the next slots of a schedule")
@access("read")
async def preview_schedule(body: PreviewBody, service: ServiceDep) -> Reply[Preview]:
    return Reply(await _compute_preview(service, body))


@router.get("/forecast", summary="Forecast the load that the schedules of all jobs make")
@access("read")
async def forecast_schedules(
    service: ServiceDep,
    days: ForecastDays = 30,
    start: ForecastStart = None,
    timezone: ForecastZone = None,
) -> Reply[Forecast]:
    zone = timezone or service.client.timezone
    try:
        zone_named(zone)
        first = None if start is None else moment(start, zone, "start")
    except InvalidInput as error:
        field = "start" if start is not None and error.field != "timezone" else "timezone"
        raise ApiError.of_fields(FieldError(field, str(error))) from None
    async with one_at_a_time(service):
        forecast = await service.client.forecast(days, start=first, timezone=zone)
    return Reply(Forecast.of(forecast))


async def _compute_preview(service: Service, body: PreviewBody) -> Preview:
    zone = service.client.timezone
    now = service.clock.now()
    # In a thread: many slots of a complex rule take a while, and other requests go on
    # meanwhile. One at a time: computing threads compete with the one that answers requests.
    async with one_at_a_time(service):
        return await asyncio.to_thread(_preview, body, now, zone)


@asynccontextmanager
async def one_at_a_time(service: Service) -> AsyncIterator[None]:
    """Compute inside the block, after the previews and forecasts before this one."""
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            await service.schedule_computation.acquire()
    except TimeoutError:
        raise ApiError(
            429,
            "the service computes one preview or forecast at a time and is busy: try again in 1 s",
            headers={"Retry-After": "1"},
        ) from None
    try:
        yield
    finally:
        service.schedule_computation.release()


def _preview(body: PreviewBody, now: datetime, default_zone: str) -> Preview:
    name, schedule, now = _read(body, now, default_zone)
    count: int = body.sent.get("count", 10)
    try:
        schedule = schedule.bind(body.sent.get("job_id") or "", now)
        slots = _slots(schedule, count, now)
        until = max([now, *slots[-1:]])
        warnings = schedule.warnings(now, max(until, _later(now)))
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError(name, str(error))) from None
    zone = zone_named(schedule.timezone)
    if len(slots) < count and schedule.next(until) is not None:
        warnings.insert(
            0, f"only {plural(len(slots), 'slot')} could be computed: more would take long"
        )
    return Preview(
        schedule=schedule_text(schedule) or "",
        description=schedule.describe(),
        timezone=schedule.timezone,
        slots=[
            Slot(utc=to_iso(slot), local=slot.astimezone(zone).isoformat(timespec="milliseconds"))
            for slot in slots
        ],
        warnings=warnings[:20],
    )


def _read(body: PreviewBody, now: datetime, default_zone: str) -> tuple[str, Schedule, datetime]:
    """The field with the schedule, the schedule, and the moment after which its slots are listed.
    Raises every error at once."""
    sent = body.sent
    faults = field_errors(body.type_errors)
    forms = [name for name in SCHEDULE_FORMS if sent.get(name) is not None]
    if len(forms) != 1:
        why = "give one of schedule, every, runAt"
        faults += [FieldError(to_camel(name), why) for name in forms or ["schedule"]]
    try:
        if sent.get("after") is not None:
            now = moment(sent["after"], default_zone, "after")
    except InvalidInput as error:
        faults.append(FieldError("after", str(error)))
    schedule, timezone = None, sent.get("timezone")
    field = to_camel(forms[0] if forms else "schedule")
    try:
        if forms:
            schedule = schedules.parse(
                sent[forms[0]], timezone=timezone, default_timezone=default_zone
            )
        elif timezone is not None:
            check_zone(timezone)
    except InvalidInput as error:
        for fault in error.each():
            name = "timezone" if fault.field == "timezone" else field
            faults.append(FieldError(name, str(fault)))
    if schedule is None or faults:
        raise ApiError.of_fields(*{fault.field: fault for fault in reversed(faults)}.values())
    return field, schedule, now


def _slots(schedule: Schedule, count: int, after: datetime) -> list[datetime]:
    """The next slots, or those found within `MAX_SEARCH_SECONDS`. The thread's CPU time is
    measured, so that a busy machine shows as many as an idle one."""
    ends = time.thread_time() + MAX_SEARCH_SECONDS
    slots: list[datetime] = []
    while len(slots) < count and time.thread_time() < ends:
        slot = schedule.next(slots[-1] if slots else after)
        if slot is None:
            break
        slots.append(slot)
    return slots


def _later(now: datetime) -> datetime:
    try:
        return now + WARNED_AHEAD
    except OverflowError:
        return now
