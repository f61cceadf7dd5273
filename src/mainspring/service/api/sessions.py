"""`/api/v1/session`: a person's browser exchanges an API key for a cookie, and gives it back."""

from __future__ import annotations

from fastapi import Request, Response

from mainspring.service.access import access
from mainspring.service.api_keys import Key
from mainspring.service.dependencies import ServiceDep, by_session, key_of
from mainspring.service.problems import ApiError, too_many
from mainspring.service.router import api_router
from mainspring.service.schemas.json_format import json_response, to_iso
from mainspring.service.schemas.session import Session
from mainspring.service.sessions import (
    HOST_PREFIX,
    SESSION_TTL,
    cookie_name,
    has_host_cookie,
    session_cookie,
    uses_https,
)

__all__ = ["router"]

router = api_router(prefix="/api/v1/session", tags=["keys"])


@router.post("", status_code=201, response_model=Session, summary="Sign in with an API key")
@access("read", is_change=True)
async def begin_session(service: ServiceDep, request: Request) -> Response:
    """The answer sets a cookie that stands for the key of the request, for 12 hours. Its name is
    `mainspring_session`, with the port of the service's address if that has one."""
    key = key_of(request)
    if key is None:
        raise ApiError(409, "no API key is needed here: there is nothing to sign in to")
    if by_session(request):  # it would never end
        why = "a session begins with an API key: send the header 'Authorization: Bearer ms_…'"
        raise ApiError(409, why)
    if wait := service.sign_ins.take(key.id):
        raise too_many("this key signs in too often", wait)
    text, ends = await service.sessions.create(key)
    answer = json_response(_document(key, to_iso(ends)), 201)
    _set_cookie(request, answer, text)
    return answer


@router.get("", response_model=Session, summary="Show who is signed in")
@access("read")
async def get_session(request: Request) -> Response:
    return json_response(_document(key_of(request), None))


@router.delete("", status_code=204, summary="Sign out")
@access("read")
async def end_session(service: ServiceDep, request: Request) -> Response:
    if (text := session_cookie(request.scope)) is not None:
        await service.sessions.end(text)
    answer = Response(status_code=204)
    _set_cookie(request, answer, "")
    return answer


def _document(key: Key | None, expires_at: str | None) -> dict[str, str | None]:
    return {
        "keyId": None if key is None else key.id,
        "name": None if key is None else key.name,
        "scope": "admin" if key is None else key.scope,
        "expiresAt": expires_at,
    }


def _set_cookie(request: Request, answer: Response, text: str) -> None:
    """Set the cookie, or delete it if the text is empty."""
    prefix = HOST_PREFIX if has_host_cookie(request.scope) else ""
    answer.set_cookie(
        prefix + cookie_name(request.headers),
        text,
        max_age=int(SESSION_TTL.total_seconds()) if text else 0,
        path=request.scope.get("root_path", "") or "/",
        secure=uses_https(request.scope),
        httponly=True,
        samesite="strict",
    )
