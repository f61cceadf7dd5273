"""`mainspring apply`: jobs from a file are compared, stored and removed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Run, Start, until

FILE = """name = "shop"
[jobs.ping]
schedule = "5m"
url = "https://example.org/ping"

[jobs.nightly]
schedule = "0 2 * * *"
handler = "reports:nightly"
payload = { days = 30 }
"""


@pytest.fixture
def file(folder: Path) -> Iterator[Path]:
    (folder / "reports.py").write_text(
        "def nightly(days: int) -> str:\n    return f'{days} days'\n"
    )
    made = folder / "mainspring.toml"
    made.write_text(FILE)
    yield made
    sys.modules.pop("reports", None)


def test_difference_is_shown_and_applied(run: Run, file: Path) -> None:
    dry = run("apply", "--dry-run")
    assert dry.out == "+ ping\n+ nightly\nshop: 2 added, 0 changed, 0 removed, 0 unchanged\n"
    assert dry.err == "a dry run: nothing was changed\n"
    assert not file.with_name("mainspring.db").exists()
    assert run("apply").code == 0
    file.write_text(FILE.partition("[jobs.nightly]")[0].replace("5m", "10m"))
    document = run("apply", "--json", "--dry-run").json
    assert document["changed"]["ping"] == {"schedule": {"old": "5 minutes", "new": "10 minutes"}}
    assert document["removed"] == ["nightly"]
    assert run("apply").out.splitlines() == [
        "~ ping",
        '    schedule: "5 minutes" → "10 minutes"',
        "- nightly",
        "shop: 0 added, 1 changed, 1 removed, 0 unchanged",
    ]
    assert "the file 'shop'" in run("jobs", "show", "ping").out


def test_file_without_a_name_says_which_jobs_it_kept(run: Run, file: Path) -> None:
    file.write_text(FILE.replace('name = "shop"', ""))
    assert run("apply").err.count("nothing was removed") == 0
    file.write_text("")
    kept = run("apply")
    assert "nothing was removed, though this file does not list nightly, ping: give" in kept.err
    assert run("apply", "--json").json["kept"] == ["nightly", "ping"]


def test_file_given_as_an_option_is_refused_with_the_way_to_give_it(run: Run, file: Path) -> None:
    refused = run("apply", "--file", "mainspring.toml").refusal
    assert "give the file without --file: `mainspring apply FILE`" in refused


def test_all_errors_are_shown_and_no_database_is_made(run: Run, file: Path) -> None:
    file.write_text(
        FILE.replace('"5m"', '"5"').replace("days = 30", "dayz = 30") + "retries = -1\n"
    )
    refused = run("apply").refusal
    places = {": ".join(line.split(": ")[1:3]) for line in refused.splitlines()}
    keys = ("ping.schedule", "nightly.payload", "nightly.retries")
    assert places == {f"mainspring.toml: jobs.{key}" for key in keys}
    assert not file.with_name("mainspring.db").exists()


def test_worker_runs_the_jobs_of_a_file(run: Run, file: Path, start: Start) -> None:
    start("worker", "--file", "mainspring.toml")
    until(lambda: file.with_name("mainspring.db").exists())
    until(lambda: run("jobs", "list").code == 0 and "nightly" in run("jobs", "list").out)
    made = run("jobs", "trigger", "nightly").out.strip()
    until(lambda: run("runs", "show", made, "--json").json["result"] == "30 days")


def test_defaults_of_a_file_are_named_so(run: Run, folder: Path) -> None:
    (folder / "m.toml").write_text('[defaults]\nretries = 3\n[jobs.u]\nhandler = "later"\n')
    assert run("apply", "m.toml").code == 0
    assert "defaults of the file or the scheduler" in run("jobs", "show", "u").out
