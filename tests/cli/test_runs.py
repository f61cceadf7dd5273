"""`mainspring runs`: list, show, cancel and retry runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring import Scheduler
from mainspring.cli.app_loader import load_scheduler
from mainspring.webhooks import WebhookSettings
from tests.support.command_line import Run
from tests.support.recording_endpoint import Endpoint
from tests.support.recording_endpoint import endpoint as endpoint

StoredRuns = dict[str, str]


def test_list_newest_first_with_whole_ids(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("runs", "list")
    _, *rows = answer.out.splitlines()
    assert [row.split()[0] for row in rows] == [stored_runs["bad"], stored_runs["good"]]
    assert "ValueError: no such address" in rows[0]


def test_runs_are_listed_by_state_and_job(run: Run, stored_runs: StoredRuns) -> None:
    def ids(*words: str) -> list[str]:
        return [item["id"] for item in run("runs", "list", *words, "--json").json["items"]]

    assert ids("--state", "failed") == [stored_runs["bad"]]
    assert ids("--state", "failed,succeeded") == [stored_runs["bad"], stored_runs["good"]]
    assert ids("--state", "pending", "--state", "succeeded") == [stored_runs["good"]]
    assert ids("--job", "send_email", "--limit", "1") == [stored_runs["bad"]]
    assert ids("--job", "whoami") == []
    assert ids("--timed-out") == []
    told = run("runs", "list", "--job", "send_email", "--timed-out").err
    assert told == "no runs of send_email with an attempt that timed out\n"


def test_list_says_what_there_is_not(run: Run, stored_runs: StoredRuns) -> None:
    assert run("runs", "list", "--state", "running").err == "no running runs\n"
    assert run("runs", "list", "--job", "whoami").err == "no runs of whoami\n"
    refused = run("runs", "list", "--job", "whoamI").refusal
    assert "there is no job 'whoamI': did you mean 'whoami'?" in refused
    assert "--state is one of waiting, pending" in run("runs", "list", "--state", "broken").refusal


def test_a_run_is_shown_with_its_result_log_and_traceback(
    run: Run, stored_runs: StoredRuns
) -> None:
    good = run("runs", "show", stored_runs["good"])
    assert good.code == 0
    assert '"sent to a@example.org"' in good.out
    assert "INFO writing to a@example.org" in good.out
    bad = run("runs", "show", stored_runs["bad"])
    assert bad.code == 0
    assert "attempt 1: failed after" in bad.out
    assert "Traceback (most recent call last)" in bad.out
    document = run("runs", "show", stored_runs["bad"], "--json").json
    assert document["state"] == "failed"
    assert document["attempts"][0]["error"] == "ValueError: no such address"
    assert document["finished_at"].endswith("Z")


def test_show_says_why_a_run_did_not_run(run: Run, stored_runs: StoredRuns) -> None:
    made = run("enqueue", "whoami").out.strip()
    run("runs", "cancel", made, "--reason", "not today")
    assert "not today" in run("runs", "show", made).out


def test_a_run_is_cancelled_once(run: Run, stored_runs: StoredRuns) -> None:
    made = run("enqueue", "whoami", "--delay", "1h").out.strip()
    answer = run("runs", "cancel", made, "--json")
    assert (answer.code, answer.json["state"]) == (0, "cancelled")
    again = run("runs", "cancel", made)
    assert again.code == 1
    assert "had ended already: it is cancelled" in again.err


def test_only_a_failed_run_is_retried(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("runs", "retry", stored_runs["bad"])
    assert answer.out == f"{stored_runs['bad']} is pending again\n"
    again = run("runs", "retry", stored_runs["good"], "--json")
    assert again.code == 1
    assert "only a failed or cancelled run" in again.err


def test_an_unknown_run_is_refused(run: Run, stored_runs: StoredRuns) -> None:
    for verb in ("show", "cancel", "retry"):
        assert "there is no run 'nothing'" in run("runs", verb, "nothing").refusal


def test_show_says_why_a_run_is_pending(folder: Path, run: Run) -> None:
    with load_scheduler("app:scheduler").configure(workers=0).blocking as blocking:
        waiting = blocking.enqueue("whoami")
    [line] = [x for x in run("runs", "show", waiting.id).out.splitlines() if x.startswith("why:")]
    assert line.endswith("no worker is alive")
    assert run("runs", "show", waiting.id, "--json").json["why"] == "no worker is alive"


def test_show_of_a_failed_webhook_names_the_call_and_the_answer(
    run: Run, folder: Path, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.status = 422
    scheduler = Scheduler("sqlite:///mainspring.db", webhooks=WebhookSettings(allow=["127.0.0.1"]))
    with scheduler.blocking as blocking:
        blocking.add_job("pay", webhook=f"{endpoint.url}?token=s3cret", retries=0)
        made = blocking.trigger("pay")
        blocking.wait(made.id, timeout="60s")
    shown = run("runs", "show", made.id).out
    assert f"  POST {endpoint.url}" in shown
    assert '  answered 422: {"status":"ok"}\n' in shown
    [line] = [one for one in caplog.messages if "no attempt follows" in one]
    assert f"POST {endpoint.url}" in line
    assert "s3cret" not in line


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
        refused = run(*words).refusal
        assert f"the ids of 2 runs begin with '{shared}': give more" in refused
        assert f"{stored_runs['bad']}  send_email, failed" in refused
        assert f"{stored_runs['good']}  send_email, succeeded" in refused


def test_a_short_or_unknown_beginning_is_refused(run: Run, stored_runs: StoredRuns) -> None:
    refused = run("runs", "show", stored_runs["bad"][:5]).refusal
    assert "give the id, or its first 6 characters or more" in refused
    assert "no run has an id that begins so" in run("runs", "show", "0123456789").refusal


def test_explain_suggests_a_job_where_no_run_begins_so(run: Run, stored_runs: StoredRuns) -> None:
    refused = run("explain", "daily_repot").refusal
    assert "there is no job 'daily_repot': did you mean 'daily_report'?" in refused


def test_runs_that_match_are_retried_and_cancelled_together(
    run: Run, stored_runs: StoredRuns
) -> None:
    for words in ((), (stored_runs["bad"], "--job", "send_email")):
        assert run("runs", "retry", *words).code == 2
    unasked = run("runs", "retry", "--state", "failed").refusal
    assert "stdin is not a terminal, so the command cannot ask" in unasked
    assert "--yes does so without asking" in unasked
    retried = run("runs", "retry", "--job", "send_email", "--state", "failed", "--yes")
    assert retried.out == "retried 1 of 1 run\n"
    assert run("runs", "show", stored_runs["bad"], "--json").json["state"] == "pending"
    cancelled = run("runs", "cancel", "--all", "--yes", "--json").json
    assert cancelled == {"matched": 1, "done": 1, "more": False}
    assert run("runs", "cancel", "--job", "nobody", "--yes").code == 2


def test_runs_are_listed_since_a_time_or_for_the_last_while(
    run: Run, stored_runs: StoredRuns
) -> None:
    def count(since: str) -> int:
        return len(run("runs", "list", "--since", since, "--json").json["items"])

    assert (count("1h"), count("2020-01-01"), count("2100-01-01T00:00:00Z")) == (2, 2, 0)
    assert "--since" in run("runs", "list", "--since", "yesterday").refusal
