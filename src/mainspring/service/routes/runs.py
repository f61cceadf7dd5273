"""Runs: list, read, cancel, retry, delete; one or all that match. `/api/runs` has the
compatibility operations; `v1.py` calls the same functions."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Response

from mainspring.core.model import Page, Run, State
from mainspring.core.schedules.base import moment
from mainspring.engine.bulk_operations import Matched
from mainspring.errors import InvalidInput
from mainspring.service.dependencies import COMPATIBILITY, RunPath, Service, ServiceDep
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.router import api_router
from mainspring.service.schemas.execution import execution_documents
from mainspring.service.schemas.fields import query_of
from mainspring.service.schemas.json_format import (
    WrongFormat,
    camel_case,
    json_response,
    read_datetime,
)
from mainspring.service.schemas.problem import Done
from mainspring.service.schemas.run import (
    CompatRunPage,
    MatchBody,
    RunAnswer,
    RunsBulk,
    RunsBulkBody,
    run_document,
)

__all__ = [
    "Failing",
    "Moment",
    "OfJob",
    "States",
    "bulk_runs",
    "cancel_run",
    "find_executions",
    "find_runs",
    "read_moment",
    "read_whole_run",
    "remove_run",
    "router",
]

router = api_router(prefix="/api/runs", tags=[COMPATIBILITY])

OfJob = Annotated[str | None, query_of(MatchBody, "job", max_length=200)]
States = Annotated[list[State] | None, Query(description="Runs in one of these states.")]
Failing = Annotated[bool, query_of(MatchBody, "failing")]
Moment = Annotated[str | None, Query(max_length=64, description="An ISO 8601 date-time.")]

EXECUTIONS_PAGE = 10
"""How many whole runs are read at once to show their attempts."""

_OFFSET = re.compile(r"([T ]\d\d[^ ]*) (\d\d(?::?\d\d)?)$", re.ASCII)


@router.get("", response_model=CompatRunPage, summary="List runs, newest first")
async def list_runs(
    service: ServiceDep,
    job: OfJob = None,
    state: States = None,
    failing: Failing = False,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[
        str | None, Query(max_length=500, description="The cursor of the page before.")
    ] = None,
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
    return json_response(
        {
            "success": True,
            "data": [run_document(run) for run in page.items],
            "cursor": page.cursor,
        }
    )


async def find_runs(
    service: Service, *, since: str | None, until: str | None, cursor: str | None, **chosen: Any
) -> Page[Run]:
    first, last = read_moment(since, "since"), read_moment(until, "until")
    return await service.client.list_runs(
        since=first, until=last, cursor=cursor, brief=True, **chosen
    )


async def find_executions(
    service: Service, *queries: dict[str, Any], limit: int, status: str | None = None
) -> list[dict[str, Any]]:
    """The newest attempts of the runs that any of the queries finds, `limit` of each. Only attempts
    of that status, if one is given.

    Runs are read in small pages, and only documents of attempts are kept: a run can hold 20 logs of
    64 KiB beside its payload, and 200 whole runs took 735 MB."""
    found: dict[str, dict[str, Any]] = {}
    for query in queries:
        left, cursor = limit, None
        while left > 0:
            size = min(left, EXECUTIONS_PAGE)
            page = await service.client.list_runs(**query, limit=size, cursor=cursor)
            for run in page.items:
                for one in execution_documents(run):
                    if status is None or one["status"] == status:
                        found[one["_id"]] = one
            newest = sorted(found.values(), key=lambda one: one["startedAt"], reverse=True)
            found = {one["_id"]: one for one in newest[:limit]}
            left, cursor = left - size, page.cursor
            if cursor is None:
                break
    return list(found.values())


@router.post("/bulk", response_model=RunsBulk, summary="Cancel, retry or delete many")
async def bulk(body: RunsBulkBody, service: ServiceDep) -> Response:
    done = await bulk_runs(service, body)
    return json_response({"success": True, "data": camel_case(done)})


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
            "failing": match.sent.get("failing", False),
            "since": _in_utc(match.sent.get("since"), "since"),
            "until": _in_utc(match.sent.get("until"), "until"),
            "limit": body.limit,
        }
    client = service.client
    action = {
        "cancel": client.cancel_runs,
        "retry": client.retry_runs,
        "delete": client.remove_runs,
    }[body.action]
    return await action(**chosen)


@router.get("/{id}", response_model=RunAnswer, summary="A run with its attempts")
async def get(id: RunPath, service: ServiceDep) -> Response:
    return await _answer_with_run(service, id)


@router.post("/{id}/cancel", response_model=RunAnswer, summary="Cancel a run")
async def cancel(id: RunPath, service: ServiceDep) -> Response:
    await cancel_run(service, id)
    return await _answer_with_run(service, id)


async def cancel_run(service: Service, id: str) -> None:
    if not await service.client.cancel(id):
        run = await service.client.get_run(id)
        why = f"run {id!r} has ended: it is {run.state}"
        raise ApiError(409, why, code="invalid_state")


@router.post("/{id}/retry", response_model=RunAnswer, summary="Try a failed run again")
async def retry(id: RunPath, service: ServiceDep) -> Response:
    await service.client.retry(id)
    return await _answer_with_run(service, id)


@router.delete("/{id}", response_model=Done, summary="Delete a finished run")
async def delete(id: RunPath, service: ServiceDep) -> Response:
    await remove_run(service, id)
    return json_response({"success": True, "message": f"run {id} was deleted"})


async def remove_run(service: Service, id: str) -> None:
    run = await service.client.get_run(id)
    if not (await service.client.remove_runs([id])).done:
        held = "its dedupe key is still held, or an unfinished run comes after it"
        why = held if run.finished else "cancel it first"
        why = f"run {id!r} is {run.state} and cannot be deleted: {why}"
        raise ApiError(409, why, code="invalid_state")


async def _answer_with_run(service: Service, run_id: str) -> Response:
    return json_response({"success": True, "data": await read_whole_run(service, run_id)})


async def read_whole_run(service: Service, run_id: str) -> dict[str, Any]:
    """A run with its attempts, and why it has not started if it has not."""
    run = await service.client.get_run(run_id)
    why = (await service.client.explain(run_id)).problem
    return {**run_document(run, whole=True), "why": why}


def read_moment(text: str | None, name: str) -> datetime | None:
    """The date-time of a query parameter; one without an offset is in UTC."""
    if text is None:
        return None
    try:
        # A + that was not written as %2B arrives as a space.
        return _in_utc(read_datetime(_OFFSET.sub(r"\1+\2", text)), name)
    except WrongFormat as error:
        raise ApiError.of_fields(FieldError.predicate(name, str(error))) from None


def _in_utc(when: datetime | None, name: str) -> datetime | None:
    """A date-time without an offset is in UTC."""
    try:
        return None if when is None else moment(when, "UTC", name)
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError(name, str(error))) from None
