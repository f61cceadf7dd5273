"""The page at `/timeline`: what ran and what will run, on one axis with now in the middle.

It reads a bounded number of runs, however many there are: those of at most `JOBS_SHOWN` jobs, and
of each job at most `MOST_MARKS`. Of a job that runs more often it shows how many runs ended in each
hour, which the store counts, and how many slots each coming hour has, which is arithmetic.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import Query, Request, Response
from msgspec import Struct

from mainspring.core.model import Job, Run, State
from mainspring.core.statistics import HOUR, Period, period_start
from mainspring.dashboard import formats
from mainspring.dashboard.formats import TONES
from mainspring.dashboard.pages import page_router, render, service_of
from mainspring.scheduler.client import Client
from mainspring.service.access import access

router = page_router()

JOBS_SHOWN = 30
MOST_MARKS = 48
RUNS_READ = 200
"""The newest runs, which show which jobs are active."""

WINDOWS = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(hours=24)}
NARROWEST_MARK = 0.35
"""Per cent of the picture: shorter runs could not be seen or pointed at."""


class Mark(Struct, frozen=True):
    """A run, a slot, or the runs or slots of an hour. `left` and `width` are per cent of the
    picture; `share`, of a band, is how much of the row's height it fills."""

    kind: str
    left: float
    width: float
    tone: str
    title: str
    run_id: str | None = None
    share: float = 1.0


class Row(Struct, frozen=True):
    job_id: str
    job: Job | None
    marks: list[Mark]
    ended: int
    failed: int
    last: datetime | None
    coming: int
    coming_is_all: bool
    next: datetime | None


class Axis(Struct, frozen=True):
    now: datetime
    window: timedelta

    @property
    def start(self) -> datetime:
        return self.now - self.window

    @property
    def end(self) -> datetime:
        return self.now + self.window

    def at(self, moment: datetime) -> float:
        """Where a moment lies: 0 to 100, now is 50."""
        share = (moment - self.start) / (2 * self.window)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def spans(self, first: datetime, last: datetime) -> bool:
        return last >= self.start and first <= self.end


@router.get("/timeline")
@access("read")
async def timeline(
    request: Request, window: Annotated[Literal["1h", "6h", "24h"], Query()] = "24h"
) -> Response:
    client = service_of(request).client
    axis = Axis(await client.now(), WINDOWS[window])
    newest, running, failed, soonest, paused = await asyncio.gather(
        client.list_runs(brief=True, limit=RUNS_READ),
        client.list_runs(state=State.RUNNING, brief=True, limit=RUNS_READ),
        client.list_runs(state=State.FAILED, brief=True, limit=JOBS_SHOWN),
        client.list_jobs(enabled=True, order="next_run_at", limit=JOBS_SHOWN + 1, last_runs=False),
        client.paused_since(),
    )
    seen = [run for run in newest.items if axis.spans(*_time_range(run, axis.now))]
    active = Counter(run.job_id for run in [*running.items, *failed.items, *seen])
    planned = [job.id for job in soonest.items if job.next_run_at and job.next_run_at <= axis.end]
    chosen = _choose_jobs([name for name, _ in active.most_common()], planned)
    rows = await _rows(client, chosen, axis, is_paused=paused is not None)
    return render(
        request,
        "timeline.html",
        page="timeline",
        title="Timeline",
        window=window,
        windows=list(WINDOWS),
        rows=rows,
        ticks=_ticks(axis),
        is_full=not chosen >= {*active, *planned},
        most_rows=JOBS_SHOWN,
        most_marks=MOST_MARKS,
        has_bands=any(mark.kind == "band" for row in rows for mark in row.marks),
        paused=paused,
        start=axis.start,
        end=axis.end,
    )


def _choose_jobs(active: Sequence[str], soonest: Sequence[str]) -> set[str]:
    """The jobs that are shown: half of them the most active, half those with the next slots."""
    half = JOBS_SHOWN // 2
    names = dict.fromkeys([*active[:half], *soonest[:half], *active, *soonest])
    return set(list(names)[:JOBS_SHOWN])


async def _rows(client: Client, chosen: set[str], axis: Axis, *, is_paused: bool) -> list[Row]:
    if not chosen:
        return []
    names = sorted(chosen)
    first = period_start(axis.start, HOUR)
    jobs, counts, runs = await asyncio.gather(
        client.list_jobs(ids=names, limit=JOBS_SHOWN, last_runs=False),
        client.counts(since=first, jobs=names),
        client.newest_runs(names, limit=MOST_MARKS),
    )
    by_id = {job.id: job for job in jobs.items}
    rows = []
    for name in names:
        shown = [run for run in runs.get(name, ()) if axis.spans(*_time_range(run, axis.now))]
        is_frequent = len(shown) == MOST_MARKS
        periods = [period for period in counts.periods.get(name, ()) if period.start >= first]
        rows.append(
            _row(name, by_id.get(name), shown, periods if is_frequent else None, axis, is_paused)
        )
    far = axis.end + HOUR
    return sorted(rows, key=lambda row: (row.next or far, row.job_id))


