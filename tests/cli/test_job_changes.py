"""`mainspring pause` and `mainspring resume`: all firing, and that of one job."""

from __future__ import annotations

from tests.support.command_line import Run

StoredRuns = dict[str, str]


def test_all_firing_is_paused_and_resumed(run: Run, stored_runs: StoredRuns) -> None:
    assert run("pause", "--all").out.startswith("all firing is paused since ")
    since = run("pause", "--all", "--json").json["paused_since"]
    listed = run("jobs", "list")
    assert "all firing is paused since" in listed.err
    assert run("jobs", "list", "--json").json["paused_since"] == since
    checks = {one["name"]: one for one in run("doctor", "--json").json["checks"]}
    assert checks["firing"]["status"] == "warn"
    assert checks["firing"]["advice"] == "mainspring resume --all resumes it"
    assert run("resume", "--all").out == "firing is resumed\n"
    assert run("resume", "--all", "--json").json == {"paused_since": None, "resumed": False}
    assert run("jobs", "show", "daily_report", "--json").json["enabled"] is True


def test_one_job_is_paused_by_another_command(run: Run, stored_runs: StoredRuns) -> None:
    refused = run("pause")
    assert refused.code == 2
    assert "mainspring jobs pause JOB" in refused.err
