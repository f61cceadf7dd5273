"""Ids of jobs, slots and runs, and the values of the model."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mainspring.core.clock import EPOCH, SystemClock, from_us, to_us
from mainspring.core.model import (
    Run,
    State,
    check_job_id,
    new_run_id,
    replace,
    slot_run_id,
)
from mainspring.errors import InvalidInput

NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("job_id", ["a", "daily_report", "team.mail:v2-x", "x" * 200, "0"])
def test_these_job_ids_are_accepted(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize("job_id", ["", "a b", "a@b", "é", "x" * 201, "a\n", "a/b", None, 5])
def test_these_job_ids_are_refused(job_id: object) -> None:
    with pytest.raises(InvalidInput, match="1 to 200 letters, digits"):
        check_job_id(job_id)


class TestSlotIds:
    def test_the_id_names_the_job_and_the_slot(self) -> None:
        assert slot_run_id("mail", NOON) == "mail@20300501T120000Z"
        assert slot_run_id("mail", NOON.replace(microsecond=250_000)) == "mail@20300501T120000.25Z"
        assert slot_run_id("mail", NOON.replace(microsecond=1)) == "mail@20300501T120000.000001Z"

    def test_one_moment_has_one_id_whatever_its_zone(self) -> None:
        there = NOON.astimezone(ZoneInfo("Asia/Kolkata"))
        assert slot_run_id("mail", there) == slot_run_id("mail", NOON)

    def test_the_two_passes_of_a_repeated_hour_differ(self) -> None:
        berlin = ZoneInfo("Europe/Berlin")
        first = datetime(2030, 10, 27, 2, 30, tzinfo=berlin)
        assert slot_run_id("mail", first) != slot_run_id("mail", first.replace(fold=1))

    def test_different_jobs_and_slots_differ(self) -> None:
        moments = [NOON + timedelta(microseconds=n) for n in (0, 1, 10, 100, 10**6, 10**7)]
        ids = {slot_run_id(job, at) for job in ("a", "a.1", "a1") for at in moments}
        assert len(ids) == 18


def test_new_ids_are_in_order_of_time_unguessable_within_a_moment_and_never_a_slots() -> None:
    rng = random.Random(1)
    ids = [new_run_id(NOON + timedelta(milliseconds=n), rng) for n in range(50)]
    assert ids == sorted(ids)
    assert {len(run_id) for run_id in ids} == {32}
    assert not any("@" in run_id for run_id in ids)
    assert len({new_run_id(NOON, rng) for _ in range(1000)}) == 1000


def test_duration_and_finished() -> None:
    run = Run(id="r", job_id="j", handler="h", created_at=NOON, scheduled_at=NOON, run_at=NOON)
    assert (run.duration, run.finished) == (None, False)
    end = NOON + timedelta(milliseconds=1500)
    over = replace(run, state=State.FAILED, started_at=NOON, finished_at=end)
    assert (over.duration, over.finished) == (1.5, True)


class TestClock:
    def test_microseconds_are_exact(self) -> None:
        for us in (0, 1, -1, 10**15 + 7, 253_402_300_799_999_999):
            assert to_us(from_us(us)) == us
        assert from_us(0) == EPOCH

    def test_the_system_clock_is_aware_and_monotonic(self) -> None:
        clock = SystemClock()
        assert clock.now().utcoffset() == timedelta()
        assert clock.monotonic() <= clock.monotonic()
