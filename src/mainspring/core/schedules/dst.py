"""Converts wall times to instants and back, with one rule for daylight saving changes.

A schedule names wall times in a zone, and runs start at instants. Where the clocks change:

- a wall time that the clocks skip (a gap) happens at the first instant after the gap;
- a wall time that they repeat (an overlap) happens on its first pass; schedules that follow the
  clock (`*/30 * * * *`, hourly rules) happen on both.

`next_instant` and `previous_instant` walk a sequence of naive wall times under that policy. The
sequence is given as a function: the nearest wall time strictly later (or earlier) than another.
Instants are in UTC throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

TICK = timedelta(microseconds=1)
_DAY = timedelta(days=1)
TEN_YEARS = timedelta(days=3653)
_LAST_PLANNED = 9980  # later years have no room left for a look ahead
_BLOCK = 5  # 2 ** 5 days
# Where an instant has no wall time left, the calendar counts as ending a day early.
_EARLIEST, _LATEST = datetime.min + _DAY, datetime.max - _DAY

Counts = Callable[[datetime, datetime], int]
Step = Callable[[datetime], datetime | None]


class Jump(NamedTuple):
    """One change of a zone's clocks: at `instant` they go from wall time `before` to `after`.

    A gap when `after` is the later of the two, an overlap when it is the earlier.
    """

    instant: datetime
    before: datetime
    after: datetime


def next_instant(after: datetime, zone: tzinfo, later: Step, *, repeats: bool) -> datetime | None:
    """The first instant past `after` that the wall times of `later` name in `zone`.

    `repeats`: the schedule follows the clock, so a repeated wall time counts on both passes.
    """
    if zone is UTC:
        wall = later(wall_of(after, zone))
        return None if wall is None else wall.replace(tzinfo=UTC)
    plain, known = _far_from_jumps(after, zone, later)
    if known:
        return plain
    local = wall_of(after, zone)
    wall = later(local)
    overlap = _overlap_at(local, zone)
    if overlap is not None:
        inside = wall is not None and wall < overlap.before
        if local.fold:
            if inside and repeats:
                return _second_pass(wall, overlap)
            if inside:
                wall = later(overlap.before - TICK)
        elif repeats and not inside:
            again = later(overlap.after - TICK)
            if again is not None and again < overlap.before:
                return _second_pass(again, overlap)
    while wall is not None:
        try:
            instant = instant_of(wall, zone)
        except OverflowError:
            return None
        if instant > after:
            return instant
        wall = later(wall)  # two jumps close together: never go back in time
    return None


def previous_instant(
    before: datetime, zone: tzinfo, earlier: Step, *, repeats: bool
) -> datetime | None:
    """The last instant ahead of `before`: the mirror of `next_instant`."""
    if zone is UTC:
        wall = earlier(wall_of(before, zone))
        return None if wall is None else wall.replace(tzinfo=UTC)
    plain, known = _far_from_jumps(before, zone, earlier)
    if known:
        return plain
    local = wall_of(before, zone)
    wall = earlier(local)
    overlap = _overlap_at(local, zone)
    if overlap is not None and local.fold:
        if repeats and wall is not None and wall >= overlap.after:
            return _second_pass(wall, overlap)
        wall = earlier(overlap.before)
    while wall is not None:
        # What is left of the overlap that `before` lies in is its first pass.
        passed = overlap is not None and wall >= overlap.after
        try:
            instant = _resolve(wall, zone, last=repeats and not passed)
        except OverflowError:
            return None
        if instant < before:
            return instant
        gap = _gap_at(wall, zone)  # all of a gap happens at its end: leave it in one step
        wall = earlier(wall if gap is None else gap.before)
    return None


def count_instants(
    after: datetime, until: datetime, zone: tzinfo, wall_times: Counts, *, repeats: bool
) -> int:
    """How many instants in `(after, until]` the wall times of a sequence name in `zone`.

    `wall_times(a, b)` counts the wall times in `(a, b]`. The span is at most ten years long.
    """
    here = wall_of(after, zone)
    if here.fold and not repeats and (overlap := _overlap_at(here, zone)) is not None:
        here = max(here.replace(fold=0), overlap.before - TICK)
    here, total = here.replace(fold=0), 0
    for jump in jumps(after, until, zone):
        total += wall_times(here, jump.before - TICK)
        if jump.before < jump.after:
            here = jump.after - TICK
            # All of a gap happens at its end, together with what happens then anyway.
            if wall_times(jump.before - TICK, here) and not wall_times(here, jump.after):
                total += 1
        else:
            here = (jump.after if repeats else jump.before) - TICK
    return total + wall_times(here, wall_of(until, zone).replace(fold=0))


def instant_of(wall: datetime, zone: tzinfo) -> datetime:
    """The instant (in UTC) of a naive wall time: the end of a gap, the first pass of an overlap.

    Raises `OverflowError` at the ends of the calendar.
    """
    return _resolve(wall, zone, last=False)


def wall_of(instant: datetime, zone: tzinfo) -> datetime:
    """The naive wall time of an instant; its `fold` tells the passes of an overlap apart."""
    if zone is UTC:
        return instant.replace(tzinfo=None)
    try:
        return instant.astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        return _EARLIEST if instant.year < 5000 else _LATEST


def jumps(after: datetime, until: datetime, zone: tzinfo) -> Iterator[Jump]:
    """The changes of the zone's clocks in `(after, until]`, in order, for at most ten years."""
    if zone is UTC or after.year > _LAST_PLANNED:
        return
    here, until = after, min(until, after + TEN_YEARS)
    while here < until:
        block = here.toordinal() >> _BLOCK
        if _steady_offset(zone, block) is not None:
            next_block = datetime.fromordinal(block + 1 << _BLOCK).replace(tzinfo=UTC)
            here = min(until, next_block)
            continue
        there = min(until, here + _DAY)
        jump = _jump_between(here, there, zone)
        if jump is not None:
            yield jump
        here = there


