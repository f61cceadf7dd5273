"""The pages for admins: API keys, and the audit log of changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.errors import InvalidInput
from mainspring.service.audit import RETENTION
from mainspring.service.problems import ApiError

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=PageRoute)

ENTRIES_SHOWN = 100


@router.get("/keys")
async def keys(request: Request) -> Response:
    service = service_of(request)
    now = await service.keys.now()
    found = await service.keys.list()
    return render(
        request,
        "keys.html",
        page="keys",
        title="Keys",
        keys=[(key, key.state(now)) for key in reversed(found)],
        needs_key=bool(found) or not service.loopback,
        has_admin=any(key.scope == "admin" and key.usable(now) for key in found),
        is_open=service.open,
    )


@router.get("/audit")
async def audit(
    request: Request, cursor: Annotated[str | None, Query(max_length=500)] = None
) -> Response:
    try:
        page = await service_of(request).audit.list(ENTRIES_SHOWN, cursor)
    except (InvalidInput, OverflowError):
        raise ApiError(422, "this page of the audit log does not exist") from None
    return render(
        request,
        "audit.html",
        page="audit",
        title="Audit log",
        entries=page.items,
        older=page.cursor,
        is_newest=cursor is None,
        kept_days=RETENTION.days,
    )
