"""Workflows: the graph that a job or a run belongs to, and chains of runs.

The routes here are compatibility operations; `v1.py` calls the same functions.
"""

from __future__ import annotations

from typing import Any

from fastapi import Response

from mainspring.core.model import Run
from mainspring.errors import JobNotFound
from mainspring.service.dependencies import COMPATIBILITY, JobPath, RunPath, Service, ServiceDep
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.router import api_router
from mainspring.service.schemas.json_format import json_response
from mainspring.service.schemas.run import run_document
from mainspring.service.schemas.workflow import (
    ChainAnswer,
    ChainBody,
    WorkflowAnswer,
    workflow_of,
)

__all__ = ["enqueue_chain", "read_job_workflow", "read_run_workflow", "router"]

router = api_router(prefix="/api", tags=[COMPATIBILITY])


@router.get("/jobs/{id}/workflow", response_model=WorkflowAnswer, summary="The workflow of a job")
async def job_workflow(id: JobPath, service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await read_job_workflow(service, id)})


async def read_job_workflow(service: Service, job_id: str) -> dict[str, Any]:
    job = await service.client.get_job(job_id)
    return workflow_of(await service.client.workflow(job))


@router.get("/runs/{id}/workflow", response_model=WorkflowAnswer, summary="The workflow of a run")
async def run_workflow(id: RunPath, service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await read_run_workflow(service, id)})


async def read_run_workflow(service: Service, run_id: str) -> dict[str, Any]:
    run = await service.client.get_run(run_id)
    return workflow_of(await service.client.workflow(run.id))


@router.post(
    "/chains",
    status_code=202,
    response_model=ChainAnswer,
    summary="Run jobs one after the other",
)
async def chain(body: ChainBody, service: ServiceDep) -> Response:
    runs = await enqueue_chain(service, body)
    return json_response(
        {"success": True, "data": [run_document(run, whole=True) for run in runs]}, 202
    )


async def enqueue_chain(service: Service, body: ChainBody) -> list[Run]:
    links = [(link.job_id, link.payload) for link in body.links]
    try:
        return await service.client.chain(*links, after_failure=body.after_failure)
    except JobNotFound as error:  # of the body: what the path names is there
        raise ApiError.of_fields(FieldError("links", str(error))) from None
