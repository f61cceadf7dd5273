"""Counters of ended runs: in the live state, and closed periods in a part for each day.

A store that ends runs all the time has 11,520 minutes to count. They would make every snapshot
large, and few of them still change. So the periods of a day that is over are moved to a part, once.
What is counted later in such a period stands in the live state, and is added when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from mainspring.core.model import replace
from mainspring.core.statistics import HOUR, PERIODS_KEPT, WHOLE_STORE, Ending, period_start
from mainspring.stores import counters, evaluation
from mainspring.stores.codec import Record, from_us, to_us
from mainspring.stores.counters import TOTALS, Counted, Key
from mainspring.stores.objects.history import gone_of
from mainspring.stores.objects.part_cache import PartCache, PartsNotLoaded
from mainspring.stores.objects.state import LiveState
from mainspring.stores.protocol import Counts

DAY = timedelta(days=1)

CLOSED_AFTER = timedelta(hours=2)
"""A day is over so long after its end."""


def _key_text(key: Key) -> str:
    return json.dumps([key[0], to_us(key[1])])


def _read_key(text: str) -> Key | None:
    try:
        job_id, start = json.loads(text)
        return str(job_id), from_us(int(start))
    except (ValueError, TypeError, OverflowError):
        return None


def count_endings(state: LiveState, endings: Sequence[Ending], now: datetime) -> None:
    """Count ends that are stored in this order."""
    for key, more in counters.added_by(endings, now).items():
        name = _key_text(key)
        stored = state.get("counters", name)
        text = counters.encode(more) if stored is None else _added_text(key, stored, more)
        if text is not None:
            state.put("counters", name, {"text": text})


def _added_text(key: Key, record: Record, more: Counted) -> str | None:
    text = record.get("text")
    return counters.add_to(key, text, more) if isinstance(text, str) else None


def read_counts(
    state: LiveState,
    parts: PartCache,
    now: datetime,
    since: datetime | None,
    jobs: frozenset[str] | None,
) -> Counts:
    wanted = frozenset({WHOLE_STORE}) if jobs is None else jobs
    counted_by_key: dict[Key, Counted] = {}
    _add_wanted(counted_by_key, state.table("counters"), wanted, since)
    if since is not None:
        names = _day_parts(state, since)
        if missing := [name for name in names if not parts.has(name)]:
            raise PartsNotLoaded(missing)
        for name in names:
            shown = wanted - gone_of(state, name).keys()
            _add_wanted(counted_by_key, parts.get(name)["counters"], shown, since)
    read = counters.counts_of(counted_by_key)
    if jobs is not None:
        return read
    live = evaluation.count_runs(state.unfinished(), now)
    return replace(live, totals=read.totals, periods=read.periods)


def _add_wanted(
    counted_by_key: dict[Key, Counted],
    records: Mapping[str, Record],
    jobs: frozenset[str],
    since: datetime | None,
) -> None:
    for name, record in records.items():
        key = _read_key(name)
        if key is None or key[0] not in jobs:
            continue
        job_id, start = key
        if start != TOTALS and (since is None or start < counters.first_start(job_id, since)):
            continue
        text = record.get("text")
        counted = counters.decode(key, text) if isinstance(text, str) else None
        if counted is not None:
            counted_by_key[key] = counters.add(counted_by_key.get(key), counted)


def _day_parts(state: LiveState, since: datetime) -> list[str]:
    first = _day_of(period_start(since, HOUR))
    return [str(r["part"]) for day, r in state.table("periods").items() if day >= first]


def _day_of(moment: datetime) -> str:
    return period_start(moment, DAY).isoformat()


def remove_job(state: LiveState, job_id: str) -> None:
    """Delete the counts of a job. In the parts they no longer count."""
    for name in list(state.table("counters")):
        key = _read_key(name)
        if key is not None and key[0] == job_id:
            state.put("counters", name, None)
    for record in state.table("periods").values():
        part = str(record["part"])
        state.put("gone", part, {**gone_of(state, part), job_id: 1})


def prune(state: LiveState, now: datetime) -> list[str]:
    """Delete the totals of jobs that are gone, and periods that are over for long. Gives the parts
    that are no longer named."""
    oldest = now - PERIODS_KEPT
    for name in list(state.table("counters")):
        key = _read_key(name)
        if key is None:
            continue
        job_id, start = key
        is_gone = job_id != WHOLE_STORE and state.get("jobs", job_id) is None
        if is_gone if start == TOTALS else start < oldest:
            state.put("counters", name, None)
    dropped = []
    for day, record in list(state.table("periods").items()):
        if day < _day_of(oldest):
            dropped.append(str(record["part"]))
            state.put("periods", day, None)
            state.put("gone", dropped[-1], None)
    return dropped


# -- moving closed periods to parts ---------------------------------------------------------


def closed_days(state: LiveState, now: datetime) -> dict[str, dict[str, Record]]:
    """The counters of each day that is over and has no part yet."""
    by_day: dict[str, dict[str, Record]] = {}
    today = _day_of(now - CLOSED_AFTER)
    for name, record in state.table("counters").items():
        key = _read_key(name)
        if key is None or key[1] == TOTALS:
            continue
        day = _day_of(key[1])
        if day < today and state.get("periods", day) is None:
            by_day.setdefault(day, {})[name] = record
    return by_day


def adopt_day(state: LiveState, day: str, moved: Mapping[str, Record], part: str) -> bool:
    """Let a part take the place of the counters that it contains. False where any of them has
    changed meanwhile, or another client was faster."""
    if state.get("periods", day) is not None:
        return False
    if any(state.get("counters", name) != record for name, record in moved.items()):
        return False
    for name in moved:
        state.put("counters", name, None)
    state.put("periods", day, {"part": part})
    return True
