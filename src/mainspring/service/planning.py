"""`/api/schedules/preview`: what a schedule will do, before anything is saved."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter, Response

from mainspring import schedules
from mainspring.errors import InvalidInput
from mainspring.schedules import Schedule
from mainspring.schedules.make import at, every
from mainspring.schedules.zones import zone_named
from mainspring.service import documents as docs
from mainspring.service import shapes
from mainspring.service.bodies import PreviewBody, moment_of
from mainspring.service.core import COMPATIBILITY, Service, ServiceDep
from mainspring.service.problems import Problem
from mainspring.service.spans import span

__all__ = ["preview_of", "router"]

router = APIRouter(prefix="/api/schedules", tags=[COMPATIBILITY])

AHEAD = timedelta(days=366)


@router.post("/preview", response_model=docs.PagePreview, summary="The next slots of a schedule")
async def preview(body: PreviewBody, service: ServiceDep) -> Response:
    return shapes.answer({"success": True, "data": await preview_of(service, body)})


async def preview_of(service: Service, body: PreviewBody) -> dict[str, Any]:
    now = moment_of(body.after, "after") or service.clock.now()
    schedule: Schedule
    try:
        if body.every is not None:
            schedule = every(span(body.every, "every")).bind("", now)
        elif body.run_at is not None:
            schedule = at(body.run_at, tz=body.timezone or "UTC")
        else:
            schedule = schedules.parse(body.schedule, timezone=body.timezone).bind("", now)
        slots = schedule.upcoming(body.count, now)
        until = max([now, *slots[-1:]])
        warnings = schedule.warnings(now, max(until, _later(now)))
    except InvalidInput as error:
        raise Problem.of_field("schedule", str(error)) from None
    zone = zone_named(schedule.timezone)
    return {
        "schedule": shapes.schedule_text(schedule),
        "description": schedule.describe(),
        "timezone": schedule.timezone,
        "slots": [
            {
                "utc": shapes.when(slot),
                "local": slot.astimezone(zone).isoformat(timespec="milliseconds"),
            }
            for slot in slots
        ],
        "warnings": warnings[:20],
    }


def _later(now: datetime) -> datetime:
    try:
        return now + AHEAD
    except OverflowError:
        return now
