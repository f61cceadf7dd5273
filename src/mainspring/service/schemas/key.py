"""An API key."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mainspring.service.schemas.fields import Body, Cursor, Document, Duration, OneLine, Time

_Scope = Literal["read", "write", "admin"]
_NAME = Field(description="Who uses the key.")
_SCOPE = Field(description="`write` also reads. `admin` also makes and revokes keys.")


class KeyBody(Body):
    """A new API key."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"name": "ci", "scope": "write", "expiresIn": "90d"}],
        }
    )

    name: Annotated[OneLine, _NAME]
    scope: Annotated[_Scope, _SCOPE] = "read"
    expires_in: Annotated[
        Duration | None, Field(description="How long the key is valid. Null: it does not expire.")
    ] = None


class ApiKey(Document):
    """An API key."""

    id: Annotated[
        str,
        Field(description="The part of the key that is no secret.", examples=["0123456789ab"]),
    ]
    name: Annotated[str, _NAME, Field(examples=["ci"])]
    scope: Annotated[_Scope, _SCOPE, Field(examples=["write"])]
    state: Annotated[
        Literal["active", "expired", "revoked"],
        Field(description="Whether the key is valid.", examples=["active"]),
    ]
    created_at: Annotated[Time, Field(description="When the key was made.")]
    expires_at: Annotated[
        Time | None, Field(description="When the key stops being valid. Null: never.")
    ]
    key: Annotated[
        str | None,
        Field(
            description="The key itself. Only the answer that made it shows it.",
            examples=["ms_0123456789ab_…"],
        ),
    ] = None


class ApiKeyList(Document):
    items: list[ApiKey]
    next_cursor: Cursor
