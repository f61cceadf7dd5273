"""Counters of ended runs: in the live state, and closed periods in a part for each day.

A store that ends runs all the time has 11,520 minutes to count. They would make every snapshot
large, and few of them still change. So the periods of a day that are over are moved to a part. What
is counted late in such a period stands in the live state again, and is added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from mainspring.core.clock import EPOCH
from mainspring.core.model import replace
from mainspring.core.statistics import PERIODS_KEPT, WHOLE_STORE, Ending
from mainspring.stores import counters, evaluation
from mainspring.stores.codec import Record, from_us, to_us
from mainspring.stores.counters import TOTALS, Counted, Key
from mainspring.stores.objects.history import gone_of
from mainspring.stores.objects.part_cache import PartCache, PartsNotLoaded
from mainspring.stores.objects.state import LiveState
from mainspring.stores.protocol import Counts

DAY = timedelta(days=1)

CLOSED_AFTER = timedelta(hours=2)
"""A period that began so long ago is moved to the part of its day."""


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
        text = counters.encode(more) if stored is None else _add_to_record(key, stored, more)
        if text is not None:
            state.put("counters", name, {"text": text})


def _add_to_record(key: Key, record: Record, more: Counted) -> str | None:
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
    return replace(read, runs=live.runs, due=live.due)


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
    first = _day_of(since)
    return [str(r["part"]) for day, r in state.table("periods").items() if day >= first]


def _day_of(moment: datetime) -> str:
    return (EPOCH + (moment - EPOCH) // DAY * DAY).date().isoformat()


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


def closed_periods(state: LiveState, now: datetime) -> dict[str, dict[str, Record]]:
    """The counters that can be moved, by day."""
    by_day: dict[str, dict[str, Record]] = {}
    for name, record in state.table("counters").items():
        key = _read_key(name)
        if key is not None and key[1] != TOTALS and key[1] < now - CLOSED_AFTER:
            by_day.setdefault(_day_of(key[1]), {})[name] = record
    return by_day


def merge_day(
    stored: Mapping[str, Record], gone: Iterable[str], more: Mapping[str, Record]
) -> dict[str, Any] | None:
    """The content of a day's part with more counters; None where one of them cannot be added."""
    left_out = set(gone)
    merged = {
        name: record
        for name, record in stored.items()
        if (key := _read_key(name)) is None or key[0] not in left_out
    }
    for name, record in more.items():
        if name not in merged:
            merged[name] = record
            continue
        key, text = _read_key(name), record.get("text")
        counted = counters.decode(key, text) if key and isinstance(text, str) else None
        added = _add_to_record(key, merged[name], counted) if key and counted else None
        if added is None:
            return None
        merged[name] = {"text": added}
    return {"counters": merged}


def replace_day(
    state: LiveState,
    day: str,
    base: Record | None,
    gone: Record,
    moved: Mapping[str, Record],
    part: str,
) -> bool:
    """Let a day's new part take the place of the old one and of the counters that it contains.
    False where any of them has changed meanwhile."""
    if state.get("periods", day) != base:
        return False
    if base is not None and gone_of(state, str(base["part"])) != gone:
        return False
    if any(state.get("counters", name) != record for name, record in moved.items()):
        return False
    for name in moved:
        state.put("counters", name, None)
    if base is not None:
        state.put("gone", str(base["part"]), None)
    state.put("periods", day, {"part": part})
    return True
