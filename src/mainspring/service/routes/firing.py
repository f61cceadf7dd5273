"""`/api/pause` and `/api/resume`: stop and restart all firing."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from mainspring.service.dependencies import COMPATIBILITY, Service, ServiceDep
from mainspring.service.router import api_router
from mainspring.service.schemas.health import FiringAnswer
from mainspring.service.schemas.json_format import json_response, to_iso

__all__ = ["pause_firing", "resume_firing", "router"]

router = api_router(prefix="/api", tags=[COMPATIBILITY])


@router.post(
    "/pause",
    response_model=FiringAnswer,
    summary="Fire no slots of any job, on any node, until firing is resumed",
)
async def pause(service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await pause_firing(service)})


@router.post("/resume", response_model=FiringAnswer, summary="Fire slots again, from now on")
async def resume(service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await resume_firing(service)})


async def pause_firing(service: Service) -> dict[str, Any]:
    return {"pausedSince": to_iso(await service.client.pause_all())}


async def resume_firing(service: Service) -> dict[str, Any]:
    await service.client.resume_all()
    return {"pausedSince": None}
