"""`/api/keys`: make, list and revoke API keys, for those whose key has the scope admin."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response

from mainspring.errors import NotFound
from mainspring.service import documents as docs
from mainspring.service import shapes
from mainspring.service.bodies import KeyBody
from mainspring.service.core import ServiceDep
from mainspring.service.keys import Key
from mainspring.service.spans import span

__all__ = ["key_document", "router"]

router = APIRouter(prefix="/api/keys", tags=["keys"])


@router.post("", status_code=201, response_model=docs.KeyAnswer, summary="Make an API key")
async def create(body: KeyBody, service: ServiceDep) -> Response:
    expires = None if body.expires_in is None else span(body.expires_in, "expiresIn")
    key, text = await service.keys.create(body.name, body.scope, expires)
    now = await service.scheduler.now()
    return shapes.answer({"success": True, "data": {**key_document(key, now), "key": text}}, 201)


@router.get("", response_model=docs.KeyList, summary="List API keys")
async def list_keys(service: ServiceDep) -> Response:
    now = await service.scheduler.now()
    found = [key_document(key, now) for key in await service.keys.list()]
    return shapes.answer({"success": True, "data": found})


@router.delete("/{id}", response_model=docs.Done, summary="Revoke an API key")
async def revoke(id: str, service: ServiceDep) -> Response:
    if not id.isalnum() or not id.isascii():
        raise NotFound(f"there is no key {id[:50]!r}")
    await service.keys.revoke(id)
    return shapes.answer({"success": True, "message": f"key {id} was revoked"})


def key_document(key: Key, now: datetime) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scope": key.scope,
        "state": key.state(now),
        "createdAt": shapes.when(key.created_at),
        "expiresAt": shapes.when(key.expires_at),
    }
