"""`mainspring simulate`: of code, of a store, as text and as JSON."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring import Client, Scheduler
from mainspring.cli.simulate import MOST_ROWS
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


def test_the_jobs_of_code_are_simulated_without_a_database(run: Run, app: Path) -> None:
    answer = run("simulate", "nightly:scheduler", "--from", "2027-03-22", "--days", "7")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "28 runs of 4 jobs from 2027-03-22 to 2027-03-28 (Europe/Berlin)"
    assert any(line.startswith("Mon        @@") for line in lines)
    assert "02:00:00   3             6     backups, cleanup, invoices" in answer.out
    assert "2027-03-28 02:30 does not exist in Europe/Berlin: runs at 03:00: late" in answer.out
    assert "    backups: H 2 * * *" in lines
    assert answer.out.isascii()
    assert not (app / "never.db").exists()


def test_json_has_every_figure(run: Run, app: Path) -> None:
    words = ("simulate", "nightly:scheduler", "--from", "2027-03-22", "--days", "7", "--json")
    document = run(*words).json
    assert document["runs"] == 28
    assert document["start"] == "2027-03-21T23:00:00Z"
    assert document["heat"]["Mon"][2] == 4.0
    assert document["collisions"][0]["most"] == 4  # on the 28th all four start at 03:00
    assert document["suggestions"][0]["schedules"]["backups"] == "H 2 * * *"
    assert document["overruns"] == []


FILE = """
timezone = "Europe/Berlin"

[jobs.back_up]
schedule = "0 2 * * *"
handler = "nowhere:back_up"

[jobs.ping]
schedule = "0 2 * * *"
url = "https://example.org/ping"
"""


def test_the_jobs_of_a_file_are_simulated_without_their_code(run: Run, folder: Path) -> None:
    (folder / "mainspring.toml").write_text(FILE)
    answer = run("simulate", "--file", "mainspring.toml", "--days", "7", "--from", "2027-03-22")
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
    answer = run("simulate", "--days", "2")
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
    answer = run("simulate", *words)
    assert answer.code == 2
    assert told in answer.err


def test_jobs_beyond_the_table_are_counted(run: Run, folder: Path) -> None:
    lines = [f'[jobs.j{n}]\nschedule = "@daily"\nurl = "https://example.org/"' for n in range(25)]
    (folder / "many.toml").write_text("\n".join(lines))
    answer = run("simulate", "--file", "many.toml", "--days", "1")
    assert answer.code == 0, answer.err
    assert f"and {25 - MOST_ROWS} more jobs (--json lists all)" in answer.out
    refused = run("simulate", "--file", "many.toml", "--days", "0")
    assert (refused.code, "--days is 1 to 366, not '0'" in refused.err) == (2, True)
