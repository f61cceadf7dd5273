"""`mainspring explain`: why a job, a slot or a run did what it did."""

from __future__ import annotations

from tests.support.command_line import Run

StoredRuns = dict[str, str]


def test_a_job_a_slot_and_a_run_are_explained(run: Run, stored_runs: StoredRuns) -> None:
    job = run("explain", "daily_report")
    assert job.code == 0
    assert job.out.startswith("daily_report: its next slot is at ")
    slot = run("explain", "daily_report", "2020-01-06T09:00", "--json").json
    # At 09:00 in Asia/Kolkata, in which the time is read.
    assert (slot["code"], slot["at"]) == ("not_created", "2020-01-06T03:30:00Z")
    assert "is not a slot of its schedule" in run("explain", "daily_report", "23:59").out
    bad = run("explain", stored_runs["bad"])
    assert bad.out.startswith(f"{stored_runs['bad']}: it ran, and failed at attempt ")
    assert run("explain", "daily_report", "soon").code == 2
    assert run("explain", "nobody").code == 2


def test_jobs_show_says_what_is_wrong(run: Run, stored_runs: StoredRuns) -> None:
    assert run("jobs", "show", "daily_report", "--json").json["why"] is None
    run("jobs", "pause", "daily_report")
    shown = run("jobs", "show", "daily_report")
    assert "the job is paused, so no slot fires" in shown.out


def test_explain_of_a_job_says_how_its_last_run_ended_and_why(
    run: Run, stored_runs: StoredRuns
) -> None:
    said = run("explain", "send_email").out
    assert f"its last run {stored_runs['bad']} failed " in said
    assert "(by enqueue): ValueError: no such address\n" in said
    assert run("explain", "send_email", "--json").json["last_run"]["state"] == "failed"
    assert run("explain", "daily_report", "--json").json["last_run"] is None
    assert "last_run" not in run("explain", stored_runs["bad"], "--json").json


def test_a_chain_is_queued_and_drawn(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("chain", "whoami", 'send_email={"to": "b"}')
    assert answer.code == 0
    first, second = answer.out.split()
    assert run("runs", "show", second, "--json").json["after"] == [first]
    drawn = run("workflow", first)
    assert drawn.out.splitlines() == ["whoami  pending", "└─ send_email  waiting"]
    graph = run("workflow", first, "--json").json
    assert graph["edges"] == [{"from": first, "to": second}]


def test_a_wrong_chain_says_what_is_wrong(run: Run, stored_runs: StoredRuns) -> None:
    assert "whoareyou" in run("chain", "whoami", "whoareyou").refusal
    assert "not JSON" in run("chain", "send_email={to}").refusal
    assert "skip or run" in run("chain", "whoami", "--after-failure", "stop").refusal
    assert "whoareyou" in run("workflow", "whoareyou").refusal
