"""The session of a person who signed in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mainspring.service.schemas.fields import Document, Time

__all__ = ["Session"]


class Session(Document):
    key_id: Annotated[
        str | None, Field(description="The key that was used. Null: no key is needed here.")
    ]
    name: Annotated[str | None, Field(description="The name of that key.")]
    scope: Annotated[
        Literal["read", "write", "admin"], Field(description="What the session may do.")
    ]
    expires_at: Annotated[
        Time | None,
        Field(description="When the session that was begun ends. Null in other answers."),
    ]
