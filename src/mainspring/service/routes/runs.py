"""`/api/runs`: look through them, look at one, cancel, retry, delete; one or all that match."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from mainspring.core.model import Page, Run, State
from mainspring.engine.bulk_operations import Matched
from mainspring.errors import InvalidInput
from mainspring.service.dependencies import COMPATIBILITY, RunPath, Service, ServiceDep
from mainspring.service.problems import Problem
from mainspring.service.routes.jobs import NoIdempotencyKey, refuse_idempotency_key
from mainspring.service.schemas import documents
from mainspring.service.schemas import envelopes as docs
from mainspring.service.schemas.requests import RunsBulkBody, moment_of

__all__ = ["Moment", "bulk_runs", "cancel_run", "find_runs", "remove_run", "router", "whole_run"]

router = APIRouter(prefix="/api/runs", tags=[COMPATIBILITY])

Moment = Annotated[str | None, Query(max_length=64, description="An ISO 8601 date-time.")]

_OFFSET = re.compile(r"([T ]\d\d[^ ]*) (\d\d(?::?\d\d)?)$", re.ASCII)


@router.get("", response_model=docs.RunPage, summary="List runs, newest first")
async def list_runs(
    service: ServiceDep,
    job: Annotated[str | None, Query(max_length=200)] = None,
    state: Annotated[list[State] | None, Query(description="One or several.")] = None,
    failing: Annotated[
        bool, Query(description="Only those with a failed attempt, whatever became of them.")
    ] = False,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=500, description="Of the page before.")] = None,
) -> Response:
    page = await find_runs(
        service,
        job=job,
        state=state,
        failing=failing,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
    )
    return documents.answer(
        {
            "success": True,
            "data": [documents.run_document(run) for run in page.items],
            "cursor": page.cursor,
        }
    )


async def find_runs(
    service: Service, *, since: str | None, until: str | None, cursor: str | None, **chosen: Any
) -> Page[Run]:
    first, last = _moment(since, "since"), _moment(until, "until")
    try:
        return await service.scheduler.list_runs(
            since=first, until=last, cursor=cursor, brief=True, **chosen
        )
    except InvalidInput as error:
        raise Problem.of_field("cursor", str(error)) from None
    except OverflowError:
        raise Problem.of_field("cursor", f"{cursor!r} is no cursor that a page gave") from None


@router.post("/bulk", response_model=docs.RunsBulk, summary="Cancel, retry or delete many")
async def bulk(
    body: RunsBulkBody, service: ServiceDep, idempotency_key: NoIdempotencyKey = None
) -> Response:
    refuse_idempotency_key(idempotency_key)
    done = await bulk_runs(service, body)
    return documents.answer(
        {
            "success": True,
            "data": {"matched": done.matched, "done": done.done, "more": done.more},
        }
    )


async def bulk_runs(service: Service, body: RunsBulkBody) -> Matched:
    chosen: dict[str, Any] = {"ids": body.ids}
    if body.match is not None:
        match = body.match
        states = (
            match.state if match.state is None or isinstance(match.state, list) else [match.state]
        )
        chosen = {
            "job": match.job,
            "state": states,
            "since": moment_of(match.since, "since"),
            "until": moment_of(match.until, "until"),
            "limit": body.limit,
        }
    scheduler = service.scheduler
    action = {
        "cancel": scheduler.cancel_runs,
        "retry": scheduler.retry_runs,
        "delete": scheduler.remove_runs,
    }[body.action]
    return await action(**chosen)


@router.get("/{id}", response_model=docs.RunAnswer, summary="A run with its attempts")
async def get(id: RunPath, service: ServiceDep) -> Response:
    return await _whole(service, id)


@router.post("/{id}/cancel", response_model=docs.RunAnswer, summary="Cancel a run")
async def cancel(id: RunPath, service: ServiceDep) -> Response:
    await cancel_run(service, id)
    return await _whole(service, id)


async def cancel_run(service: Service, id: str) -> None:
    if not await service.scheduler.cancel(id):
        run = await service.scheduler.get_run(id)
        why = f"run {id!r} has ended already: it is {run.state}"
        raise Problem(409, why, code="invalid_state")


@router.post("/{id}/retry", response_model=docs.RunAnswer, summary="Try a failed run again")
async def retry(id: RunPath, service: ServiceDep) -> Response:
    await service.scheduler.retry(id)
    return await _whole(service, id)


@router.delete("/{id}", response_model=docs.Done, summary="Delete a finished run")
async def delete(id: RunPath, service: ServiceDep) -> Response:
    await remove_run(service, id)
    return documents.answer({"success": True, "message": f"run {id} was deleted"})


async def remove_run(service: Service, id: str) -> None:
    run = await service.scheduler.get_run(id)
    if not (await service.scheduler.remove_runs([id])).done:
        why = "its dedupe key is still held" if run.finished else "cancel it first"
        why = f"run {id!r} is {run.state} and cannot be deleted: {why}"
        raise Problem(409, why, code="invalid_state")


async def _whole(service: Service, run_id: str) -> Response:
    return documents.answer({"success": True, "data": await whole_run(service, run_id)})


async def whole_run(service: Service, run_id: str) -> dict[str, Any]:
    """A run with its attempts, and why it did not run yet, where it did not."""
    run = await service.scheduler.get_run(run_id)
    why = await service.scheduler.explain_run(run_id)
    return {**documents.run_document(run, whole=True), "why": why}


def _moment(text: str | None, what: str) -> datetime | None:
    if text is not None:  # a + that was not written as %2B came as a space
        text = _OFFSET.sub(r"\1+\2", text)
    try:
        return moment_of(text, what)
    except InvalidInput as error:
        raise Problem.of_field(what, str(error)) from None