def _row(
    name: str,
    job: Job | None,
    runs: Sequence[Run],
    periods: Sequence[Period] | None,
    axis: Axis,
    is_paused: bool,
) -> Row:
    """`periods`: the hours of a job that has run more often than single marks could show."""
    live = [run for run in runs if not run.finished]
    if periods is None:
        ended = [run for run in runs if run.finished]
        marks = [_run_mark(run, axis) for run in ended]
        total, failed = len(ended), sum(run.state is State.FAILED for run in ended)
    else:
        marks = _past_blocks(periods, axis)
        total = sum(sum(period.ended.values()) for period in periods)
        failed = sum(period.ended.get(State.FAILED, 0) for period in periods)
    marks += [_run_mark(run, axis) for run in live]
    slots, coming, is_all = _slots(job, axis) if job and not is_paused else ([], 0, True)
    ran = [run.started_at for run in runs if run.started_at is not None]
    return Row(
        name,
        job,
        [*marks, *slots],
        total,
        failed,
        max(ran, default=None),
        coming,
        is_all,
        None if job is None or is_paused else job.next_run_at,
    )


def _time_range(run: Run, now: datetime) -> tuple[datetime, datetime]:
    """When a run began and ended, or goes on, or will begin."""
    if run.finished:
        ended = run.finished_at or run.run_at
        return (run.started_at or ended), ended
    if run.state is State.RUNNING and run.started_at is not None:
        return run.started_at, max(now, run.started_at)
    return run.run_at, run.run_at


def _run_mark(run: Run, axis: Axis) -> Mark:
    first, last = _time_range(run, axis.now)
    left = axis.at(first)
    width = max(NARROWEST_MARK, round(axis.at(last) - left, 2))
    kind = "run" if run.attempt else "due"
    title = f"{run.job_id}: {run.state}, {formats.absolute(first)}"
    if (took := formats.attempt_seconds(run, axis.now)) is not None:
        title += f", {formats.span(took)}"
    if run.error or run.reason:
        title += f"\n{formats.first_line(run.error or run.reason)}"
    tone = TONES.get(run.state, "purple" if run.state is State.WAITING else "grey")
    return Mark(kind, min(left, 100 - NARROWEST_MARK), width, tone, title, run.id)


# -- bands: what is too much for single marks ----------------------------------------------------


def _past_blocks(periods: Sequence[Period], axis: Axis) -> list[Mark]:
    """A block for each hour, as high as its number of ended runs; the failed ones on top in red."""
    most = max((sum(period.ended.values()) for period in periods), default=0)
    blocks = []
    for period in periods:
        total, failed = sum(period.ended.values()), period.ended.get(State.FAILED, 0)
        title = f"{formats.absolute(period.start)}, one hour: {formats.plural(total, 'run')} ended"
        title += f", {failed:,} failed" if failed else ""
        until = min(period.start + HOUR, axis.now)
        blocks += _block(axis, period.start, until, "green", title, total, most)
        blocks += _block(axis, period.start, until, "red", title, failed, most)
    return blocks


def _block(
    axis: Axis, start: datetime, end: datetime, tone: str, title: str, count: int, most: int
) -> list[Mark]:
    """The block of so many runs or slots, of `most` in any block; none if there are none."""
    left = axis.at(start)
    width = round(axis.at(end) - left, 2)
    share = round(max(0.15, count / most), 2) if most else 0.0
    return [Mark("band", left, width, tone, title, share=share)] if count and width > 0 else []


def _slots(job: Job, axis: Axis) -> tuple[list[Mark], int, bool]:
    """The coming slots of a job: marks, how many there are, and whether all were counted."""
    if job.schedule is None or not job.enabled:
        return [], 0, True
    count = job.schedule.count(axis.now, axis.end)
    if count is not None and count > MOST_MARKS:
        return _coming_blocks(job, axis), count, True
    coming = [slot for slot in _upcoming(job, axis) if slot <= axis.end]
    marks = [
        Mark("slot", axis.at(slot), 0.0, "blue", f"{job.id}: {formats.absolute(slot)}")
        for slot in coming
    ]
    return marks, len(coming), len(coming) < MOST_MARKS


def _upcoming(job: Job, axis: Axis) -> Iterable[datetime]:
    assert job.schedule is not None
    if job.schedule.after_end:
        yield from job.upcoming(1, axis.now)
        return
    moment = axis.now
    for _ in range(MOST_MARKS):
        slot = job.schedule.next(moment)
        if slot is None or slot > axis.end:
            return
        yield slot
        moment = slot


def _coming_blocks(job: Job, axis: Axis) -> list[Mark]:
    """A block for each part of the window, as high as its number of slots."""
    assert job.schedule is not None
    step = axis.window / 24
    moments = [axis.now + number * step for number in range(24)]
    counts = [job.schedule.count(moment, moment + step) or 0 for moment in moments]
    most = max(counts)
    blocks = []
    for moment, count in zip(moments, counts, strict=True):
        title = f"{job.id}: {formats.plural(count, 'slot')} from {formats.absolute(moment)} on,"
        title += f" within {formats.span(step)}"
        blocks += _block(axis, moment, moment + step, "blue", title, count, most)
    return blocks


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Places and names of the lines: how far from now they are, in any zone."""
    quarters = range(-4, 5)
    minutes = [abs(number) * axis.window // timedelta(minutes=4) for number in quarters]
    names = [
        f"{count // 60} h" if count % 60 == 0 else formats.span(count * 60) for count in minutes
    ]
    return [
        (50 + 12.5 * number, "now" if not number else f"{'−' if number < 0 else '+'}{name}")
        for number, name in zip(quarters, names, strict=True)
    ]
