"""Compares what a target was told of a job with what is so. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.clock import from_us, to_us
from mainspring.core.model import State
from mainspring.core.plurals import plural
from mainspring.core.statistics import LastRun

NEWS = ("failure", "recovery", "missed", "breaker")

LONGEST_ERROR = 300
"""Characters of a run's error in a message."""


class Told(Struct, frozen=True, omit_defaults=True):
    """What a target has been told of a job. `failed`: of this many failed runs. `at`: when it was
    told of a failure last. `missed`: when of missed slots last, and `gap`: when the newest of them
    were found. `breaker`: whether its breaker was open, and `opened`: when that was told last.
    Times are in microseconds."""

    failed: int = 0
    failing: bool = False
    missed: int = 0
    breaker: bool = False
    at: int = 0
    gap: int = 0
    opened: int = 0


class Facts(Struct, frozen=True):
    """What the store knows of a job. `failed` runs so far; `failing`: none has succeeded since.
    `missed`: when slots were found missed, and how many. `breaker`: whether it is not closed."""

    failed: int = 0
    failing: bool = False
    last: LastRun | None = None
    missed: tuple[tuple[int, int], ...] = ()
    breaker: bool = False

    def baseline(self, since: int) -> Told:
        """What a new target is taken to know: only what has happened since is news."""
        last = self.last
        is_news = (
            last is not None and last.state is State.FAILED and to_us(last.finished_at) >= since
        )
        return Told(failed=self.failed - is_news, breaker=self.breaker)


class News(Struct, frozen=True):
    """What is to be told of a job, and what it will have been told then. `waits`: there is more,
    which the throttle holds back."""

    lines: tuple[str, ...]
    told: Told
    waits: bool = False


def news_of(
    facts: Facts, told: Told, on: Collection[str], throttle: timedelta, now: datetime
) -> News:
    """The news of a job. Failures, missed slots and an open breaker come at most once each in
    `throttle`; the next message counts what was in between. A recovery comes at once: it needs a
    failure or an open breaker that was told."""
    lines: list[str] = []
    span, at, waits = throttle // timedelta(microseconds=1), to_us(now), False
    if facts.failed < told.failed:  # the job was removed and made again
        told = replace(told, failed=0, failing=False)
    more, recovered = facts.failed - told.failed, told.failing and not facts.failing
    if more and (recovered or "failure" not in on or not told.at or at - told.at >= span):
        if "failure" in on:
            lines.append(_failures(facts, more, told.at))
        told = replace(told, failed=facts.failed, failing=facts.failing, at=at)
    elif more:
        waits = True
    if recovered:
        told = replace(told, failing=False)
        if "recovery" in on:
            lines.append("has recovered: its last run succeeded")
    gaps = [(found, count) for found, count in facts.missed if found > (told.gap or told.missed)]
    if gaps and told.missed and at - told.missed < span:
        waits = True
    elif gaps:
        told = replace(told, missed=at, gap=max(found for found, _ in gaps))
        if "missed" in on:
            count = sum(count for _, count in gaps)
            lines.append(f"no process fired {plural(count, 'slot')} in time")
    if told.breaker and not facts.breaker:
        told = replace(told, breaker=False)
        if told.opened and {"breaker", "recovery"} <= set(on):
            lines.append("its circuit breaker has closed: runs start again")
    elif facts.breaker and not told.breaker and "breaker" in on:
        if told.opened and at - told.opened < span:
            waits = True
        else:
            told = replace(told, breaker=True, opened=at)
            lines.append("its circuit breaker is open: no run starts until a trial succeeds")
    return News(tuple(lines), told, waits)


def _failures(facts: Facts, more: int, told_at: int) -> str:
    since = f" since {_clock(from_us(told_at))}" if told_at else ""
    text, last = f"{plural(more, 'run')} failed{since}", facts.last
    if last is None or last.state is not State.FAILED:
        return text
    error = " ".join((last.error or "").split())[:LONGEST_ERROR]
    return f"{text}; the last was {last.id} at {_clock(last.finished_at)}: {error}"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
