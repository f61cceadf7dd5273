"""An entry of the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mainspring.service.audit import AuditEntry
from mainspring.service.schemas.fields import Cursor, Document, Time
from mainspring.service.schemas.json_format import to_iso

__all__ = ["Audit", "AuditList", "audit_document"]


class Audit(Document):
    """A change that was done."""

    at: Time
    key_id: Annotated[str | None, Field(description="The API key. Null: none was needed.")]
    key_name: str | None
    address: Annotated[str | None, Field(description="The client's address, or its proxy's.")]
    method: str
    path: str
    status: Annotated[int, Field(description="The status of the answer.")]
    created_id: Annotated[
        str | None,
        Field(description="The id of the job, run or API key that the request created."),
    ]
    detail: Annotated[
        str | None,
        Field(
            description="What was done, where the path does not say it: the fields of a job that"
            " changed, or the action on many and whom it concerned.",
            examples=["schedule, enabled"],
        ),
    ]


class AuditList(Document):
    items: list[Audit]
    next_cursor: Cursor


def audit_document(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": to_iso(entry.at),
        "keyId": entry.key or None,
        "keyName": entry.key_name or None,
        "address": entry.address or None,
        "method": entry.method,
        "path": entry.path,
        "status": entry.status,
        "createdId": entry.created or None,
        "detail": entry.detail or None,
    }
