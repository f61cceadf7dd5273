"""`/api/schedules/preview`: the next slots of a schedule, before a job is saved."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from pydantic.alias_generators import to_camel

from mainspring.core import schedules
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.base import moment
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidInput
from mainspring.service.dependencies import COMPATIBILITY, Service, ServiceDep
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.schemas.job import schedule_text
from mainspring.service.schemas.json_format import json_response, to_iso
from mainspring.service.schemas.preview import PagePreview, Preview, PreviewBody, Slot

__all__ = ["compute_preview", "router"]

router = APIRouter(prefix="/api/schedules", tags=[COMPATIBILITY])

WARNED_AHEAD = timedelta(days=366)
"""How far ahead changes of the clock are looked for."""
MAX_SEARCH_SECONDS = 0.1
"""Seconds of work after which a preview shows the slots that it has found so far."""
MAX_WAIT_SECONDS = 2.0
"""How long a preview waits for the ones before it."""


@router.post("/preview", response_model=PagePreview, summary="The next slots of a schedule")
async def preview(body: PreviewBody, service: ServiceDep) -> Response:
    return json_response(PagePreview(success=True, data=await compute_preview(service, body)))


async def compute_preview(service: Service, body: PreviewBody) -> Preview:
    zone = service.client.timezone
    after = body.sent.get("after")
    now = service.clock.now() if after is None else _in_zone(after, zone)
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            await service.preview_lock.acquire()
    except TimeoutError:
        raise ApiError(
            429,
            "too many previews at once: try again in 1 s",
            headers={"Retry-After": "1"},
        ) from None
    try:
        # In a thread: many slots of a complex rule take a while, and other requests go on
        # meanwhile. One at a time: computing threads compete with the one that answers requests.
        return await asyncio.to_thread(_preview, body, now, zone)
    finally:
        service.preview_lock.release()


def _in_zone(after: datetime, zone: str) -> datetime:
    try:
        return moment(after, zone, "after")
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError("after", str(error))) from None


def _preview(body: PreviewBody, now: datetime, default_zone: str) -> Preview:
    sent = body.sent
    [(name, given)] = [
        (name, sent[name]) for name in ("schedule", "every", "run_at") if sent.get(name) is not None
    ]
    count: int = sent.get("count", 10)
    try:
        schedule = schedules.parse(
            given, timezone=sent.get("timezone"), default_timezone=default_zone
        ).bind("", now)
        slots = _slots(schedule, count, now)
        until = max([now, *slots[-1:]])
        warnings = schedule.warnings(now, max(until, _later(now)))
    except InvalidInput as error:
        field = "timezone" if error.field == "timezone" else to_camel(name)
        raise ApiError.of_fields(FieldError(field, str(error))) from None
    zone = zone_named(schedule.timezone)
    if len(slots) < count and schedule.next(until) is not None:
        warnings.insert(0, f"only the first {len(slots)} slots were computed: they take long")
    return Preview(
        schedule=schedule_text(schedule) or "",
        description=schedule.describe(),
        timezone=schedule.timezone,
        slots=[
            Slot(
                utc=to_iso(slot) or "",
                local=slot.astimezone(zone).isoformat(timespec="milliseconds"),
            )
            for slot in slots
        ],
        warnings=warnings[:20],
    )


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
