"""643 rows from the public suites of six cron libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.schedules import Schedule, cron
from mainspring.errors import InvalidSchedule

ROWS = Path(__file__).with_name("cron_cases.jsonl")
EARLY = datetime(1970, 1, 1, tzinfo=UTC)


def rows(*kinds: str) -> list[dict[str, Any]]:
    every = [json.loads(line) for line in ROWS.read_text().splitlines()]
    return [row for row in every if row["kind"] in kinds]


def following(schedule: Schedule, moment: datetime, count: int) -> Iterator[datetime | None]:
    for _ in range(count):
        slot = schedule.next(moment)
        yield slot
        if slot is None:
            return
        moment = slot


def test_every_row_gives_its_times() -> None:
    wrong = []
    for row in rows("next", "dst"):
        schedule = cron(row["expr"], row["tz"])
        expected = [datetime.fromisoformat(text) for text in row["expected"]]
        slots = list(following(schedule, datetime.fromisoformat(row["start"]), len(expected)))
        if slots != expected:
            wrong.append((row, slots))
    assert not wrong


def test_every_row_backwards() -> None:
    wrong = []
    for row in rows("next", "dst"):
        schedule = cron(row["expr"], row["tz"])
        *earlier, last = map(datetime.fromisoformat, row["expected"])
        before = schedule.previous(last)
        if before is None:  # then it is the first of a schedule with a year
            right = not earlier and schedule.next(EARLY) == last
        else:
            right = before < last and schedule.next(before) == last
            right = right and before in (earlier[-1:] or [before])
        if not right:
            wrong.append((row, before))
    assert not wrong


def test_rows_that_never_fire_are_refused() -> None:
    for row in rows("never"):
        with pytest.raises(InvalidSchedule, match="can never fire"):
            cron(row["expr"], row["tz"])
