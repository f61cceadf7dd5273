"""A preview of a schedule, and a forecast of the load that schedules make."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import Field

from mainspring.core import forecast as values
from mainspring.service.schemas.documents import Document, example
from mainspring.service.schemas.fields import DateTime
from mainspring.service.schemas.job import ScheduleFields
from mainspring.service.schemas.json_format import Time


class PreviewBody(ScheduleFields):
    """A schedule to preview."""

    example: ClassVar = {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "count": 3}
    count: Annotated[int, Field(ge=1, le=1000)] = 10
    """How many slots."""
    job_id: Annotated[str, Field(max_length=200)] | None = None
    """The job that would have this schedule: `H` in a cron expression depends on it."""
    after: DateTime | None = None
    """Slots later than this. Now by default."""


class Slot(Document):
    utc: Time
    local: Annotated[str, example("2026-03-01T02:30:00.000+01:00")]
    """In the schedule's timezone."""


class Preview(Document):
    schedule: Annotated[str, example("30 2 * * *")]
    description: str
    """The schedule in words."""
    timezone: Annotated[str, example("Europe/Berlin")]
    slots: list[Slot]
    warnings: list[str]
    """What changes of the clock do to the schedule."""


class JobLoad(Document):
    job_id: str
    schedule: str
    """The schedule in words."""
    runs: int
    shortest_gap: int | None
    """The least time between two slots, in milliseconds."""


class Collision(Document):
    time: Annotated[str, example("00:00:00")]
    """The time of day."""
    most: int
    """How many jobs start in this second, at most."""
    days: int
    jobs: list[str]


class ClockChange(Document):
    effect: str
    jobs: list[str]


class Overrun(Document):
    job_id: str
    p95_duration: int
    """What 95 % of its newest runs did not exceed, in milliseconds."""
    interval: int
    """In milliseconds."""
    effect: str


class Suggestion(Document):
    advice: str
    jobs: list[str]
    schedules: dict[str, str]
    """By job: the schedule to write instead."""
    most_before: int
    most_after: int


MOST_JOBS = 100
Cut = TypeVar("Cut", values.Collision, values.ClockChange, values.Suggestion)


class Forecast(Document):
    start: Time
    end: Time
    timezone: str
    runs: int
    paused: int
    """Paused jobs, which are not counted."""
    unscheduled: int
    """Jobs without a schedule."""
    heat: list[list[float]]
    """Mean runs by weekday (Monday first) and hour of `timezone`."""
    jobs: list[JobLoad]
    """The busiest jobs, at most 100."""
    collisions: list[Collision]
    clock_changes: list[ClockChange]
    overruns: list[Overrun]
    suggestions: list[Suggestion]
    notes: list[str]

    @classmethod
    def of(cls, forecast: values.Forecast) -> Self:
        """With at most 100 jobs in each list, and durations in milliseconds."""

        def cut(part: Cut) -> Cut:
            return replace(part, jobs=part.jobs[:MOST_JOBS])

        shown = replace(
            forecast,
            jobs=tuple(
                replace(load, shortest_gap=load.shortest_gap and round(load.shortest_gap * 1000))
                for load in forecast.jobs[:MOST_JOBS]
            ),
            collisions=tuple(map(cut, forecast.collisions)),
            clock_changes=tuple(map(cut, forecast.clock_changes)),
            overruns=tuple(
                replace(
                    overrun,
                    p95_duration=round(overrun.p95_duration * 1000),
                    interval=round(overrun.interval * 1000),
                )
                for overrun in forecast.overruns[:MOST_JOBS]
            ),
            suggestions=tuple(
                replace(cut(part), schedules=dict(list(part.schedules.items())[:MOST_JOBS]))
                for part in forecast.suggestions
            ),
        )
        return super().of(shown)
