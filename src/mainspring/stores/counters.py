"""Counters of ended runs, for stores that cannot let their database add them up.

A store keeps one text for each key (`Key`): the totals of a job, or the counts of one of its
periods. To count, it reads the texts of the keys that a tally names, adds, and writes them again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from mainspring.core.clock import EPOCH
from mainspring.core.model import Run, State, replace
from mainspring.core.statistics import (
    HOUR,
    MINUTE,
    PERIODS_KEPT,
    WHOLE_STORE,
    Ending,
    Period,
    Totals,
    period_start,
    tally,
)
from mainspring.stores import evaluation
from mainspring.stores.codec import from_us, json_text, to_us
from mainspring.stores.protocol import Counts

TOTALS = EPOCH
"""Stands in a key where the start of a period does, for the totals of a job."""

Key = tuple[str, datetime]
"""A job (or `WHOLE_STORE`), and the start of a period (or `TOTALS`)."""

Counted = Totals | Period

_STATES = frozenset(State)

_read_totals = msgspec.json.Decoder(Totals).decode
_read_period = msgspec.json.Decoder(Period).decode


def encode(counted: Counted) -> str:
    return json_text(counted)


def decode(key: Key, text: str) -> Counted | None:
    """None where it cannot be read."""
    with suppress(msgspec.MsgspecError, ValueError, TypeError):
        return (_read_totals if key[1] == TOTALS else _read_period)(text)
    return None


def add_to(key: Key, text: str, more: Counted) -> str | None:
    """The stored text with more added. None where it cannot be read, so that nothing of it is
    overwritten."""
    stored = decode(key, text)
    return None if stored is None else encode(add(stored, more))


def known_states(ended: Mapping[str, int]) -> dict[State, int]:
    """The counts without those of states that only a later version knows."""
    return {State(name): count for name, count in ended.items() if name in _STATES}


def added_by(endings: Iterable[Ending], now: datetime) -> dict[Key, Counted]:
    """What these ends add to each key, if they are stored in this order."""
    counted = tally(endings, now)
    return {
        **{(job_id, TOTALS): totals for job_id, totals in counted.totals.items()},
        **counted.periods,
    }


def add(stored: Counted | None, more: Counted) -> Counted:
    if isinstance(stored, Totals) and isinstance(more, Totals):
        return stored.plus(more)
    if isinstance(stored, Period) and isinstance(more, Period):
        return stored.plus(more)
    return more


def first_start(job_id: str, since: datetime) -> datetime:
    """Where the period begins that this moment lies in."""
    return period_start(since, MINUTE if job_id == WHOLE_STORE else HOUR)


def counts_of(counters: Mapping[Key, Counted]) -> Counts:
    """What was read, the oldest period of each job first."""
    totals: dict[str, Totals] = {}
    periods: dict[str, list[Period]] = {}
    for (job_id, _), counted in sorted(counters.items(), key=lambda item: item[0]):
        if isinstance(counted, Totals):
            totals[job_id] = counted
        else:
            periods.setdefault(job_id, []).append(counted)
    return Counts(totals=totals, periods=periods)


ADDED_TOGETHER = 500
"""So many ends are added up at once, or fewer when somebody reads. To add up one alone costs ten
times as much."""


class Counters:
    """All counters of a store, in memory; `records` makes plain JSON of them."""

    def __init__(self, records: Iterable[Sequence[Any]] = ()) -> None:
        self._counted: dict[Key, Counted] = {}
        self._uncounted: list[Ending] = []
        self._counted_at = EPOCH
        for job_id, start, text in records:
            key = job_id, from_us(start)
            if (counted := decode(key, text)) is not None:
                self._counted[key] = counted

    def records(self) -> list[list[Any]]:
        self._add_up()
        return [
            [job, to_us(start), encode(counted)] for (job, start), counted in self._counted.items()
        ]

    def count(self, ending: Ending | None, now: datetime) -> None:
        """Count an end: that of a change that was applied, or of a run that was added."""
        if ending is None:
            return
        self._uncounted.append(ending)
        self._counted_at = now
        if len(self._uncounted) >= ADDED_TOGETHER:
            self._add_up()

    def _add_up(self) -> None:
        endings, self._uncounted = self._uncounted, []
        for key, more in added_by(endings, self._counted_at).items():
            self._counted[key] = add(self._counted.get(key), more)

    def counts(
        self,
        runs: Iterable[Run],
        now: datetime,
        since: datetime | None = None,
        jobs: frozenset[str] | None = None,
    ) -> Counts:
        """The answer of `Store.counts`, given all runs."""
        if jobs is not None:
            return self._read(since, jobs)
        ended = self._read(since, frozenset({WHOLE_STORE}))
        live = evaluation.count_runs(runs, now)
        return replace(live, totals=ended.totals, periods=ended.periods)

    def _read(self, since: datetime | None, jobs: frozenset[str]) -> Counts:
        self._add_up()
        return counts_of(
            {
                (job_id, start): counted
                for (job_id, start), counted in self._counted.items()
                if job_id in jobs
                and (start == TOTALS or (since is not None and start >= first_start(job_id, since)))
            }
        )

    def remove_job(self, job_id: str) -> None:
        self._add_up()
        for key in [key for key in self._counted if key[0] == job_id]:
            del self._counted[key]

    def prune(self, jobs: Container[str], now: datetime) -> None:
        """Delete the totals of jobs that are gone, and periods that are over for long."""
        self._add_up()
        for job_id, start in list(self._counted):
            is_gone = job_id != WHOLE_STORE and job_id not in jobs
            if is_gone if start == TOTALS else start < now - PERIODS_KEPT:
                del self._counted[job_id, start]
