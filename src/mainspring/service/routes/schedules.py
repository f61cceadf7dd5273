"""`/api/schedules/preview`: what a schedule will do, before anything is saved."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter, Response

from mainspring.core import schedules
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.base import moment
from mainspring.core.schedules.constructors import at, every
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidInput
from mainspring.service.dependencies import COMPATIBILITY, Service, ServiceDep
from mainspring.service.problems import Problem
from mainspring.service.schemas import documents
from mainspring.service.schemas import envelopes as docs
from mainspring.service.schemas.durations import span
from mainspring.service.schemas.requests import PreviewBody

__all__ = ["preview_of", "router"]

router = APIRouter(prefix="/api/schedules", tags=[COMPATIBILITY])

AHEAD = timedelta(days=366)
LONGEST_SEARCH = 0.1
"""Seconds of work after which a preview shows the slots that it has found so far."""
LONGEST_WAIT = 2.0
"""Seconds that a preview waits for those before it."""


@router.post("/preview", response_model=docs.PagePreview, summary="The next slots of a schedule")
async def preview(body: PreviewBody, service: ServiceDep) -> Response:
    return documents.answer({"success": True, "data": await preview_of(service, body)})


async def preview_of(service: Service, body: PreviewBody) -> dict[str, Any]:
    zone = service.scheduler.timezone
    now = service.clock.now() if body.after is None else moment(body.after, zone, "after")
    try:
        async with asyncio.timeout(LONGEST_WAIT):
            await service.previewing.acquire()
    except TimeoutError:
        raise Problem(
            429,
            "too many previews are asked for at once: try again in 1 s",
            headers={"Retry-After": "1"},
        ) from None
    try:
        # In a thread: many slots of an odd rule take a while, and other requests go on meanwhile.
        # One at a time: threads that compute take turns with the one that answers requests.
        return await asyncio.to_thread(_preview, body, now, zone)
    finally:
        service.previewing.release()


def _preview(body: PreviewBody, now: datetime, default_zone: str) -> dict[str, Any]:
    schedule: Schedule
    try:
        if body.every is not None:
            schedule = every(span(body.every, "every")).bind("", now)
        elif body.run_at is not None:
            schedule = at(body.run_at, tz=body.timezone or default_zone)
        else:
            schedule = schedules.parse(
                body.schedule, timezone=body.timezone, default_timezone=default_zone
            ).bind("", now)
        slots = _slots(schedule, body.count, now)
        until = max([now, *slots[-1:]])
        warnings = schedule.warnings(now, max(until, _later(now)))
    except InvalidInput as error:
        raise Problem.of_field("schedule", str(error)) from None
    zone = zone_named(schedule.timezone)
    if len(slots) < body.count and schedule.next(until) is not None:
        warnings.insert(0, f"only the first {len(slots)} slots were worked out: it takes long")
    return {
        "schedule": documents.schedule_text(schedule),
        "description": schedule.describe(),
        "timezone": schedule.timezone,
        "slots": [
            {
                "utc": documents.when(slot),
                "local": slot.astimezone(zone).isoformat(timespec="milliseconds"),
            }
            for slot in slots
        ],
        "warnings": warnings[:20],
    }


def _slots(schedule: Schedule, count: int, after: datetime) -> list[datetime]:
    """The next slots, or those of them that are found with little work. It is measured by the time
    of this thread alone, so that a busy machine shows as many as an idle one."""
    ends = time.thread_time() + LONGEST_SEARCH
    slots: list[datetime] = []
    while len(slots) < count and time.thread_time() < ends:
        slot = schedule.next(slots[-1] if slots else after)
        if slot is None:
            break
        slots.append(slot)
    return slots


def _later(now: datetime) -> datetime:
    try:
        return now + AHEAD
    except OverflowError:
        return now
