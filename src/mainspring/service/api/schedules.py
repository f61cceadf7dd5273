"""`/api/v1/schedules`: the next slots of a schedule, and the load that all schedules make."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Self, TypeVar

from fastapi import Query
from pydantic import Field
from pydantic.alias_generators import to_camel

from mainspring.core import forecast as values
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
from mainspring.service.schemas.documents import Document, Reply, Time, example, to_iso
from mainspring.service.schemas.fields import DateTime
from mainspring.service.schemas.job import SCHEDULE_FORMS, ScheduleFields, schedule_text

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


class PreviewBody(ScheduleFields):
    """A schedule to preview."""

    example: ClassVar = {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "count": 3}
    count: Annotated[int, Field(ge=1, le=1000)] = 10
    """How many slots."""
    job_id: Annotated[str, Field(max_length=200)] | None = None
    """The job that would have this schedule: `H` in a cron expression depends on it."""
    after: DateTime | None = None
    """Slots later than this. Now by default."""


class Slot(Document):
    utc: Time
    local: Annotated[str, example("2026-03-01T02:30:00.000+01:00")]
    """In the schedule's timezone."""


class Preview(Document):
    schedule: Annotated[str, example("30 2 * * *")]
    description: str
    """The schedule in words."""
    timezone: Annotated[str, example("Europe/Berlin")]
    slots: list[Slot]
    warnings: list[str]
    """What changes of the clock do to the schedule."""


class JobLoad(Document):
    job_id: str
    schedule: str
    """The schedule in words."""
    runs: int
    shortest_gap: int | None
    """The least time between two slots, in milliseconds."""


class Collision(Document):
    time: Annotated[str, example("00:00:00")]
    """The time of day."""
    most: int
    """How many jobs start in this second, at most."""
    days: int
    jobs: list[str]


class ClockChange(Document):
    effect: str
    jobs: list[str]


class Overrun(Document):
    job_id: str
    p95_duration: int
    """What 95 % of its newest runs did not exceed, in milliseconds."""
    interval: int
    """In milliseconds."""
    effect: str


class Suggestion(Document):
    advice: str
    jobs: list[str]
    schedules: dict[str, str]
    """By job: the schedule to write instead."""
    most_before: int
    most_after: int


MOST_JOBS = 100
Cut = TypeVar("Cut", values.Collision, values.ClockChange, values.Suggestion)


class Forecast(Document):
    start: Time
    end: Time
    timezone: str
    runs: int
    paused: int
    """Paused jobs, which are not counted."""
    unscheduled: int
    """Jobs without a schedule."""
    heat: list[list[float]]
    """Mean runs by weekday (Monday first) and hour of `timezone`."""
    jobs: list[JobLoad]
    """The busiest jobs, at most 100."""
    collisions: list[Collision]
    clock_changes: list[ClockChange]
    overruns: list[Overrun]
    suggestions: list[Suggestion]
    notes: list[str]

    @classmethod
    def of(cls, forecast: values.Forecast) -> Self:
        """With at most 100 jobs in each list, and durations in milliseconds."""

        def cut(part: Cut) -> Cut:
            return replace(part, jobs=part.jobs[:MOST_JOBS])

        shown = replace(
            forecast,
            jobs=tuple(
                replace(load, shortest_gap=load.shortest_gap and round(load.shortest_gap * 1000))
                for load in forecast.jobs[:MOST_JOBS]
            ),
            collisions=tuple(map(cut, forecast.collisions)),
            clock_changes=tuple(map(cut, forecast.clock_changes)),
            overruns=tuple(
                replace(
                    overrun,
                    p95_duration=round(overrun.p95_duration * 1000),
                    interval=round(overrun.interval * 1000),
                )
                for overrun in forecast.overruns[:MOST_JOBS]
            ),
            suggestions=tuple(
                replace(cut(part), schedules=dict(list(part.schedules.items())[:MOST_JOBS]))
                for part in forecast.suggestions
            ),
        )
        return super().of(shown)


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
