"""`/api/v1/keys` and `/api/v1/audit`: API keys, and what was done with them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from mainspring.errors import NotFound
from mainspring.service.access import access
from mainspring.service.dependencies import Cursor, Limit, ServiceDep, note_created, note_detail
from mainspring.service.problems import ApiError
from mainspring.service.router import api_router
from mainspring.service.schemas.audit import AuditList, audit_document
from mainspring.service.schemas.json_format import camel_case, json_response
from mainspring.service.schemas.key import ApiKey, ApiKeyList, KeyBody

router = api_router(prefix="/api/v1", tags=["keys"])


@router.post("/keys", status_code=201, response_model=ApiKey, summary="Create an API key")
@access("admin")
async def create_key(body: KeyBody, service: ServiceDep, request: Request) -> Response:
    key, text = await service.keys.create(body.name, body.scope, body.sent.get("expires_in"))
    note_created(request, key.id)
    note_detail(request, f"{key.name}, scope {key.scope}")
    return json_response({**camel_case(key.to_dict(await service.client.now())), "key": text}, 201)


@router.get("/keys", response_model=ApiKeyList, summary="List API keys")
@access("admin")
async def list_keys(service: ServiceDep) -> Response:
    now = await service.client.now()
    items = [camel_case(key.to_dict(now)) for key in await service.keys.list()]
    return json_response({"items": items, "nextCursor": None})


@router.delete("/keys/{id}", status_code=204, summary="Revoke an API key")
@access("admin")
async def revoke_key(
    id: str,
    service: ServiceDep,
    request: Request,
    force: Annotated[bool, Query(description="Also if it is the only admin key.")] = False,
) -> Response:
    if not id.isalnum() or not id.isascii():
        raise NotFound(f"there is no key {id[:50]!r}")
    if not force and await service.keys.is_only_admin(id):
        raise ApiError(
            409,
            "this is the only valid key of the scope admin: without it nobody can manage keys over"
            " HTTP. Create another first, or send force=true; `mainspring keys create` on the"
            " machine makes a new one",
        )
    key = await service.keys.revoke(id)
    note_detail(request, f"{key.name}, scope {key.scope}")
    return Response(status_code=204)


@router.get("/audit", response_model=AuditList, summary="List changes, newest first")
@access("admin")
async def list_audit(service: ServiceDep, limit: Limit = 50, cursor: Cursor = None) -> Response:
    page = await service.audit.list(limit, cursor)
    items = [audit_document(one) for one in page.items]
    return json_response({"items": items, "nextCursor": page.cursor})