def _far_from_jumps(moment: datetime, zone: tzinfo, step: Step) -> tuple[datetime | None, bool]:
    """The answer, and whether it is known: it is where no jump is near question or answer.

    The usual case, at half the cost of asking the zone about each wall time (`bench/cron.py`).
    """
    here = _steady_offset(zone, moment.toordinal() >> _BLOCK)
    if here is None:
        return None, False
    wall = step(moment.replace(tzinfo=None) + here)
    if wall is None:
        return None, True
    there = _steady_offset(zone, wall.toordinal() >> _BLOCK)
    if there is None:
        return None, False
    return (wall - there).replace(tzinfo=UTC), True


@lru_cache(maxsize=8192)
def _steady_offset(zone: tzinfo, block: int) -> timedelta | None:
    """The zone's one offset in a block of 32 days and two days on either side, if it has one."""
    first = (block << _BLOCK) - 2
    try:
        days = [datetime.fromordinal(first + n) for n in range((1 << _BLOCK) + 5)]
        offsets = {_offset(day.replace(tzinfo=UTC).astimezone(zone)) for day in days}
    except (ValueError, OverflowError):
        return None  # the ends of the calendar
    return offsets.pop() if len(offsets) == 1 else None


def _resolve(wall: datetime, zone: tzinfo, *, last: bool) -> datetime:
    first, second = _offsets(wall, zone)
    if first == second:
        return (wall - first).replace(tzinfo=UTC, fold=0)
    if first < second:
        gap = _gap_at(wall, zone)
        assert gap is not None
        return gap.instant
    return (wall - (second if last else first)).replace(tzinfo=UTC, fold=0)


def _second_pass(wall: datetime | None, overlap: Jump) -> datetime:
    assert wall is not None
    return overlap.instant + (wall - overlap.after)


def _overlap_at(wall: datetime, zone: tzinfo) -> Jump | None:
    """The overlap that `wall` lies in, if any."""
    first, second = _offsets(wall, zone)
    return _jump_near(wall, first, second, zone) if first > second else None


def _gap_at(wall: datetime, zone: tzinfo) -> Jump | None:
    """The gap that `wall` lies in, if any."""
    first, second = _offsets(wall, zone)
    return _jump_near(wall, second, first, zone) if first < second else None


def _offsets(wall: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    """The zone's offsets before and after a jump at `wall`; two equal ones on ordinary days."""
    local = wall.replace(tzinfo=zone, fold=0)
    return _offset(local), _offset(local.replace(fold=1))


def _jump_near(wall: datetime, larger: timedelta, smaller: timedelta, zone: tzinfo) -> Jump | None:
    """The jump that makes `wall` skipped or repeated: it lies between its two readings."""
    aware = wall.replace(tzinfo=UTC, fold=0)
    return _jump_between(aware - larger - TICK, aware - smaller, zone)


def _jump_between(low: datetime, high: datetime, zone: tzinfo) -> Jump | None:
    """The jump in `(low, high]`, found by halving; None when the offsets at both ends agree."""
    old, new = _offset(low.astimezone(zone)), _offset(high.astimezone(zone))
    if old == new:
        return None
    while high - low > TICK:
        middle = low + (high - low) // 2
        if _offset(middle.astimezone(zone)) == old:
            low = middle
        else:
            high = middle
    wall = high.replace(tzinfo=None)
    return Jump(high, wall + old, wall + _offset(high.astimezone(zone)))


def _offset(local: datetime) -> timedelta:
    offset = local.utcoffset()
    assert offset is not None, "an aware datetime has an offset"
    return offset
