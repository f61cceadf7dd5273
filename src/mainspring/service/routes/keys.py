"""API keys: create, list and revoke them with a key of the scope admin. `/api/keys` has the
compatibility operations; `v1.py` calls the same functions."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from mainspring.errors import NotFound
from mainspring.service.dependencies import COMPATIBILITY, Service, ServiceDep, note_created
from mainspring.service.router import api_router
from mainspring.service.schemas.json_format import camel_case, json_response
from mainspring.service.schemas.key import KeyAnswer, KeyBody, KeyList
from mainspring.service.schemas.problem import Done

__all__ = ["create_key", "list_all_keys", "revoke_key", "router"]

router = api_router(prefix="/api/keys", tags=[COMPATIBILITY])


@router.post("", status_code=201, response_model=KeyAnswer, summary="Make an API key")
async def create(body: KeyBody, service: ServiceDep, request: Request) -> Response:
    made = await create_key(service, request, body)
    return json_response({"success": True, "data": made}, 201)


async def create_key(service: Service, request: Request, body: KeyBody) -> dict[str, Any]:
    key, text = await service.keys.create(body.name, body.scope, body.sent.get("expires_in"))
    note_created(request, key.id)
    return {**camel_case(key.to_dict(await service.client.now())), "key": text}


@router.get("", response_model=KeyList, summary="List API keys")
async def list_keys(service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await list_all_keys(service)})


async def list_all_keys(service: Service) -> list[dict[str, Any]]:
    now = await service.client.now()
    return [camel_case(key.to_dict(now)) for key in await service.keys.list()]


@router.delete("/{id}", response_model=Done, summary="Revoke an API key")
async def revoke(id: str, service: ServiceDep) -> Response:
    await revoke_key(service, id)
    return json_response({"success": True, "message": f"key {id} was revoked"})


async def revoke_key(service: Service, id: str) -> None:
    if not id.isalnum() or not id.isascii():
        raise NotFound(f"there is no key {id[:50]!r}")
    await service.keys.revoke(id)
