"""Why a run, a job or a slot has not run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mainspring.scheduler.explanation import Reason
from mainspring.service.schemas.fields import Document, Time


class Explanation(Document):
    """Why a run, a job or a slot has not run, or not yet; or that it has."""

    code: Annotated[Reason, Field(description="The reason, for programs.", examples=["overlap"])]
    sentence: Annotated[str, Field(description="The reason, for people.")]
    job_id: str
    run_id: Annotated[str | None, Field(description="The run that the answer is about.")]
    at: Annotated[Time | None, Field(description="The slot that was asked about.")]
    facts: Annotated[
        dict[str, Any], Field(description="Ids of runs, times and names behind the sentence.")
    ]
