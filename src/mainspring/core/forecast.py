"""Forecasts the load of schedules: how many runs start when, what collides, what clocks do. Pure.

Jobs whose schedules name the same slots are walked once. At most `MOST_SLOTS` slots are walked in
all, those of the rarest schedules first; the slots of the others are counted hour by hour, by
arithmetic, so that a job that runs every second costs no more than one that runs every hour.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise

from mainspring.core.clock import EPOCH, to_us
from mainspring.core.model import Job
from mainspring.core.plurals import list_some
from mainspring.core.policy import Overlap
from mainspring.core.schedules import Cron, Interval, Schedule, dst
from mainspring.core.schedules.base import in_utc
from mainspring.core.schedules.cron_syntax import MACROS
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidInput, refused

MOST_SLOTS = 500_000
"""Slots that are walked one by one: a few seconds of work."""

MOST_DAYS = 366
MOST_LISTED = 20
"""Collisions, clock changes and suggestions that are listed."""

LEAST_SEEN = 0.5
"""Of an hour that a forecast sees less of, the mean counts as if it had seen so much of it."""

_HOUR = timedelta(hours=1)
_TICK = timedelta(microseconds=1)
_FIXED_MINUTE = re.compile(r"\d{1,2}(?=( +\S+){4}$)")


@dataclass(frozen=True, slots=True)
class JobLoad:
    """How often a job runs. `shortest_gap` is the least time between two of its slots, in seconds;
    None where it has fewer than two."""

    job_id: str
    schedule: str
    runs: int
    shortest_gap: float | None


@dataclass(frozen=True, slots=True)
class Collision:
    """Jobs that start in the same second, by the time of day in the forecast's zone. `most` is how
    many at once, `days` on how many days at least two of them do; `jobs` names them."""

    time: str
    most: int
    days: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClockChange:
    """What a change of the clocks does to the slots of these jobs."""

    effect: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overrun:
    """A job that often takes longer than the time until its next slot. Both in seconds."""

    job_id: str
    p95_duration: float
    interval: float
    effect: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change of schedules, and what it would change: the most jobs that start at once."""

    advice: str
    jobs: tuple[str, ...]
    schedules: Mapping[str, str]
    """By job id: the schedule to write instead, where it can be said."""
    most_before: int
    most_after: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """`heat[weekday][hour]` is the mean number of runs that start in that hour, Monday first, in
    `timezone`. `notes` says what was counted otherwise, or left out."""

    start: datetime
    end: datetime
    timezone: str
    runs: int
    jobs: tuple[JobLoad, ...]
    paused: int
    unscheduled: int
    heat: tuple[tuple[float, ...], ...]
    collisions: tuple[Collision, ...]
    clock_changes: tuple[ClockChange, ...]
    suggestions: tuple[Suggestion, ...]
    overruns: tuple[Overrun, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Group:
    """Jobs whose schedules name the same slots."""

    schedule: Schedule
    jobs: list[Job] = field(default_factory=list)
    count: int | None = None
    slots: list[datetime] | None = None
    """None where they are counted by arithmetic."""
    shortest_gap: float | None = None


def forecast_load(
    jobs: Iterable[Job],
    start: datetime,
    days: int = 30,
    timezone: str = "UTC",
) -> Forecast:
    """The load of these jobs in the `days` from `start` on: it includes `start`, not the end.
    Thousands of jobs take seconds."""
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MOST_DAYS:
        raise refused("days", days, f"is 1 to {MOST_DAYS}")
    zone = zone_named(timezone)
    start = in_utc(start, "start")
    # Whole days of the zone's calendar, also where the clocks change.
    try:
        end = dst.instant_of(dst.wall_of(start, zone) + timedelta(days=days), zone)
    except OverflowError:
        why = (
            f"start {start:%Y-%m-%d} is too near to the end of the calendar, which is the year 9999"
        )
        raise InvalidInput(why, field="start", given=start) from None
    every = list(jobs)
    planned = [job for job in every if job.enabled and job.schedule is not None]
    groups = _grouped(planned)
    notes = [*_walk(groups, start, end), *_note_each_node(planned)]
    heat, total = _heat(groups, start, end, zone)
    collisions = _collisions(groups, zone)
    clock_changes = _clock_changes(groups, start, end)
    return Forecast(
        start=start,
        end=end,
        timezone=timezone,
        runs=total,
        jobs=_loads(groups),
        paused=sum(job.schedule is not None and not job.enabled for job in every),
        unscheduled=sum(job.schedule is None for job in every),
        heat=heat,
        collisions=collisions,
        clock_changes=clock_changes,
        suggestions=_suggestions(collisions, {job.id: job for job in planned}, clock_changes),
        notes=tuple(notes),
    )


def add_overruns(
    forecast: Forecast, jobs: Iterable[Job], durations: Mapping[str, float]
) -> Forecast:
    """The forecast with the jobs whose p95 duration, in seconds, exceeds their shortest gap."""
    policies = {job.id: job.policy for job in jobs}
    overruns = []
    for load in forecast.jobs:
        p95 = durations.get(load.job_id)
        if p95 is None or load.shortest_gap is None or p95 <= load.shortest_gap:
            continue
        overlap = policies[load.job_id].overlap
        overruns.append(Overrun(load.job_id, p95, load.shortest_gap, _EFFECTS[overlap]))
    overruns.sort(key=lambda overrun: overrun.interval / overrun.p95_duration)
    return replace(forecast, overruns=tuple(overruns))


def _note_each_node(jobs: Iterable[Job]) -> list[str]:
    names = sorted(job.id for job in jobs if job.policy.each_node)
    if not names:
        return []
    return [
        f"{list_some(names, 3)}: a slot runs on every node, and counts once here. It makes"
        " one run for each live worker"
    ]


_EFFECTS = {
    Overlap.SKIP: "slots are skipped while a run goes on",
    Overlap.QUEUE: "runs pile up, each later than the one before",
    Overlap.ALLOW: "several runs go on at once",
    Overlap.REPLACE: "runs are cancelled by the next slot",
}


# Slots


def _grouped(jobs: Sequence[Job]) -> list[_Group]:
    groups: dict[Hashable, _Group] = {}
    for job in jobs:
        assert job.schedule is not None
        key = _same_slots(job.schedule)
        groups.setdefault(key, _Group(job.schedule)).jobs.append(job)
    return list(groups.values())


def _same_slots(schedule: Schedule) -> Hashable:
    """Equal for schedules that name the same slots."""
    if isinstance(schedule, Cron):
        return (schedule.fields, schedule.timezone, schedule.start, schedule.end)
    return replace(schedule, key="", jitter=None)


def _walk(groups: list[_Group], start: datetime, end: datetime) -> list[str]:
    """Find the slots of the rarest schedules; the others keep a count alone. Returns notes."""
    left = MOST_SLOTS
    counted: list[_Group] = []
    notes: list[str] = []
    just_before, last = start - _TICK, end - _TICK
    for group in groups:
        group.count = group.schedule.count(just_before, last)
    if delayed := sum(len(group.jobs) for group in groups if group.schedule.after_end):
        notes.append(
            f"{delayed} of the jobs count from the end of the run before: they are shown as if"
            " their runs took no time"
        )
    for group in sorted(groups, key=lambda group: group.count or 0):
        if group.count is not None and group.count > left:
            group.shortest_gap = _gap_of(group.schedule, start)
            counted.append(group)
            continue
        slots = _slots(group.schedule, just_before, end, left)
        if len(slots) == left:
            notes.append(
                f"of {group.jobs[0].id!r} only its first {left:,} slots were found: its schedule"
                " cannot be counted by arithmetic"
            )
        group.count, group.slots = len(slots), slots
        group.shortest_gap = _shortest_gap(slots)
        left -= len(slots)
    if counted:
        jobs = sum(len(group.jobs) for group in counted)
        notes.append(
            f"{jobs} of the jobs run so often that their slots were counted by arithmetic: they"
            " are in the heat map, not in the collisions"
        )
    return notes


def _slots(schedule: Schedule, after: datetime, end: datetime, most: int) -> list[datetime]:
    slots: list[datetime] = []
    moment = after
    while len(slots) < most and (slot := schedule.next(moment)) is not None and slot < end:
        slots.append(slot)
        moment = slot
    return slots


def _shortest_gap(slots: Sequence[datetime]) -> float | None:
    gaps = ((later - slot).total_seconds() for slot, later in pairwise(slots))
    return min(gaps, default=None)


def _gap_of(schedule: Schedule, start: datetime) -> float | None:
    if isinstance(schedule, Interval):
        return schedule.interval.total_seconds()
    return _shortest_gap(schedule.upcoming(1000, start))


def _loads(groups: list[_Group]) -> tuple[JobLoad, ...]:
    loads = [
        JobLoad(job.id, group.schedule.describe(), group.count or 0, group.shortest_gap)
        for group in groups
        for job in group.jobs
    ]
    return tuple(sorted(loads, key=lambda load: (-load.runs, load.job_id)))


# Load


@dataclass(slots=True)
class _Seen:
    """What a forecast sees of one hour of the week: so many runs in so many hours."""

    runs: int = 0
    hours: float = 0.0

    def mean(self) -> float:
        return self.runs / max(self.hours, LEAST_SEEN)


def _heat(
    groups: list[_Group], start: datetime, end: datetime, zone: tzinfo
) -> tuple[tuple[tuple[float, ...], ...], int]:
    hours = _hours(start, end, zone)
    by_hour = [0] * len(hours)
    begin = hours[0][0]
    bounds = [max(start, first) - _TICK for first, _ in hours] + [end - _TICK]
    bounds_us = [to_us(bound) for bound in bounds]
    for group in groups:
        weight = len(group.jobs)
        if group.slots is not None:
            for slot in group.slots:
                by_hour[(slot - begin) // _HOUR] += weight
            continue
        counts = _hourly_counts(group.schedule, bounds, bounds_us)
        by_hour = [so_far + weight * more for so_far, more in zip(by_hour, counts, strict=True)]
    # The first and the last hour are seen in part, unless the forecast starts on the hour. They
    # count only for an hour of the week that is never seen whole: part of an hour with a run in it
    # would make a daily job "1.1 runs".
    whole = [[_Seen() for _ in range(24)] for _ in range(7)]
    part = [[_Seen() for _ in range(24)] for _ in range(7)]
    for runs, (first, last) in zip(by_hour, hours, strict=True):
        local = first.astimezone(zone)
        span = (min(last, end) - max(first, start)) / _HOUR
        seen = (whole if span == 1 else part)[local.weekday()][local.hour]
        seen.runs += runs
        seen.hours += span
    means = tuple(
        tuple(
            round(full.mean() if full.hours else rest.mean(), 2)
            for full, rest in zip(*row, strict=True)
        )
        for row in zip(whole, part, strict=True)
    )
    return means, sum(by_hour)


def _hours(start: datetime, end: datetime, zone: tzinfo) -> list[tuple[datetime, datetime]]:
    """The hours of the zone's clock that the time from start to end touches."""
    local = start.astimezone(zone)
    begin = start - timedelta(
        minutes=local.minute, seconds=local.second, microseconds=local.microsecond
    )
    count = -((begin - end) // _HOUR)
    return [(begin + number * _HOUR, begin + (number + 1) * _HOUR) for number in range(count)]


def _hourly_counts(
    schedule: Schedule, bounds: Sequence[datetime], bounds_us: Sequence[int]
) -> list[int]:
    """How many slots lie between each bound and the next, by arithmetic."""
    base = schedule.start or schedule.anchor if isinstance(schedule, Interval) else None
    if isinstance(schedule, Interval) and base and base < bounds[0] and schedule.end is None:
        # In whole numbers: 10,000 intervals take a second, and 20 s by a count for each hour.
        base_us, interval_us = to_us(base), schedule.interval // _TICK
        passed = [(bound - base_us) // interval_us for bound in bounds_us]
        return [later - before for before, later in pairwise(passed)]
    return [schedule.count(before, last) or 0 for before, last in pairwise(bounds)]


# Collisions


def _collisions(groups: list[_Group], zone: tzinfo) -> tuple[Collision, ...]:
    """By the time of day: the jobs that start in the same second. Jobs with jitter spread."""
    plain = [
        (group, [job.id for job in group.jobs if job.schedule and not job.schedule.jitter])
        for group in groups
        if group.slots is not None
    ]
    at: defaultdict[datetime, list[int]] = defaultdict(list)
    for number, (group, ids) in enumerate(plain):
        if ids:
            for slot in group.slots or ():
                at[slot.replace(microsecond=0)].append(number)
    sizes = [len(ids) for _, ids in plain]
    most: Counter[str] = Counter()
    days: defaultdict[str, set[object]] = defaultdict(set)
    largest: dict[str, list[int]] = {}
    for second, numbers in at.items():
        size = sum(sizes[number] for number in numbers)
        if size < 2:
            continue
        local = second.astimezone(zone)
        time = f"{local:%H:%M:%S}"
        days[time].add(local.date())
        if size > most[time]:
            most[time], largest[time] = size, numbers
    return tuple(
        Collision(
            time,
            size,
            len(days[time]),
            tuple(sorted(job for number in largest[time] for job in plain[number][1])),
        )
        for time, size in sorted(most.items(), key=lambda item: (-item[1], item[0]))[:MOST_LISTED]
    )


def _clock_changes(groups: list[_Group], start: datetime, end: datetime) -> tuple[ClockChange, ...]:
    changes: defaultdict[str, list[str]] = defaultdict(list)
    for group in groups:
        for effect in group.schedule.warnings(start, end):
            changes[effect] += [job.id for job in group.jobs]
    return tuple(ClockChange(effect, tuple(sorted(changes[effect]))) for effect in sorted(changes))


# Suggestions


def _suggestions(
    collisions: Sequence[Collision],
    jobs: Mapping[str, Job],
    clock_changes: Sequence[ClockChange],
) -> tuple[Suggestion, ...]:
    """How to spread the jobs of the largest collisions: each job once. A collision of a single day
    that a change of the clocks makes needs none."""
    moved = {job_id for change in clock_changes for job_id in change.jobs}
    suggestions: list[Suggestion] = []
    advised: set[str] = set()
    # First those that happen most: a change of the clocks makes a large one on a single day.
    for collision in sorted(collisions, key=lambda collision: -collision.most * collision.days):
        if collision.days == 1 and moved.intersection(collision.jobs):
            continue
        mine = [jobs[job_id] for job_id in collision.jobs if job_id not in advised]
        hashed = _hashed(mine)
        others = len(collision.jobs) - len(hashed)
        if len(hashed) >= 2:
            advised.update(hashed)
            suggestions.append(
                Suggestion(
                    f"{len(hashed)} jobs start at {collision.time}: write H in place of the minute,"
                    " which spreads them over the hour",
                    tuple(sorted(hashed)),
                    {job_id: schedule.expression for job_id, schedule in hashed.items()},
                    collision.most,
                    max(others, _most_at_once(hashed.values())),
                )
            )
            continue
        spread = [job for job in mine if _may_jitter(job.schedule)]
        if len(spread) >= 2:
            advised.update(job.id for job in spread)
            kept = len(collision.jobs) - len(spread)
            suggestions.append(
                Suggestion(
                    f"{len(spread)} jobs start at {collision.time}: give them jitter, such as"
                    ' jitter="1m", or another start',
                    tuple(sorted(job.id for job in spread)),
                    {},
                    collision.most,
                    max(kept, 1),
                )
            )
    return tuple(suggestions[:MOST_LISTED])


def _hashed(jobs: Iterable[Job]) -> dict[str, Cron]:
    """By job id: the schedule with `H` in place of its one fixed minute, for those that can have
    it."""
    schedules = {job.id: _with_hash(job) for job in jobs}
    return {job_id: schedule for job_id, schedule in schedules.items() if schedule is not None}


def _with_hash(job: Job) -> Cron | None:
    """The job's schedule with `H` in place of its one fixed minute; None for schedules of other
    forms, and where no such time would lie between its start and its end."""
    schedule = job.schedule
    if not isinstance(schedule, Cron):
        return None
    expression = MACROS.get(schedule.expression.strip().upper(), schedule.expression.strip())
    if not _FIXED_MINUTE.match(expression):
        return None
    expression = _FIXED_MINUTE.sub("H", expression, count=1)
    # Made without its bounds: a schedule that never fires within them is an error.
    changed = replace(schedule, expression=expression, key=job.id, start=None, end=None)
    if schedule.end is not None:
        slot = changed.next((schedule.start or job.created_at) - _TICK)
        if slot is None or slot > schedule.end:
            return None
    return changed


def _most_at_once(schedules: Iterable[Cron]) -> int:
    """How many of the schedules share a minute."""
    slots = (schedule.next(EPOCH) for schedule in schedules)
    minutes = Counter(slot.minute for slot in slots if slot is not None)
    return max(minutes.values(), default=0)


def _may_jitter(schedule: Schedule | None) -> bool:
    return schedule is not None and not schedule.jitter and schedule.kind != "once"
