"""API keys, the sessions of people who signed in with one, and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Self

from msgspec import UNSET, UnsetType

from mainspring.service.api_keys import Key, KeyState, Scope
from mainspring.service.schemas.documents import Cursor, Document, example
from mainspring.service.schemas.fields import Body, Duration, OneLine
from mainspring.service.schemas.json_format import Time, to_iso


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
    next_cursor: Cursor


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
    next_cursor: Cursor
