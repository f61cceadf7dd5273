"""A forecast of the load that schedules make."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, TypeVar

from pydantic import Field

from mainspring.core import forecast as values
from mainspring.service.schemas.fields import Document, Time

JobIds = list[str]


class JobLoad(Document):
    job_id: str
    schedule: Annotated[str, Field(description="The schedule in words.")]
    runs: int
    shortest_gap: Annotated[
        int | None, Field(description="The least time between two slots, in milliseconds.")
    ]


class Collision(Document):
    time: Annotated[str, Field(description="The time of day.", examples=["00:00:00"])]
    most: Annotated[int, Field(description="How many jobs start in this second, at most.")]
    days: int
    jobs: JobIds


class ClockChange(Document):
    effect: str
    jobs: JobIds


class Overrun(Document):
    job_id: str
    p95_duration: Annotated[
        int, Field(description="What 95 % of its newest runs did not exceed, in milliseconds.")
    ]
    interval: Annotated[int, Field(description="In milliseconds.")]
    effect: str


class Suggestion(Document):
    advice: str
    jobs: JobIds
    schedules: Annotated[
        dict[str, str], Field(description="By job: the schedule to write instead.")
    ]
    most_before: int
    most_after: int


class Forecast(Document):
    start: Time
    end: Time
    timezone: str
    runs: int
    paused: Annotated[int, Field(description="Paused jobs, which are not counted.")]
    unscheduled: Annotated[int, Field(description="Jobs without a schedule.")]
    heat: Annotated[
        list[list[float]],
        Field(description="Mean runs by weekday (Monday first) and hour of `timezone`."),
    ]
    jobs: Annotated[list[JobLoad], Field(description="The busiest jobs, at most 100.")]
    collisions: list[Collision]
    clock_changes: list[ClockChange]
    overruns: list[Overrun]
    suggestions: list[Suggestion]
    notes: list[str]


MOST_JOBS = 100
Cut = TypeVar("Cut", values.Collision, values.ClockChange, values.Suggestion)


def forecast_document(found: values.Forecast) -> Forecast:
    """The forecast with at most 100 jobs in each list and durations in milliseconds."""

    def cut(one: Cut) -> Cut:
        return replace(one, jobs=one.jobs[:MOST_JOBS])

    shown = replace(
        found,
        jobs=tuple(
            replace(load, shortest_gap=load.shortest_gap and round(load.shortest_gap * 1000))
            for load in found.jobs[:MOST_JOBS]
        ),
        collisions=tuple(map(cut, found.collisions)),
        clock_changes=tuple(map(cut, found.clock_changes)),
        overruns=tuple(
            replace(
                one,
                p95_duration=round(one.p95_duration * 1000),
                interval=round(one.interval * 1000),
            )
            for one in found.overruns[:MOST_JOBS]
        ),
        suggestions=tuple(
            replace(cut(one), schedules=dict(list(one.schedules.items())[:MOST_JOBS]))
            for one in found.suggestions
        ),
    )
    return Forecast.model_validate(shown, from_attributes=True)
