"""Placeholder until the schedules branch lands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True)
class Schedule:
    seconds: float = 60
    start: datetime | None = None
    jitter: timedelta | None = None

    def next(self, after: datetime) -> datetime | None:
        return after + timedelta(seconds=self.seconds)

    def bind(self, key: str, anchor: datetime) -> Schedule:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "placeholder", "seconds": self.seconds}


def from_dict(data: dict[str, Any]) -> Schedule:
    return Schedule(data["seconds"])
