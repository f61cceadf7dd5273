"""An API key."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import ConfigDict, Field

from mainspring.service.api_keys import Key
from mainspring.service.schemas.fields import (
    Body,
    Cursor,
    Document,
    Duration,
    FieldSpec,
    OneLine,
    Time,
    answers,
    document_of,
)
from mainspring.service.schemas.json_format import to_iso

__all__ = ["ApiKey", "ApiKeyList", "KeyAnswer", "KeyBody", "KeyList", "key_document"]

_Scope = Literal["read", "write", "admin"]


class KeyBody(Body):
    """A new API key."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"name": "ci", "scope": "write", "expiresIn": "90d"}],
        }
    )

    name: Annotated[OneLine, Field(description="Who uses the key.")]
    scope: Annotated[
        _Scope, Field(description="`write` also reads. `admin` also makes and revokes keys.")
    ] = "read"
    expires_in: Annotated[
        Duration | None, Field(description="How long the key is valid. Null: it does not expire.")
    ] = None


class _Source(Struct, frozen=True):
    key: Key
    now: datetime


API_KEY: tuple[FieldSpec[_Source], ...] = (
    FieldSpec(
        "id",
        "The part of the key that is no secret.",
        "0123456789ab",
        answered=str,
        read=lambda source: source.key.id,
    ),
    FieldSpec("name", "Who uses the key.", "ci", answered=str, read=lambda source: source.key.name),
    FieldSpec(
        "scope",
        "`write` also reads. `admin` also makes and revokes keys.",
        "write",
        answered=_Scope,
        read=lambda source: source.key.scope,
    ),
    FieldSpec(
        "state",
        "Whether the key is valid.",
        "active",
        answered=Literal["active", "expired", "revoked"],
        read=lambda source: source.key.state(source.now),
    ),
    FieldSpec(
        "created_at",
        "When the key was made.",
        answered=Time,
        read=lambda source: to_iso(source.key.created_at),
    ),
    FieldSpec(
        "expires_at",
        "When the key stops being valid. Null: never.",
        answered=Time | None,
        read=lambda source: to_iso(source.key.expires_at),
    ),
)
KEY_TEXT: FieldSpec[Any] = FieldSpec(
    "key",
    "The key itself. Only the answer that made it shows it.",
    "ms_0123456789ab_…",
    answered=str | None,
    optional=True,
)


@answers(*API_KEY, KEY_TEXT)
class ApiKey(Document):
    """An API key."""


class ApiKeyList(Document):
    items: list[ApiKey]
    next_cursor: Cursor


class KeyAnswer(Document):
    success: bool
    data: ApiKey


class KeyList(Document):
    success: bool
    data: list[ApiKey]


def key_document(key: Key, now: datetime) -> dict[str, Any]:
    return document_of(API_KEY, _Source(key, now))
