"""A backfill: the slots of a job that a client wants to run, and what was added for them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from mainspring.core.model import State
from mainspring.engine import backfill
from mainspring.service.schemas.fields import Body, DateTime, Document, Priority, Time
from mainspring.service.schemas.json_format import camel_case

MOST = 10_000
"""Runs that one request adds."""


class BackfillBody(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"start": "2026-11-01T00:00:00Z", "end": "2026-11-08T00:00:00Z"}],
        }
    )

    start: Annotated[DateTime, Field(description="The first slot, or a time before it.")]
    end: Annotated[DateTime, Field(description="Slots before this time. Not later than now.")]
    limit: Annotated[
        int,
        Field(
            ge=1,
            le=MOST,
            description="At most so many runs, earliest slot first. `nextSlot`: where to go on.",
        ),
    ] = backfill.MOST_WITHOUT_LIMIT
    priority: Annotated[Priority, Field(description="The priority of the runs.")] = 0


class Backfill(Document):
    """What a backfill did, or what a dry run would do."""

    job_id: str
    slots: Annotated[int, Field(description="How many slots lie between `start` and `end`.")]
    added: Annotated[list[str], Field(description="The runs of the slots that had none.")]
    existing: Annotated[
        dict[str, State], Field(description="Runs that were there already, and their states.")
    ]
    may_have_run: Annotated[
        int,
        Field(
            description="How many of the added slots are older than the runs that are kept: if they"
            " ran, their runs have been deleted since."
        ),
    ]
    next_slot: Annotated[
        Time | None, Field(description="The first slot that was not looked at; null at the end.")
    ]
    first_slot: Annotated[
        Time | None,
        Field(
            description="The first slot of the schedule, if that is later than `start`: an interval"
            " counts from when its job was first stored."
        ),
    ]


def backfill_document(found: backfill.Backfill) -> dict[str, Any]:
    return {**camel_case(found), "existing": found.existing}  # ids of runs, not names of fields
