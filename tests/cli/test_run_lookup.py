from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import Scheduler
from mainspring.cli import run_lookup
from mainspring.cli.errors import CommandError
from mainspring.cli.run_lookup import find_run_id
from mainspring.core.model import new_run_id
from mainspring.errors import RunNotFound
from tests.support.command_line import Run

StoredRuns = dict[str, str]


def test_a_run_is_named_by_the_beginning_of_its_id(run: Run, stored_runs: StoredRuns) -> None:
    bad = stored_runs["bad"]
    beginning = next(bad[:n] for n in range(12, 32) if not stored_runs["good"].startswith(bad[:n]))
    assert run("runs", "show", beginning, "--json").json["id"] == bad
    assert run("explain", beginning, "--json").json["run_id"] == bad
    assert run("runs", "retry", beginning).out == f"{bad} is pending again\n"
    assert run("runs", "cancel", beginning).out == f"cancelled {bad}\n"


def test_a_beginning_of_several_ids_lists_them(run: Run, stored_runs: StoredRuns) -> None:
    shared = stored_runs["bad"][:8]
    for words in (("runs", "cancel", shared), ("explain", shared)):
        refused = run(*words)
        assert refused.code == 2
        assert f"the ids of 2 runs begin with '{shared}': give more" in refused.err
        assert f"{stored_runs['bad']}  send_email, failed" in refused.err
        assert f"{stored_runs['good']}  send_email, succeeded" in refused.err


def test_a_short_or_unknown_beginning_is_refused(run: Run, stored_runs: StoredRuns) -> None:
    short = run("runs", "show", stored_runs["bad"][:5])
    assert short.code == 2
    assert "give the id, or its first 6 characters or more" in short.err
    unknown = run("runs", "show", "0123456789")
    assert unknown.code == 2
    assert "no run has an id that begins so" in unknown.err


def test_explain_suggests_a_job_where_no_run_begins_so(run: Run, stored_runs: StoredRuns) -> None:
    refused = run("explain", "daily_repot")
    assert refused.code == 2
    assert "there is no job 'daily_repot': did you mean 'daily_report'?" in refused.err


async def test_only_the_newest_runs_that_can_match_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_lookup, "MOST_SEARCHED", 2)
    scheduler = Scheduler("memory://", workers=0)
    scheduler.add_handler("work", lambda: None)
    async with scheduler:
        await scheduler.add_job("ping", handler="work")
        made = [await scheduler.enqueue("ping") for _ in range(3)]
        old = made[0].id
        with pytest.raises(CommandError, match="the ids of 2 runs"):
            await find_run_id(scheduler, old[:8])
        with pytest.raises(RunNotFound, match="none of the newest 2 runs has an id"):
            await find_run_id(scheduler, f"{old[:8]}!")


@pytest.mark.parametrize("digits", range(8, 32, 3))
def test_the_time_in_an_id_bounds_the_search(digits: int) -> None:
    made = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)
    searched = run_lookup._filter(new_run_id(made, random.Random(1))[:digits])
    assert searched["since"] < made < searched["until"]
    assert searched["until"] - searched["since"] < timedelta(minutes=4)


def test_the_job_of_a_slot_bounds_the_search() -> None:
    assert run_lookup._filter("nightly@2026") == {"job": "nightly"}
    assert run_lookup._filter("nightl") == {}
    assert run_lookup._filter("ffffffffffff") == {}
