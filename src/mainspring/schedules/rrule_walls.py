"""From a recurrence rule to its wall times, without counting from the beginning.

A rule is a set of times on a set of days (bit masks, as for cron), thinned out by its interval:
only each nth year, month, week, day, hour, minute or second ("period") from DTSTART counts. A
search looks for the next time in the masks, and where that lies in a period that does not count
it goes on from the next one that does. So a rule of seconds from 1990 answers at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache

from mainspring.errors import InvalidSchedule
from mainspring.schedules.rrule_days import matching_days, month_lengths
from mainspring.schedules.rrule_syntax import Freq, Rule, parse_rule, read_stamp
from mainspring.schedules.walls import Days, Walls, bits, mask_of

__all__ = ["MOST_COUNTED", "MOST_STEPS", "RuleWalls", "rule_walls"]

MOST_STEPS = 1_000  # jumps over periods for one answer; a rule that needs more counts as over
MOST_COUNTED = 10_000
_UNITS = {
    Freq.WEEKLY: timedelta(weeks=1),
    Freq.DAILY: timedelta(days=1),
    Freq.HOURLY: timedelta(hours=1),
    Freq.MINUTELY: timedelta(minutes=1),
    Freq.SECONDLY: timedelta(seconds=1),
}
_SECOND = timedelta(seconds=1)
_CYCLE = 400  # years after which the calendar repeats


@lru_cache(maxsize=1024)
def rule_walls(
    text: str,
    dtstart: datetime,
    timezone: str,
    exdates: tuple[datetime, ...],
    rdates: tuple[datetime, ...],
) -> RuleWalls:
    rule = parse_rule(text)
    until = read_stamp(rule.until, timezone, "UNTIL", whole_day=True) if rule.until else None
    extra = sorted(set(rdates) - set(exdates))
    return RuleWalls(rule, dtstart, until, frozenset(exdates), extra)


class RuleWalls:
    """The wall times of a rule from DTSTART on, nearest first in either direction; and `extra`
    ones (RDATE), which no rule names."""

    def __init__(
        self,
        rule: Rule,
        dtstart: datetime,
        until: datetime | None,
        exdates: frozenset[datetime],
        extra: Sequence[datetime],
    ) -> None:
        self.rule = rule
        self._dtstart = dtstart
        self._exdates = exdates
        self._extra = extra
        self._walls = _RuleMasks(rule, dtstart)
        self._periods = _Periods(rule, dtstart)
        self._last = until
        self._counted = rule.count is None
        if (rule.count or 0) > MOST_COUNTED and not self._can_leap:
            raise InvalidSchedule(
                f"COUNT {rule.count} is too large for a rule with INTERVAL and BY… parts or with"
                f" BYSETPOS: at most {MOST_COUNTED}; use UNTIL",
                field="COUNT",
            )
        self._steps = MOST_STEPS // 2 if rule.positions else MOST_STEPS  # those cost double
        if rule.positions and min(map(abs, rule.positions)) > self._walls.most(rule.freq):
            self._steps = 0  # no period has so many times

    def later(self, wall: datetime) -> datetime | None:
        if wall >= self._dtstart:  # before it, the answer is the first: never past COUNT
            self._count()
        found = self._later(wall)
        while found is not None and found in self._exdates:
            found = self._later(found)
        at = bisect_right(self._extra, wall)
        if at < len(self._extra) and (found is None or self._extra[at] < found):
            return self._extra[at]
        return found

    def earlier(self, wall: datetime) -> datetime | None:
        self._count()
        found = self._earlier(wall)
        while found is not None and found in self._exdates:
            found = self._earlier(found)
        at = bisect_left(self._extra, wall)
        if at > 0 and (found is None or self._extra[at - 1] > found):
            return self._extra[at - 1]
        return found

    @property
    def _can_leap(self) -> bool:
        """Whether the last of many times is found without going through them one by one."""
        return not self.rule.positions and (self.rule.interval == 1 or self._plain)

    @property
    def _plain(self) -> bool:
        """Nothing but a frequency of fixed length: DTSTART, and then every so often."""
        rule = self.rule
        return rule.freq in _UNITS and rule == Rule(
            freq=rule.freq,
            interval=rule.interval,
            count=rule.count,
            until=rule.until,
            week_start=rule.week_start,
        )

    def _count(self) -> None:
        """Turn COUNT into the last wall time, the first time it is needed."""
        if self._counted:
            return
        self._last = self._leapt() if self._can_leap else self._stepped()
        self._counted = True  # only now: another thread may look

    def _leapt(self) -> datetime | None:
        """The COUNTth time by arithmetic; None if that is past the year 9999."""
        count = self.rule.count or 1
        if not self._plain:
            return self._walls.nth(self._dtstart, count)
        try:
            return self._dtstart + _UNITS[self.rule.freq] * self.rule.interval * (count - 1)
        except OverflowError:
            return None

    def _stepped(self) -> datetime:
        wall = self._dtstart - timedelta.resolution
        for _ in range(self.rule.count or 0):
            found = self._later(wall)
            if found is None:
                break
            wall = found
        return wall

    def _later(self, wall: datetime) -> datetime | None:
        wall = max(wall, self._dtstart - timedelta.resolution)
        for _ in range(self._steps):
            found = self._walls.later(wall)
            if found is None or (self._last is not None and found > self._last):
                return None
            period = self._periods.of(found)
            ahead = -period % self.rule.interval
            if ahead == 0:
                chosen = self._chosen(found, period, wall)
                if chosen is not None:
                    in_time = self._last is None or chosen <= self._last
                    return chosen if in_time else None
                ahead = self.rule.interval
            start = self._periods.start(period + ahead)
            if start is None:
                return None
            wall = start - timedelta.resolution
        return None

    def _chosen(self, found: datetime, period: int, after: datetime) -> datetime | None:
        """`found` itself; with BYSETPOS the first chosen time of its period past `after`."""
        if not self.rule.positions:
            return found
        return min((w for w in self._at_positions(period) if w > after), default=None)

    def _earlier(self, wall: datetime) -> datetime | None:
        if self._last is not None:
            wall = min(wall, self._last + _SECOND)
        for _ in range(self._steps):
            found = self._walls.earlier(wall)
            if found is None or found < self._dtstart:
                return None
            period = self._periods.of(found)
            behind = period % self.rule.interval
            if behind == 0:
                if not self.rule.positions:
                    return found
                chosen = max((w for w in self._at_positions(period) if w < wall), default=None)
                if chosen is not None:
                    return chosen if chosen >= self._dtstart else None
                behind = self.rule.interval
            end = self._periods.start(period - behind + 1)
            if end is None:
                return None
            wall = end
        return None

    def _at_positions(self, period: int) -> list[datetime]:
        """The times of a period that BYSETPOS chooses, out of days × hours × minutes × seconds."""
        start, end = self._periods.start(period), self._periods.start(period + 1)
        if start is None or end is None:
            return []
        months = self._walls.months_between(start, end)
        hours, minutes, seconds = self._walls.times_between(start, end)
        times = len(hours) * len(minutes) * len(seconds)
        size = times * sum(days.bit_count() for _, _, days in months)
        chosen = []
        for position in self.rule.positions:
            at = position - 1 if position > 0 else size + position
            if 0 <= at < size:
                rest, second = divmod(at % times, len(seconds))
                hour, minute = divmod(rest, len(minutes))
                day = _nth_day(months, at // times)
                chosen.append(datetime(*day, hours[hour], minutes[minute], seconds[second]))
        return chosen


class _Periods:
    """The years, months, weeks … of a rule, numbered from the one that DTSTART lies in."""

    def __init__(self, rule: Rule, dtstart: datetime) -> None:
        self._freq = rule.freq
        self._base = dtstart.replace(second=0) if rule.freq < Freq.SECONDLY else dtstart
        if rule.freq < Freq.MINUTELY:
            self._base = self._base.replace(minute=0)
        if rule.freq < Freq.HOURLY:
            self._base = self._base.replace(hour=0)
        if rule.freq is Freq.WEEKLY:
            self._base -= timedelta(days=(dtstart.weekday() - rule.week_start) % 7)

    def of(self, wall: datetime) -> int:
        if self._freq is Freq.YEARLY:
            return wall.year - self._base.year
        if self._freq is Freq.MONTHLY:
            return (wall.year - self._base.year) * 12 + wall.month - self._base.month
        return (wall - self._base) // _UNITS[self._freq]

    def start(self, number: int) -> datetime | None:
        """The first moment of a period; None outside the calendar."""
        try:
            if self._freq is Freq.YEARLY:
                return datetime(self._base.year + number, 1, 1)
            if self._freq is Freq.MONTHLY:
                years, month = divmod(self._base.month - 1 + number, 12)
                return datetime(self._base.year + years, month + 1, 1)
            return self._base + _UNITS[self._freq] * number
        except (ValueError, OverflowError):
            return None


class _RuleMasks(Walls):
    """A rule's times of day and days, as if its interval were one.

    Parts that are absent come from DTSTART, as RFC 5545 says.
    """

    def __init__(self, rule: Rule, dtstart: datetime) -> None:
        freq = rule.freq
        super().__init__(
            mask_of(rule.hours or _default(freq >= Freq.HOURLY, 24, dtstart.hour)),
            mask_of(rule.minutes or _default(freq >= Freq.MINUTELY, 60, dtstart.minute)),
            mask_of(rule.seconds or _default(freq >= Freq.SECONDLY, 60, dtstart.second)),
        )
        self._rule = rule
        self._months, self._month_days = rule.months, rule.month_days
        self._weekdays = rule.weekdays
        if not (rule.weeks or rule.year_days or rule.month_days or rule.weekdays):
            if freq is Freq.YEARLY:
                self._months = rule.months or (dtstart.month,)
            if freq in (Freq.YEARLY, Freq.MONTHLY):
                self._month_days = (dtstart.day,)
            if freq is Freq.WEEKLY:
                self._weekdays = ((0, dtstart.weekday()),)
        self._listed = bits(self.hours), bits(self.minutes), bits(self.seconds)
        self._years: dict[int, Days] = {}
        self._calendars: dict[tuple[int, tuple[bool, bool, bool]], Days] = {}

    def days_of(self, year: int) -> Days:
        days = self._years.get(year % _CYCLE)
        if days is None:
            days = self._years[year % _CYCLE] = self._like(year)
        return days

    def _like(self, year: int) -> Days:
        """The days of a year, worked out once for all years of the same calendar."""
        # Weeks that reach over New Year depend on the years on either side, too.
        leap = isleap(year - 1), isleap(year), isleap(year + 1)
        calendar = date(year, 1, 1).weekday(), leap
        days = self._calendars.get(calendar)
        if days is None:
            days = self._calendars[calendar] = self._matching(year)
        return days

    def months_between(self, start: datetime, end: datetime) -> list[tuple[int, int, int]]:
        """Year, month and mask of days for each month that a period `[start, end)` touches."""
        last = end - _SECOND
        found = []
        for year in range(start.year, last.year + 1):
            masks = self.days_of(year)
            first_month = start.month if year == start.year else 1
            last_month = last.month if year == last.year else 12
            for month in range(first_month, last_month + 1):
                days = masks[month]
                if days:
                    found.append((year, month, days))
        if found and found[0][:2] == (start.year, start.month):
            found[0] = (start.year, start.month, found[0][2] & -1 << start.day)
        if found and found[-1][:2] == (last.year, last.month):
            found[-1] = (last.year, last.month, found[-1][2] & (2 << last.day) - 1)
        return found

    def times_between(self, start: datetime, end: datetime) -> tuple[list[int], ...]:
        """The hours, minutes and seconds that a period holds: one of each where it is so short."""
        span = end - start
        hours, minutes, seconds = self._listed
        return (
            hours if span > timedelta(hours=1) else [start.hour],
            minutes if span > timedelta(minutes=1) else [start.minute],
            seconds if span > _SECOND else [start.second],
        )

    def nth(self, start: datetime, count: int) -> datetime | None:
        """The `count`th match at or after a time: by whole years, then months, then its day."""
        hours, minutes, seconds = self._listed
        in_hour = len(minutes) * len(seconds)
        in_day = len(hours) * in_hour
        skipped, masks = count - 1, self.days_of(start.year)
        if masks[start.month] >> start.day & 1:  # those of its day that come before it
            skipped += sum(1 for hour in hours if hour < start.hour) * in_hour
            if start.hour in hours:
                skipped += sum(1 for minute in minutes if minute < start.minute) * len(seconds)
                if start.minute in minutes:
                    skipped += sum(1 for second in seconds if second < start.second)
        day, rest = divmod(skipped, in_day)
        for year in range(start.year, 10_000):
            masks = self.days_of(year)
            months = [masks[month] for month in range(1, 13)]
            if year == start.year:
                months[: start.month - 1] = [0] * (start.month - 1)
                months[start.month - 1] &= -1 << start.day
            size = sum(month.bit_count() for month in months)
            if day < size:
                found = _nth_day([(year, n, mask) for n, mask in enumerate(months, 1)], day)
                hour, rest = divmod(rest, in_hour)
                minute, second = divmod(rest, len(seconds))
                return datetime(*found, hours[hour], minutes[minute], seconds[second])
            day -= size
        return None

    def most(self, freq: Freq) -> int:
        """More times than this no period of the rule can have."""
        hours, minutes, seconds = map(len, self._listed)
        in_day = hours * minutes * seconds
        return {
            Freq.YEARLY: 366 * in_day,
            Freq.MONTHLY: 31 * in_day,
            Freq.WEEKLY: 7 * in_day,
            Freq.DAILY: in_day,
            Freq.HOURLY: minutes * seconds,
            Freq.MINUTELY: seconds,
            Freq.SECONDLY: 1,
        }[freq]

    def _matching(self, year: int) -> Days:
        matching = matching_days(
            year,
            self._rule,
            months=self._months,
            month_days=self._month_days,
            weekdays=self._weekdays,
        )
        months, offset = [], 0
        for length in month_lengths(year):
            months.append(matching >> offset & (2 << length) - 2)
            offset += length
        return (int(any(months)), *months)


def _nth_day(months: list[tuple[int, int, int]], n: int) -> tuple[int, int, int]:
    """The nth day (from 0) of some months' masks; there must be one."""
    for year, month, days in months:
        if n < days.bit_count():
            return year, month, bits(days)[n]
        n -= days.bit_count()
    raise AssertionError("there are fewer days than were counted")


def _default(every: bool, size: int, value: int) -> range:
    return range(size) if every else range(value, value + 1)
