"""`/api/keys`: make, list and revoke API keys, for those whose key has the scope admin."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response

from mainspring.errors import NotFound
from mainspring.service.api_keys import Key
from mainspring.service.dependencies import COMPATIBILITY, Service, ServiceDep
from mainspring.service.schemas import documents
from mainspring.service.schemas import envelopes as docs
from mainspring.service.schemas.durations import span
from mainspring.service.schemas.requests import KeyBody

__all__ = ["all_keys", "create_key", "key_document", "revoke_key", "router"]

router = APIRouter(prefix="/api/keys", tags=[COMPATIBILITY])


@router.post("", status_code=201, response_model=docs.KeyAnswer, summary="Make an API key")
async def create(body: KeyBody, service: ServiceDep) -> Response:
    return documents.answer({"success": True, "data": await create_key(service, body)}, 201)


async def create_key(service: Service, body: KeyBody) -> dict[str, Any]:
    expires = None if body.expires_in is None else span(body.expires_in, "expiresIn")
    key, text = await service.keys.create(body.name, body.scope, expires)
    return {**key_document(key, await service.scheduler.now()), "key": text}


@router.get("", response_model=docs.KeyList, summary="List API keys")
async def list_keys(service: ServiceDep) -> Response:
    return documents.answer({"success": True, "data": await all_keys(service)})


async def all_keys(service: Service) -> list[dict[str, Any]]:
    now = await service.scheduler.now()
    return [key_document(key, now) for key in await service.keys.list()]


@router.delete("/{id}", response_model=docs.Done, summary="Revoke an API key")
async def revoke(id: str, service: ServiceDep) -> Response:
    await revoke_key(service, id)
    return documents.answer({"success": True, "message": f"key {id} was revoked"})


async def revoke_key(service: Service, id: str) -> None:
    if not id.isalnum() or not id.isascii():
        raise NotFound(f"there is no key {id[:50]!r}")
    await service.keys.revoke(id)


def key_document(key: Key, now: datetime) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scope": key.scope,
        "state": key.state(now),
        "createdAt": documents.when(key.created_at),
        "expiresAt": documents.when(key.expires_at),
    }
