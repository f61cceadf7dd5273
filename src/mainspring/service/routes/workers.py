"""`/api/workers`: the processes that work on runs."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from mainspring.service.dependencies import COMPATIBILITY, Service, ServiceDep
from mainspring.service.router import api_router
from mainspring.service.schemas.json_format import camel_case, json_response
from mainspring.service.schemas.worker import WorkersAnswer

__all__ = ["list_workers", "router"]

router = api_router(prefix="/api/workers", tags=[COMPATIBILITY])


@router.get("", response_model=WorkersAnswer, summary="List the workers that are alive")
async def list_all(service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await list_workers(service)})


async def list_workers(service: Service) -> list[dict[str, Any]]:
    return [camel_case(worker.to_dict()) for worker in await service.client.list_workers()]
