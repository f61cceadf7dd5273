"""Why a job or a run has not run: `/api/jobs/{id}/explain` and `/api/runs/{id}/explain`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from mainspring.service.dependencies import COMPATIBILITY, JobPath, RunPath, Service, ServiceDep
from mainspring.service.router import api_router
from mainspring.service.routes.runs import read_moment
from mainspring.service.schemas.explanation import ExplanationAnswer
from mainspring.service.schemas.json_format import camel_case, json_response

__all__ = ["SlotTime", "explain_job", "explain_run", "router"]

router = api_router(prefix="/api", tags=[COMPATIBILITY])

SlotTime = Annotated[
    str | None,
    Query(max_length=64, description="A slot, as an ISO 8601 date-time: why not at that time?"),
]


@router.get(
    "/jobs/{id}/explain",
    response_model=ExplanationAnswer,
    summary="Why a job does not run, or did not",
)
async def of_job(id: JobPath, service: ServiceDep, at: SlotTime = None) -> Response:
    return json_response({"success": True, "data": await explain_job(service, id, at)})


@router.get("/runs/{id}/explain", response_model=ExplanationAnswer, summary="Why a run has not run")
async def of_run(id: RunPath, service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await explain_run(service, id)})


async def explain_job(service: Service, id: str, at: str | None) -> dict[str, Any]:
    await service.client.get_job(id)
    return camel_case(await service.client.explain(id, read_moment(at, "at")))


async def explain_run(service: Service, id: str) -> dict[str, Any]:
    await service.client.get_run(id)
    return camel_case(await service.client.explain(id))
