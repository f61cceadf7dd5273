"""What the routes share: the scheduler, the settings, and whether the service is on its way out."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from fastapi import Depends, Query, Request
from pydantic import AfterValidator

from mainspring.core.clock import Clock, SystemClock
from mainspring.core.events import Event
from mainspring.core.model import Job
from mainspring.errors import JobNotFound, RunNotFound
from mainspring.scheduler import Scheduler
from mainspring.service.api_keys import Key, Keys
from mainspring.service.id_format import can_be_job, can_be_run
from mainspring.service.metrics import Metrics
from mainspring.service.settings import ServiceSettings

__all__ = ["COMPATIBILITY", "JobPath", "PageLimit", "RunPath", "Service", "ServiceDep"]

# Async, all of them: plain functions FastAPI would run in a thread of their own.


COMPATIBILITY = "compatibility"
"""The tag of routes in the forms of the page that older clients were made from."""

MOST_ON_A_PAGE = 200

PageLimit = Annotated[
    int,
    Query(ge=1, description=f"At most so many; more than {MOST_ON_A_PAGE} gives {MOST_ON_A_PAGE}."),
    AfterValidator(lambda asked: min(asked, MOST_ON_A_PAGE)),
]


@dataclass
class Service:
    """One application's own state; nothing here is global."""

    scheduler: Scheduler
    settings: ServiceSettings
    loopback: bool = False
    open: bool = False
    clock: Clock = field(default_factory=SystemClock)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    streams: Counter[str] = field(default_factory=Counter)
    """Open event streams, by the id of their key ("" without one)."""
    most_streams: int = 200
    previewing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Who holds it works out a preview; the others wait."""
    told: dict[str, tuple[Event, bytes]] = field(default_factory=dict)
    """The last event that event streams were told, in each form in which they send it."""

    def __post_init__(self) -> None:
        self.keys = Keys(self.scheduler, self.clock)
        self.metrics = Metrics(self.scheduler, self.clock)

    @property
    def most_streams_of_a_key(self) -> int:
        """One key's clients must not take the streams of all others."""
        return max(1, self.most_streams // 4)

    @property
    def started(self) -> bool:
        """Whether it is, or was until it began to stop: a mounted one may have been forgotten."""
        return self.scheduler.started or self.draining.is_set()

    async def job(self, job_id: str) -> Job:
        return await self.scheduler.get_job(job_id)


async def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def caller(request: Request) -> str:
    """Who asks, in one word: the id of the key, or nobody in particular."""
    key = cast("dict[str, Any]", request.scope.get("state", {})).get("key")
    return key.id if isinstance(key, Key) else ""


async def _job_path(id: str) -> str:
    """What can be no job's id leads to none; no store has to look at it."""
    if not can_be_job(id):
        raise JobNotFound(id)
    return id


async def _run_path(id: str) -> str:
    if not can_be_run(id):
        raise RunNotFound(id)
    return id


ServiceDep = Annotated[Service, Depends(_service)]
JobPath = Annotated[str, Depends(_job_path)]
RunPath = Annotated[str, Depends(_run_path)]
