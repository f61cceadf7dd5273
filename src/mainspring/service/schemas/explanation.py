"""Why a run, a job or a slot has not run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from mainspring.scheduler import explanation
from mainspring.scheduler.explanation import Reason
from mainspring.service.schemas.fields import Document, Time
from mainspring.service.schemas.json_format import to_iso

__all__ = ["Explanation", "ExplanationAnswer", "explanation_document"]


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


class ExplanationAnswer(Document):
    success: bool
    data: Explanation


def explanation_document(found: explanation.Explanation) -> dict[str, Any]:
    return {
        "code": str(found.code),
        "sentence": found.sentence,
        "jobId": found.job_id,
        "runId": found.run_id,
        "at": to_iso(found.at),
        "facts": _plain(found.facts),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value)
    if isinstance(value, dict):
        return {to_camel(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
