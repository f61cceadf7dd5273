"""`mainspring backfill`: past slots are run."""

from __future__ import annotations

from tests.support.command_line import Run

StoredRuns = dict[str, str]
WEEK = ("--from", "2026-01-05", "--to", "2026-01-12")


def test_past_slots_are_run_once(run: Run, stored_runs: StoredRuns) -> None:
    plan = run("backfill", "daily_report", *WEEK, "--dry-run")
    assert plan.out == "5 slots of daily_report: 5 runs would be added, 0 left alone\n"
    assert "older than the runs that are kept" in plan.err
    first = run("backfill", "daily_report", *WEEK, "--limit", "2", "--json").json
    # At 09:00 in Asia/Kolkata, in which the dates are read too.
    assert first["added"] == ["daily_report@20260105T033000Z", "daily_report@20260106T033000Z"]
    assert first["next_slot"] == "2026-01-07T03:30:00Z"
    rest = run("backfill", "daily_report", *WEEK)
    assert rest.out == ("5 slots of daily_report: 3 runs added, 2 left alone\n  2 pending\n")
    shown = run("runs", "show", first["added"][0], "--json").json
    assert (shown["source"], shown["priority"]) == ("backfill", 0)


def test_what_is_wrong_is_said(run: Run, stored_runs: StoredRuns) -> None:
    refused = run("backfill", "daily_report", "--from", "soon").refusal
    assert "--from 'soon' is no ISO 8601 date-time" in refused
    assert (
        "later than start"
        in run("backfill", "daily_report", "--from", "2026-02-01", "--to", "2026-01-01").err
    )
    assert "has no schedule" in run("backfill", "send_email", "--from", "2026-01-01").err
    assert run("backfill", "nobody", "--from", "2026-01-01").code == 2
