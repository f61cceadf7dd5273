"""`/api/v1/keys`, `/api/v1/audit` and `/api/v1/session`: API keys, what was done with them, and the
session that a person's browser gets for one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Self

from fastapi import Query, Request, Response
from msgspec import UNSET, UnsetType

from mainspring.errors import NotFound
from mainspring.service.access import access, api_router
from mainspring.service.api_keys import Key, KeyState, Scope
from mainspring.service.dependencies import (
    Cursor,
    Limit,
    ServiceDep,
    by_session,
    key_of,
    note_created,
    note_detail,
)
from mainspring.service.problems import ApiError, too_many
from mainspring.service.schemas.documents import Cursor as NextCursor
from mainspring.service.schemas.documents import Document, Reply, Time, example, to_iso
from mainspring.service.schemas.fields import Body, Duration, OneLine
from mainspring.service.sessions import (
    HOST_PREFIX,
    SESSION_TTL,
    cookie_name,
    has_host_cookie,
    session_cookie,
    uses_https,
)

router = api_router(prefix="/api/v1", tags=["keys"])


class ApiKey(Document):
    """An API key."""

    id: Annotated[str, example("0123456789ab")]
    """The part of the key that is no secret."""
    name: Annotated[str, example("ci")]
    """Who uses the key."""
    scope: Annotated[Scope, example("write")]
    """`write` also reads. `admin` also makes and revokes keys."""
    state: Annotated[KeyState, example("active")]
    """Whether the key is valid."""
    created_at: Time
    """When the key was made."""
    expires_at: Time | None
    """When the key stops being valid. Null: never."""
    key: Annotated[str | UnsetType, example("ms_0123456789ab_…")] = UNSET
    """The key itself. Only the response that made it shows it."""

    @classmethod
    def at(cls, now: datetime, key: Key, text: str | UnsetType = UNSET) -> Self:
        """The key as it is at that time. `text`: the key itself."""
        return cls(
            id=key.id,
            name=key.name,
            scope=key.scope,
            state=key.state(now),
            created_at=to_iso(key.created_at),
            expires_at=to_iso(key.expires_at),
            key=text,
        )


class ApiKeyList(Document):
    items: list[ApiKey]
    next_cursor: NextCursor


class KeyBody(Body):
    """A new API key."""

    example: ClassVar = {"name": "ci", "scope": "write", "expiresIn": "90d"}
    document = ApiKey
    name: OneLine
    scope: Scope = "read"
    expires_in: Duration | None = None
    """How long the key is valid. Null: it does not expire."""


class Session(Document):
    """The session of a person who signed in."""

    key_id: str | None
    """The key that was used. Null: no key is needed here."""
    name: str | None
    """The name of that key."""
    scope: Scope
    """What the session may do."""
    expires_at: Time | None
    """When the session that was begun ends. Null in other responses."""


class Audit(Document):
    """A change that was done."""

    at: Time
    key_id: str | None
    """The API key. Null: none was needed."""
    key_name: str | None
    address: str | None
    """The client's address, or its proxy's."""
    method: str
    path: str
    status: int
    """The status of the response."""
    created_id: str | None
    """The id of the job, run or API key that the request created."""
    detail: Annotated[str | None, example("schedule, enabled")]
    """What was done, where the path does not say it: the fields of a job that changed, or the
    action on many and whom it concerned."""


class AuditList(Document):
    items: list[Audit]
    next_cursor: NextCursor


@router.post("/keys", status_code=201, summary="Create an API key")
@access("admin")
async def create_key(body: KeyBody, service: ServiceDep, request: Request) -> Reply[ApiKey]:
    key, text = await service.keys.create(body.name, body.scope, body.sent.get("expires_in"))
    note_created(request, key.id)
    note_detail(request, f"{key.name}, scope {key.scope}")
    return Reply(ApiKey.at(await service.client.now(), key, text), 201)


@router.get("/keys", summary="List API keys")
@access("admin")
async def list_keys(service: ServiceDep) -> Reply[ApiKeyList]:
    now = await service.client.now()
    items = [ApiKey.at(now, key) for key in await service.keys.list()]
    return Reply(ApiKeyList(items=items, next_cursor=None))


@router.delete("/keys/{id}", status_code=204, summary="Revoke an API key")
@access("admin")
async def revoke_key(
    id: str,
    service: ServiceDep,
    request: Request,
    force: Annotated[bool, Query(description="Even if it is the only admin key.")] = False,
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


@router.get("/audit", summary="List changes, newest first")
@access("admin")
async def list_audit(
    service: ServiceDep, limit: Limit = 50, cursor: Cursor = None
) -> Reply[AuditList]:
    page = await service.audit.list(limit, cursor)
    items = [Audit.of(entry) for entry in page.items]
    return Reply(AuditList(items=items, next_cursor=page.cursor))


# -- sessions -------------------------------------------------------------------------------------


@router.post("/session", status_code=201, summary="Sign in with an API key")
@access("read", is_change=True)
async def begin_session(service: ServiceDep, request: Request) -> Reply[Session]:
    """The response sets a cookie that stands for the key of the request, for 12 hours. Its name is
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
    reply = Reply(_session(key, to_iso(ends)), 201)
    _set_cookie(request, reply, text)
    return reply


@router.get("/session", summary="Show who is signed in")
@access("read")
async def get_session(request: Request) -> Reply[Session]:
    return Reply(_session(key_of(request), None))


@router.delete("/session", status_code=204, summary="Sign out")
@access("read")
async def end_session(service: ServiceDep, request: Request) -> Response:
    if (text := session_cookie(request.scope)) is not None:
        await service.sessions.end(text)
    response = Response(status_code=204)
    _set_cookie(request, response, "")
    return response


def _session(key: Key | None, expires_at: Time | None) -> Session:
    return Session(
        key_id=None if key is None else key.id,
        name=None if key is None else key.name,
        scope="admin" if key is None else key.scope,
        expires_at=expires_at,
    )


def _set_cookie(request: Request, response: Response, text: str) -> None:
    """Set the cookie, or delete it if the text is empty."""
    prefix = HOST_PREFIX if has_host_cookie(request.scope) else ""
    response.set_cookie(
        prefix + cookie_name(request.headers),
        text,
        max_age=int(SESSION_TTL.total_seconds()) if text else 0,
        path=request.scope.get("root_path", "") or "/",
        secure=uses_https(request.scope),
        httponly=True,
        samesite="strict",
    )
