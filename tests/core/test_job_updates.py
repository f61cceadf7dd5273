"""What is stored when a job is new, defined again or changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mainspring.core.durations import duration
from mainspring.core.job_updates import (
    merge_job,
    next_slot,
    refuse_concurrent_edit,
    refuse_ended_schedule,
    with_first_slot,
)
from mainspring.core.model import Job, replace
from mainspring.core.schedules import Schedule, cron, every, parse
from mainspring.errors import InvalidSchedule, JobChanged

NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TICK = timedelta(microseconds=1)


def draft(schedule: str | datetime | Schedule | None, **fields: object) -> Job:
    return Job(
        id="mail",
        handler="mail",
        schedule=None if schedule is None else parse(schedule),
        created_at=NOON,
        updated_at=NOON,
        **fields,  # type: ignore[arg-type]
    )


def stored(schedule: str | datetime | None, **fields: object) -> Job:
    return replace(with_first_slot(draft(schedule), NOON), version=7, **fields)


class TestFirstSlot:
    def test_an_interval_first_fires_one_interval_after_its_job_is_stored(self) -> None:
        assert with_first_slot(draft("10m"), NOON).next_run_at == NOON + 10 * MINUTE

    def test_a_paused_job_and_one_without_a_schedule_have_none(self) -> None:
        assert with_first_slot(draft("10m", enabled=False), NOON).next_run_at is None
        assert with_first_slot(draft(None), NOON).next_run_at is None

    @pytest.mark.parametrize(
        "schedule",
        [
            every("5m", end="2020-01-01T00:00:00Z"),
            parse("RRULE:FREQ=DAILY;UNTIL=20200101T000000Z"),
            cron("0 9 * * *", "UTC", end="2020-01-01T00:00:00Z"),
        ],
        ids=["interval", "rule", "cron"],
    )
    def test_a_schedule_that_has_ended_is_over_and_no_error(self, schedule: Schedule) -> None:
        """Else one such job would keep the whole program from starting on a new machine."""
        job = with_first_slot(replace(draft(None), schedule=schedule), NOON)
        assert job.next_run_at is None
        with pytest.raises(InvalidSchedule, match="is over"):
            refuse_ended_schedule(job, NOON)
        again = merge_job(replace(draft(None), schedule=schedule), job, NOON)
        assert (again.schedule, again.next_run_at) == (job.schedule, None)

    def test_an_end_before_the_first_slot_is_refused(self) -> None:
        soon = every("10d", end=NOON + timedelta(days=5))
        with pytest.raises(InvalidSchedule, match="can never fire"):
            with_first_slot(replace(draft(None), schedule=soon), NOON)


class TestMerge:
    def test_the_operators_switch_and_the_history_of_the_stored_job_stay(self) -> None:
        before = stored("10m", enabled=False, next_run_at=None, last_run_at=NOON)
        later = NOON + 30 * MINUTE
        after = merge_job(draft("10m", description="new"), before, later)
        assert (after.enabled, after.last_run_at, after.created_at) == (False, NOON, NOON)
        assert (after.version, after.updated_at, after.description) == (7, later, "new")

    def test_an_unchanged_schedule_keeps_a_slot_that_was_missed(self) -> None:
        before = stored("10m")
        after = merge_job(draft("10m"), before, NOON + timedelta(hours=5))
        assert after.next_run_at == NOON + 10 * MINUTE
        assert after.schedule == before.schedule

    def test_a_changed_schedule_keeps_a_slot_that_is_due(self) -> None:
        after = merge_job(draft("0 9 * * *"), stored("10m"), NOON + 11 * MINUTE)
        assert after.next_run_at == NOON + 10 * MINUTE

    def test_a_changed_cron_expression_takes_its_own_next_slot(self) -> None:
        after = merge_job(draft("0 9 * * *"), stored("0 18 * * *"), NOON)
        assert after.next_run_at == datetime(2030, 5, 2, 9, tzinfo=UTC)

    def test_two_versions_that_register_by_turns_do_not_postpone_an_interval(self) -> None:
        """As in a rolling deploy: one program says 10 minutes, the other says 15."""
        job = stored("10m")
        for minute in range(1, 10):
            job = merge_job(draft("15m" if minute % 2 else "10m"), job, NOON + minute * MINUTE)
            assert job.next_run_at == NOON + (15 if minute % 2 else 10) * MINUTE
        job = merge_job(draft("10m"), job, NOON + 12 * MINUTE)
        assert job.next_run_at == NOON + 12 * MINUTE + TICK  # at once: its time has passed
        job = merge_job(draft("15m"), job, NOON + 12 * MINUTE)
        assert job.next_run_at == NOON + 15 * MINUTE  # still counted from the first registration

    @pytest.mark.parametrize(
        ("before", "after", "edited_at", "upcoming"),
        [
            ("1h", "2h", 90, 180),
            ("2h", "1h", 90, 120),
            ("2h", "10m", 90, 90),
            ("1h", "30m", 70, 90),
        ],
    )
    def test_a_changed_interval_counts_from_the_last_slot(
        self, before: str, after: str, edited_at: int, upcoming: int
    ) -> None:
        """The last slot was one hour after noon. If the new time has passed, it fires at once."""
        last = NOON + 60 * MINUTE
        job = replace(stored(before), last_run_at=last, next_run_at=NOON + 600 * MINUTE)
        job = merge_job(draft(after), job, NOON + edited_at * MINUTE)
        assert job.next_run_at is not None
        assert job.next_run_at - NOON - upcoming * MINUTE in (timedelta(), TICK)
        assert job.schedule is not None
        following = job.schedule.next(job.next_run_at)
        assert following is not None
        assert following - job.next_run_at == duration(after)

    def test_an_interval_with_another_start_takes_its_own_next_slot(self) -> None:
        before = with_first_slot(draft(every("1d", start=NOON + 30 * MINUTE)), NOON)
        after = merge_job(draft(every("1d", start=NOON + 90 * MINUTE)), before, NOON + MINUTE)
        assert after.next_run_at == NOON + 90 * MINUTE

    def test_a_schedule_that_is_taken_away_takes_its_slot_along(self) -> None:
        after = merge_job(draft(None), stored("10m"), NOON)
        assert (after.schedule, after.next_run_at) == (None, None)


def test_slots_that_have_fired_are_not_named_again_when_the_clock_is_set_back() -> None:
    fired = NOON + 20 * MINUTE
    job = stored("10m", last_run_at=fired)
    assert next_slot(job, True, NOON + MINUTE) == fired + 10 * MINUTE
    assert next_slot(job, False, NOON + MINUTE) is None


def test_only_an_edit_made_since_the_caller_read_the_job_is_a_conflict() -> None:
    read = stored("10m")
    fired = replace(read, last_run_at=NOON + 10 * MINUTE, next_run_at=NOON + 20 * MINUTE, version=8)
    refuse_concurrent_edit(fired, read)
    refuse_concurrent_edit(replace(read, description="new"), None)
    with pytest.raises(JobChanged):
        refuse_concurrent_edit(replace(fired, description="new"), read)


def test_a_schedule_without_another_slot_is_refused_with_its_last_one() -> None:
    refuse_ended_schedule(stored(NOON + MINUTE), NOON)
    with pytest.raises(InvalidSchedule, match=r"2030-05-01T12:01:00.+ has passed") as refused:
        refuse_ended_schedule(stored(NOON + MINUTE), NOON + 2 * MINUTE)
    assert refused.value.job_id == "mail"


@pytest.mark.parametrize(
    ("stated_before", "stated_now", "enabled_before", "enabled_after"),
    [
        (None, None, False, False),  # an operator's pause stays
        (None, False, True, False),
        (True, False, True, False),
        (False, False, True, True),  # an operator has resumed the job
        (True, True, False, False),
        (False, True, False, True),
        (False, None, False, True),  # the definition no longer switches it off
        (True, None, False, False),
    ],
)
def test_a_stated_enabled_is_applied_when_it_changes(
    stated_before: bool | None,
    stated_now: bool | None,
    enabled_before: bool,
    enabled_after: bool,
) -> None:
    slot = NOON + 10 * MINUTE if enabled_before else None
    job = replace(
        stored("10m"), stated_enabled=stated_before, enabled=enabled_before, next_run_at=slot
    )
    after = merge_job(draft("10m", stated_enabled=stated_now), job, NOON)
    assert (after.enabled, after.stated_enabled) == (enabled_after, stated_now)
    assert (after.next_run_at is not None) is enabled_after
