"""`mainspring schedule`: what a schedule means and when it fires."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring.core import clock
from tests.support.command_line import Run

NOW = datetime(2026, 11, 13, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "utcnow", lambda: NOW)


def test_the_next_slots_are_shown_in_the_zone_and_in_utc(run: Run) -> None:
    answer = run("schedule", "0 9 * * 1-5", "--tz", "Asia/Kolkata", "-n", "2")
    assert answer.out.splitlines() == [
        "At 09:00, Monday through Friday, Asia/Kolkata",
        "Asia/Kolkata               UTC",
        "2026-11-16T09:00:00+05:30  2026-11-16T03:30:00Z  in 3 days",
        "2026-11-17T09:00:00+05:30  2026-11-17T03:30:00Z  in 4 days",
    ]


def test_a_schedule_that_names_a_zone_is_shown_in_it(run: Run) -> None:
    answer = run("schedule", "CRON_TZ=Asia/Kolkata 0 9 * * 1-5", "-n", "1")
    assert "2026-11-16T09:00:00+05:30  2026-11-16T03:30:00Z" in answer.out
    refused = run("schedule", "CRON_TZ=Asia/Kolkata 0 9 * * *", "--tz", "Europe/Berlin")
    assert refused.code == 2
    assert "Asia/Kolkata" in refused.err
    assert "Europe/Berlin" in refused.err


def test_a_moment_without_an_offset_is_read_in_the_zone(run: Run) -> None:
    answer = run("schedule", "2030-01-01T09:00", "--tz", "Asia/Kolkata")
    assert "2030-01-01T09:00:00+05:30  2030-01-01T03:30:00Z" in answer.out


def test_json_has_the_slots_and_the_warnings(run: Run) -> None:
    document = run("schedule", "0 9 * * 1-5", "--tz", "Asia/Kolkata", "-n", "10", "--json").json
    assert len(document["upcoming"]) == 10
    assert document["upcoming"][0] == {
        "utc": "2026-11-16T03:30:00Z",
        "local": "2026-11-16T09:00:00+05:30",
    }
    assert document["warnings"] == []


def test_daylight_saving_is_foretold(run: Run) -> None:
    answer = run("schedule", "30 2 * * *", "--tz", "Europe/Berlin", "-n", "1")
    assert "2027-03-28 02:30 does not exist in Europe/Berlin: runs at 03:00" in answer.out
    assert "2027-10-31 02:30 happens twice" in answer.out


@pytest.mark.parametrize(
    "text", ["@daily", "5m", "2030-01-01T09:00:00Z", "RRULE:FREQ=DAILY;BYHOUR=9", "0 0 9 * * 1"]
)
def test_every_form_of_a_schedule_is_accepted(run: Run, text: str) -> None:
    answer = run("schedule", text, "--json")
    assert answer.code == 0
    assert answer.json["upcoming"]


def test_an_ended_schedule_lists_no_times(run: Run) -> None:
    answer = run("schedule", "2020-01-01T09:00:00Z")
    assert answer.code == 0
    assert "the schedule is over" in answer.out
    assert run("schedule", "2020-01-01T09:00:00Z", "--json").json["upcoming"] == []


@pytest.mark.parametrize(
    "words", [("0 9 * * 8",), ("soon",), ("0 0 30 2 *",), ("@daily", "--tz", "Mars/Olympus")]
)
def test_a_wrong_schedule_is_refused(run: Run, words: tuple[str, ...]) -> None:
    answer = run("schedule", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert run("schedule", *words, "--json").err.startswith('{"error": ')


@pytest.mark.parametrize("option", ["--timezone", "--tz"])
def test_the_zone_has_one_option_in_all_commands(
    run: Run, stored_runs: dict[str, str], folder: Path, option: str
) -> None:
    zone = (option, "Asia/Kolkata")
    (folder / "crontab").write_text("0 9 * * * true\n")
    assert "Asia/Kolkata" in run("schedule", "0 9 * * *", *zone).out
    assert "(Asia/Kolkata)" in run("simulate", "--days", "1", *zone).out
    assert 'timezone = "Asia/Kolkata"' in run("import", "crontab", "crontab", *zone).out
    added = ("add", f"zoned{option}", "--handler", "x", "--schedule", "0 9 * * *")
    shown = run("jobs", *added, *zone, "--json").json["schedule"]
    assert "Asia/Kolkata" in shown["description"]
