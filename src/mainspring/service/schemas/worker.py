"""A worker: a process that works on runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mainspring.service.schemas.fields import Cursor, Document, Time


class Worker(Document):
    """A process that works on runs. A worker of an earlier version says less of itself."""

    id: str
    node: Annotated[str | None, Field(description="The host or pod that it runs on.")]
    pid: int | None
    version: str | None
    is_leader: Annotated[bool, Field(description="Whether it fires slots first.")]
    fires: Annotated[bool, Field(description="Whether it fires slots: not with enabled=False.")]
    queues: Annotated[list[str] | None, Field(description="The queues it takes; null: all.")]
    handlers: list[str]
    capacity: Annotated[int | None, Field(description="How many attempts it may run at once.")]
    running: Annotated[int | None, Field(description="How many it ran when it was last seen.")]
    memory: Annotated[int | None, Field(description="Bytes that it used when it was last seen.")]
    memory_limit: Annotated[int | None, Field(description="Bytes at which it drains.")]
    memory_limit_reached: Annotated[
        bool, Field(description="Whether it takes no more runs because of its memory limit.")
    ]
    started_at: Time | None
    seen_at: Annotated[Time | None, Field(description="Its last sign of life.")]


class WorkerList(Document):
    items: list[Worker]
    next_cursor: Cursor
