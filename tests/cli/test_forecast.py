"""`mainspring forecast`: of code, of a store, as text and as JSON."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring import Client, Scheduler
from mainspring.cli import forecast
from tests.support.command_line import Run

APP = """
from mainspring import Scheduler

scheduler = Scheduler("sqlite:///never.db", timezone="Europe/Berlin")

def boom():
    raise SystemExit("a simulation runs no handler")

for name in ("backups", "cleanup", "invoices"):
    scheduler.job("0 2 * * *", id=name)(boom)
scheduler.job("30 2 * * *", id="late")(boom)
"""


@pytest.fixture
def app(folder: Path) -> Path:
    (folder / "nightly.py").write_text(APP)
    return folder


def test_the_jobs_of_code_are_forecast_without_a_database(run: Run, app: Path) -> None:
    answer = run("forecast", "nightly:scheduler", "--from", "2027-03-22", "--days", "7")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "28 runs of 4 jobs from 2027-03-22 to 2027-03-28 (Europe/Berlin)"
    assert any(line.startswith("Mon        @@") for line in lines)
    assert "02:00:00   3             6     backups, cleanup, invoices" in answer.out
    assert "2027-03-28 02:30 does not exist in Europe/Berlin: runs at 03:00: late" in answer.out
    assert "    backups: H 2 * * *" in lines
    assert answer.out.isascii()
    assert not (app / "never.db").exists()


FILE = """
timezone = "Europe/Berlin"

[jobs.back_up]
schedule = "0 2 * * *"
handler = "nowhere:back_up"

[jobs.ping]
schedule = "0 2 * * *"
url = "https://example.org/ping"
"""


def test_the_jobs_of_a_file_are_forecast_without_their_code(run: Run, folder: Path) -> None:
    (folder / "mainspring.toml").write_text(FILE)
    answer = run("forecast", "--file", "mainspring.toml", "--days", "7", "--from", "2027-03-22")
    assert answer.code == 0, answer.err
    told = "14 runs of 2 jobs from 2027-03-22 to 2027-03-28 (Europe/Berlin)"
    assert answer.out.splitlines()[0] == told
    assert not list(folder.glob("*.db*"))


async def fill(folder: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{folder}/mainspring.db")

    @scheduler.job("@hourly", enabled=False)
    async def paused() -> None: ...

    @scheduler.job
    async def manual() -> None: ...

    @scheduler.job("15 * * * *")
    async def quarter() -> None: ...

    async with scheduler:
        await scheduler.trigger("manual")


def test_the_jobs_of_a_store_are_read_and_not_changed(run: Run, folder: Path) -> None:
    asyncio.run(fill(folder))
    with Client(f"sqlite:///{folder}/mainspring.db").blocking as client:
        before = client.list_jobs().items
    answer = run("forecast", "--days", "2")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0].startswith("48 runs of 1 job from ")
    assert "not counted: 1 paused, 1 without a schedule" in answer.out
    with Client(f"sqlite:///{folder}/mainspring.db").blocking as client:
        assert client.list_jobs().items == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nightly:scheduler", "--store", "sqlite:///x.db"), "give one of"),
        (("--file", "none.toml"), "none.toml"),
        (("nightly:scheduler", "--from", "soon"), "--from 'soon' is no ISO 8601 date-time"),
        (("nightly:scheduler", "--tz", "Mars/Base"), "Mars/Base"),
        (("nightly:scheduler", "--days", "0"), "--days"),
    ],
)
def test_bad_input_says_what_is_allowed(
    run: Run, app: Path, words: tuple[str, ...], told: str
) -> None:
    assert told in run("forecast", *words).refusal


NOW = datetime(2026, 11, 13, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "utcnow", lambda: NOW)


def test_the_next_slots_are_shown_in_the_zone_and_in_utc(run: Run) -> None:
    answer = run("schedule", "0 9 * * 1-5", "--tz", "Asia/Kolkata", "-n", "2")
    assert answer.out.splitlines() == [
        "At 09:00, Monday through Friday, Asia/Kolkata",
        "Asia/Kolkata               UTC",
        "2026-11-16T09:00:00+05:30  2026-11-16T03:30:00Z  in 3 days",
        "2026-11-17T09:00:00+05:30  2026-11-17T03:30:00Z  in 4 days",
    ]


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
    assert "(Asia/Kolkata)" in run("forecast", "--days", "1", *zone).out
    assert 'timezone = "Asia/Kolkata"' in run("import", "crontab", "crontab", *zone).out
    added = ("add", f"zoned{option}", "--handler", "x", "--schedule", "0 9 * * *")
    shown = run("jobs", *added, *zone, "--json").json["schedule"]
    assert "Asia/Kolkata" in shown["description"]
