"""Microseconds for one `next`, beside croniter, on ten expressions of different kinds.

Both compute the same moments, one after the other in one process, so that noise affects both alike.
Schedules are made beforehand, and each side gets moments in its fastest form: UTC for ours, the
schedule's zone for croniter. Of several rounds the fastest counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from zoneinfo import ZoneInfo

from croniter import croniter

from mainspring.core.schedules import cron

NAME = "cron"

EXPRESSIONS = [
    ("* * * * *", "Europe/Berlin"),
    ("*/5 * * * *", "UTC"),
    ("15,45 8-18 * * *", "UTC"),
    ("0 9 * * 1-5", "Asia/Kolkata"),
    ("30 2 * * *", "Europe/Berlin"),
    ("0 0 L * *", "UTC"),
    ("0 12 * * 5#3", "America/New_York"),
    ("0 0 31 * *", "UTC"),
    ("0 0 1 1 *", "America/New_York"),
    ("0 0 29 2 *", "UTC"),
]
_ROUNDS = 7
_START = datetime(2026, 1, 1, tzinfo=UTC)
# Odd steps through four years: all seasons, weekdays and times of day.
_MOMENTS = [_START + timedelta(days=7.3 * n, seconds=977 * n) for n in range(200)]


def run() -> dict[str, object]:
    """The time of each, the ratio for each expression, and the median and least of the ratios."""
    results = [_compare(expression, zone) for expression, zone in EXPRESSIONS]
    ratios = [float(result["ratio"]) for result in results]
    return {
        "unit": "microseconds per next",
        "expressions": results,
        "median_ratio": round(median(ratios), 1),
        "least_ratio": min(ratios),
    }


def _compare(expression: str, zone: str) -> dict[str, str | float]:
    schedule = cron(expression, zone)
    local = [moment.astimezone(ZoneInfo(zone)) for moment in _MOMENTS]
    peer = croniter(expression, local[0])

    def ours() -> None:
        for moment in _MOMENTS:
            schedule.next(moment)

    def theirs() -> None:
        for moment in local:
            peer.get_next(datetime, start_time=moment)

    rounds = [(_time(ours), _time(theirs)) for _ in range(_ROUNDS)]
    mine, peers = (min(times) for times in zip(*rounds, strict=True))
    return {
        "expression": expression,
        "timezone": zone,
        "mainspring": round(mine, 2),
        "croniter": round(peers, 2),
        "ratio": round(peers / mine, 1),
    }


def _time(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / len(_MOMENTS) * 1e6
