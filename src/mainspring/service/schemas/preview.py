"""A preview of a schedule: its next slots, before a job is saved."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from mainspring.service.schemas.fields import (
    DateTime,
    Document,
    FieldSpec,
    Time,
    TolerantBody,
    takes,
)
from mainspring.service.schemas.job import SCHEDULE

_REQUEST: tuple[FieldSpec[object], ...] = (
    FieldSpec(
        "count",
        "How many slots.",
        sent=Annotated[int, Field(ge=1, le=1000)],
        default=10,
    ),
    FieldSpec(
        "job_id",
        "The job that would have this schedule: `H` in a cron expression depends on it.",
        sent=Annotated[str, Field(max_length=200)] | None,
    ),
    FieldSpec("after", "Slots later than this. Now by default.", sent=DateTime | None),
)


@takes(*SCHEDULE, *_REQUEST)
class PreviewBody(TolerantBody):
    """A schedule to preview."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "count": 3}],
        }
    )


class Slot(Document):
    utc: Time
    local: Annotated[
        str,
        Field(
            description="In the schedule's timezone.", examples=["2026-03-01T02:30:00.000+01:00"]
        ),
    ]


class Preview(Document):
    schedule: Annotated[str, Field(examples=["30 2 * * *"])]
    description: Annotated[str, Field(description="The schedule in words.")]
    timezone: Annotated[str, Field(examples=["Europe/Berlin"])]
    slots: list[Slot]
    warnings: Annotated[
        list[str], Field(description="What changes of the clock do to the schedule.")
    ]
