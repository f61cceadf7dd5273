"""`/api/v1/runs`: list, read, cancel, retry, delete; one or all that match. And chains of runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from mainspring.core import model
from mainspring.core.model import Page, State
from mainspring.core.plurals import plural
from mainspring.engine.run_operations import Matched
from mainspring.errors import JobNotFound
from mainspring.service.access import access, api_router
from mainspring.service.dependencies import (
    Cursor,
    Limit,
    Moment,
    RunPath,
    Service,
    ServiceDep,
    in_utc,
    list_reply,
    note_detail,
    read_moment,
)
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.schemas.documents import Reply, encode_json
from mainspring.service.schemas.fields import query_of
from mainspring.service.schemas.run import (
    ChainBody,
    ChainResult,
    Explanation,
    MatchBody,
    Run,
    RunList,
    RunsBulkBody,
    RunsBulkResult,
    Workflow,
)

router = api_router(prefix="/api/v1", tags=["runs"])

OfJob = Annotated[str | None, query_of(MatchBody, "job", max_length=200)]
States = Annotated[list[State] | None, Query(description="Runs in one of these states.")]
Failing = Annotated[bool, query_of(MatchBody, "failing")]
TimedOut = Annotated[
    bool,
    Query(
        alias="timedOut",
        description="Only runs of which an attempt timed out. A page may have fewer runs than"
        " `limit`, and still a cursor.",
    ),
]


@router.get("/runs", summary="List runs, newest first")
@access("read")
async def list_runs(
    service: ServiceDep,
    job: OfJob = None,
    state: States = None,
    failing: Failing = False,
    timed_out: TimedOut = False,
    since: Moment = None,
    until: Moment = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Reply[RunList]:
    """A page ends early when it has 4 MiB; `nextCursor` gives the rest."""
    first, last = read_moment(since, "since"), read_moment(until, "until")

    async def read(count: int, cursor: str | None) -> Page[model.Run]:
        return await service.client.list_runs(
            job=job,
            state=state,
            failing=failing,
            timed_out=timed_out,
            since=first,
            until=last,
            brief=True,
            limit=count,
            cursor=cursor,
        )

    return await list_reply(RunList, read, Run.of, limit=limit, cursor=cursor)


@router.post("/runs/bulk", summary="Change many runs; cancel, retry or delete them")
@access("write")
async def bulk_runs(
    body: RunsBulkBody, service: ServiceDep, request: Request
) -> Reply[RunsBulkResult]:
    done = await _act_on_runs(service, body)
    sent = await request.json()
    chosen = encode_json({name: sent[name] for name in ("ids", "match") if name in sent}).decode()
    note_detail(request, f"{body.action} {done.done} of {plural(done.matched, 'run')}: {chosen}")
    return Reply(RunsBulkResult.of(done))


@router.get("/runs/{id}", summary="Read a run with its attempts")
@access("read")
async def get_run(id: RunPath, service: ServiceDep) -> Reply[Run]:
    return await _run(service, id)


@router.get("/runs/{id}/workflow", summary="Show the workflow that a run belongs to")
@access("read")
async def get_run_workflow(id: RunPath, service: ServiceDep) -> Reply[Workflow]:
    run = await service.client.get_run(id)
    return Reply(Workflow.of(await service.client.workflow(run.id)))


@router.get("/runs/{id}/explain", summary="Say why a run has not run")
@access("read")
async def explain_run(id: RunPath, service: ServiceDep) -> Reply[Explanation]:
    await service.client.get_run(id)
    return Reply(Explanation.of(await service.client.explain(id)))


@router.post("/runs/{id}/cancel", summary="Cancel a run")
@access("write")
async def cancel_run(id: RunPath, service: ServiceDep) -> Reply[Run]:
    if not await service.client.cancel(id):
        run = await service.client.get_run(id)
        raise ApiError(409, f"run {id!r} has ended: it is {run.state}", code="invalid_state")
    return await _run(service, id)


@router.post("/runs/{id}/retry", summary="Try a failed run again")
@access("write")
async def retry_run(id: RunPath, service: ServiceDep) -> Reply[Run]:
    await service.client.retry(id)
    return await _run(service, id)


@router.delete("/runs/{id}", status_code=204, summary="Delete a finished run")
@access("write")
async def delete_run(id: RunPath, service: ServiceDep) -> Response:
    run = await service.client.get_run(id)
    if not (await service.client.remove_runs([id])).done:
        held = "its dedupe key is still held, or an unfinished run comes after it"
        why = held if run.finished else "cancel it first"
        why = f"run {id!r} is {run.state} and cannot be deleted: {why}"
        raise ApiError(409, why, code="invalid_state")
    return Response(status_code=204)


@router.post("/chains", status_code=202, summary="Run jobs one after the other")
@access("write")
async def enqueue_chain(
    body: ChainBody, service: ServiceDep, request: Request
) -> Reply[ChainResult]:
    note_detail(request, ", ".join(link.job_id for link in body.links))
    links = [(link.job_id, link.payload) for link in body.links]
    try:
        runs = await service.client.chain(*links, after_failure=body.after_failure)
    except JobNotFound as error:  # of the body: what the path names is there
        raise ApiError.of_fields(FieldError("links", str(error))) from None
    return Reply(ChainResult(items=[Run.whole(run) for run in runs]), 202)


async def _act_on_runs(service: Service, body: RunsBulkBody) -> Matched:
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
            "since": in_utc(match.sent.get("since"), "since"),
            "until": in_utc(match.sent.get("until"), "until"),
            "limit": body.limit,
        }
    client = service.client
    action = {
        "cancel": client.cancel_runs,
        "retry": client.retry_runs,
        "delete": client.remove_runs,
    }[body.action]
    return await action(**chosen)


async def _run(service: Service, run_id: str) -> Reply[Run]:
    """A run with its attempts, and why it has not started if it has not."""
    run = await service.client.get_run(run_id)
    why = (await service.client.explain(run_id)).problem
    return Reply(Run.whole(run, why))
