"""The zone of a schedule's wall times: its own, the job's, the scheduler's, or UTC."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import Scheduler, at, cron, every, rrule
from mainspring.core.schedules import Schedule, parse
from mainspring.errors import InvalidSchedule

AFTER = datetime(2029, 12, 31, 12, tzinfo=UTC)
BERLIN_NINE = datetime(2030, 1, 1, 8, tzinfo=UTC)
KOLKATA_NINE = datetime(2030, 1, 1, 3, 30, tzinfo=UTC)
UTC_NINE = datetime(2030, 1, 1, 9, tzinfo=UTC)

WITHOUT_ZONE: list[Any] = [
    "0 9 * * *",
    "2030-01-01T09:00",
    datetime(2030, 1, 1, 9),
    "DTSTART:20300101T090000\nRRULE:FREQ=DAILY",
    cron("0 9 * * *"),
    cron("0 9 * * *", start="2030-01-01T08:30"),
    at("2030-01-01T09:00"),
    at(datetime(2030, 1, 1, 9)),
    every("1d", start="2030-01-01T09:00"),
    every("1d", start=datetime(2030, 1, 1, 9), end=datetime(2030, 1, 1, 9)),
    rrule("FREQ=DAILY", start="2030-01-01T09:00"),
    rrule("DTSTART:20300101T090000\nRRULE:FREQ=DAILY"),
]
IN_BERLIN: list[Any] = [
    "CRON_TZ=Europe/Berlin 0 9 * * *",
    "DTSTART;TZID=Europe/Berlin:20300101T090000\nRRULE:FREQ=DAILY",
    cron("0 9 * * *", "Europe/Berlin"),
    at("2030-01-01T09:00", tz="Europe/Berlin"),
    at(datetime(2030, 1, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))),
    rrule("FREQ=DAILY", start="2030-01-01T09:00", tz="Europe/Berlin"),
]

Drafted = Callable[..., Schedule | None]


def decorated(zone: str, **given: Any) -> Schedule | None:
    scheduler = Scheduler("memory://", timezone=zone)

    @scheduler.job(**given)
    def handler() -> None: ...

    return scheduler._jobs_in_code["handler"].schedule


def added(zone: str, **given: Any) -> Schedule | None:
    scheduler = Scheduler("memory://", timezone=zone)

    @scheduler.job()
    def handler() -> None: ...

    return scheduler.draft("another", handler="handler", **given).schedule


def first(schedule: Schedule | None) -> datetime | None:
    assert schedule is not None
    return schedule.next(AFTER)


@pytest.mark.parametrize("made", [decorated, added])
@pytest.mark.parametrize("spec", WITHOUT_ZONE, ids=repr)
def test_a_schedule_without_a_zone_takes_the_jobs_then_the_schedulers(
    spec: Any, made: Drafted
) -> None:
    assert first(made("UTC", schedule=spec)) == UTC_NINE
    assert first(made("Europe/Berlin", schedule=spec)) == BERLIN_NINE
    assert first(made("Europe/Berlin", schedule=spec, timezone="Asia/Kolkata")) == KOLKATA_NINE
    assert first(parse(spec)) == UTC_NINE


@pytest.mark.parametrize("made", [decorated, added])
@pytest.mark.parametrize("spec", IN_BERLIN, ids=repr)
def test_a_schedule_keeps_its_zone_and_another_beside_it_is_refused(
    spec: Any, made: Drafted
) -> None:
    assert first(made("Asia/Kolkata", schedule=spec)) == BERLIN_NINE
    assert first(made("UTC", schedule=spec, timezone="Europe/Berlin")) == BERLIN_NINE
    for other in ("UTC", "Asia/Kolkata"):
        with pytest.raises(InvalidSchedule, match=f"Europe/Berlin.*{other}.*leave out one"):
            made("Europe/Berlin", schedule=spec, timezone=other)


def test_moments_with_an_offset_stay_where_they_are() -> None:
    rule = rrule("DTSTART:20300101T080000Z\nRRULE:FREQ=DAILY")
    for spec in ("2030-01-01T09:00+01:00", at("2030-01-01T09:00+01:00"), at(BERLIN_NINE), rule):
        schedule = decorated("UTC", schedule=spec, timezone="Asia/Kolkata")
        assert first(schedule) == BERLIN_NINE
        assert schedule is not None
        assert schedule.timezone == "Asia/Kolkata"


def test_a_text_and_an_argument_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidSchedule, match="names the zone Asia/Tokyo"):
        cron("CRON_TZ=Asia/Tokyo 0 9 * * *", "Europe/Berlin")
    with pytest.raises(InvalidSchedule, match="names the zone Asia/Tokyo"):
        rrule("DTSTART;TZID=Asia/Tokyo:20300101T090000\nRRULE:FREQ=DAILY", tz="Europe/Berlin")


async def test_an_edit_keeps_the_jobs_zone_unless_it_names_another() -> None:
    scheduler = Scheduler("memory://", timezone="Europe/Berlin")

    @scheduler.job()
    def handler() -> None: ...

    async with scheduler:
        await scheduler.add_job("a", handler=handler, schedule="1d", timezone="Asia/Kolkata")
        job = await scheduler.update_job("a", schedule=cron("0 9 * * *"))
        assert first(job.schedule) == KOLKATA_NINE
        job = await scheduler.update_job("a", schedule=at("2030-01-01T09:00"))
        assert first(job.schedule) == KOLKATA_NINE
        job = await scheduler.update_job("a", schedule=cron("0 9 * * *", "Europe/Berlin"))
        assert first(job.schedule) == BERLIN_NINE
        job = await scheduler.update_job("a", timezone="UTC")
        assert first(job.schedule) == UTC_NINE
        with pytest.raises(InvalidSchedule, match="leave out one"):
            await scheduler.update_job(
                "a", schedule=cron("0 9 * * *", "Europe/Berlin"), timezone="Asia/Kolkata"
            )
        await scheduler.add_job("b", handler=handler, schedule="1d")
        job = await scheduler.update_job("b", schedule="0 9 * * *")
        assert first(job.schedule) == BERLIN_NINE


def test_registering_again_gives_an_equal_schedule() -> None:
    """Intervals in a scheduler of another zone stay as earlier versions stored them."""
    for spec in (*WITHOUT_ZONE, "5m", every("5m")):
        once, again = (decorated("Europe/Berlin", schedule=spec) for _ in range(2))
        assert once == again
    stored = decorated("Europe/Berlin", schedule="5m")
    assert stored is not None
    assert stored.timezone == "UTC"
