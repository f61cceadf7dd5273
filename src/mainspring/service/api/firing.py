"""`/api/v1/pause` and `/api/v1/resume`: stop and restart all firing."""

from __future__ import annotations

from fastapi import Response

from mainspring.service.access import access
from mainspring.service.dependencies import ServiceDep
from mainspring.service.router import api_router
from mainspring.service.schemas.health import Firing
from mainspring.service.schemas.json_format import json_response, to_iso

router = api_router(prefix="/api/v1", tags=["jobs"])


@router.post(
    "/pause",
    response_model=Firing,
    summary="Fire no slots of any job, on any node, until firing is resumed",
)
@access("write")
async def pause_all(service: ServiceDep) -> Response:
    return json_response({"pausedSince": to_iso(await service.client.pause_all())})


@router.post("/resume", response_model=Firing, summary="Fire slots again, from now on")
@access("write")
async def resume_all(service: ServiceDep) -> Response:
    await service.client.resume_all()
    return json_response({"pausedSince": None})
