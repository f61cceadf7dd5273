"""`mainspring jobs`: list, show, change and remove jobs."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from mainspring import Breaker, Client, Scheduler
from mainspring.cli.app_loader import load_scheduler
from mainspring.core.plurals import plural
from tests.support.command_line import Run, until

StoredRuns = dict[str, str]


def test_jobs_are_listed_with_their_schedules(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("jobs", "list")
    assert answer.code == 0
    header, *rows = answer.out.splitlines()
    assert header.split("  ")[0] == "ID"
    assert [row.split()[0] for row in rows] == [
        "daily_report",
        "hang",
        "linger",
        "send_email",
        "whoami",
    ]
    assert "At 09:00, Monday through Friday, Asia/Kolkata" in rows[0]
    assert rows[3].endswith("when enqueued")
    assert "\033" not in answer.out


def test_the_list_says_how_the_last_run_of_each_job_ended(
    run: Run, stored_runs: StoredRuns
) -> None:
    header, *rows = run("jobs", "list").out.splitlines()
    at = header.index("RESULT")
    results = {row.split()[0]: row[at:].split()[0] for row in rows}
    assert (results["send_email"], results["whoami"]) == ("failed", "-")
    listed = {job["id"]: job for job in run("jobs", "list", "--json").json["items"]}
    assert listed["send_email"]["last_run"]["error"] == "ValueError: no such address"
    assert listed["whoami"]["last_run"] is None


def test_list_as_json_in_pages(run: Run, stored_runs: StoredRuns) -> None:
    first = run("jobs", "list", "--limit", "3", "--json").json
    assert [job["id"] for job in first["items"]] == ["daily_report", "hang", "linger"]
    job = first["items"][0]
    assert job["schedule"]["expression"] == "0 9 * * 1-5"
    assert job["next_run_at"].endswith("T03:30:00Z")
    rest = run("jobs", "list", "--cursor", first["cursor"], "--json").json
    assert [job["id"] for job in rest["items"]] == ["send_email", "whoami"]
    assert rest["cursor"] is None
    assert f"--cursor {first['cursor']}" in run("jobs", "list", "--limit", "3").err


def test_a_job_is_shown_with_its_health_and_metrics(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("jobs", "show", "send_email")
    assert answer.code == 0
    assert "1 of 2 succeeded (50%)" in answer.out
    assert stored_runs["bad"] in answer.out
    assert "health:" in answer.out
    assert "(by enqueue): ValueError: no such address\n" in answer.out
    assert "on average, 95 % within" in answer.out
    facts = run("jobs", "show", "send_email", "--json").json
    assert facts["health"]["success_rate"] == 0.5
    assert facts["health"]["last_run"]["id"] == stored_runs["bad"]
    assert (facts["metrics"]["total"], facts["metrics"]["ended"]["failed"]) == (2, 1)
    assert facts["metrics"]["duration"]["max"] >= 0
    assert facts["metrics"]["recent_failures"][0]["error"] == "ValueError: no such address"
    document = run("jobs", "show", "daily_report", "--json").json
    assert document["description"] == "The numbers"
    assert len(document["upcoming"]) == 5
    assert document["recent"] == []
    assert "it has not run yet" in run("jobs", "show", "daily_report").out


def test_reset_a_breaker(run: Run, stored_runs: StoredRuns) -> None:
    scheduler = load_scheduler("app:scheduler")
    with scheduler.blocking as blocking:
        blocking.add_job("mail", handler="send_email", breaker=Breaker(failures=1, reset="1h"))
        bad = blocking.enqueue("mail", {"to": "nobody"})
        blocking.wait(bad.id, 30)
        until(lambda: blocking.job_health("mail").breaker == "open")
    sys.modules.pop("app", None)
    shown = run("jobs", "show", "mail", "--json").json
    health = shown["health"]
    assert health["breaker"] == "open"
    assert f"open until {health['breaker_until'][:10]}" in run("jobs", "show", "mail").out
    assert run("jobs", "reset-breaker", "mail").out.startswith("closed the circuit breaker of mail")
    again = run("jobs", "reset-breaker", "mail", "--json").json
    assert again == {"id": "mail", "was_open": False}
    without = run("jobs", "reset-breaker", "send_email")
    assert without.code == 1
    assert "has no circuit breaker to reset" in without.err


def test_pause_and_resume(run: Run, stored_runs: StoredRuns) -> None:
    paused = run("jobs", "pause", "daily_report", "--json").json
    assert (paused["enabled"], paused["next_run_at"]) == (False, None)
    assert "paused" in run("jobs", "list").out
    made = run("jobs", "trigger", "daily_report").out.strip()  # a paused job can be triggered
    triggered = run("runs", "show", made, "--json").json
    assert (triggered["source"], triggered["state"]) == ("trigger", "pending")
    resumed = run("jobs", "resume", "daily_report")
    assert resumed.out.startswith("resumed daily_report: next run ")
    assert run("jobs", "show", "daily_report", "--json").json["enabled"] is True


def test_a_job_of_the_code_is_removed_only_by_force(run: Run, stored_runs: StoredRuns) -> None:
    owned = run("jobs", "remove", "whoami")
    assert owned.code == 1
    assert "defined in code" in owned.err
    assert "--force" in owned.err
    assert run("jobs", "remove", "whoami", "--force", "--json").json == {
        "id": "whoami",
        "removed": True,
    }
    assert run("jobs", "show", "whoami").code == 2


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "trigger", "remove"])
def test_an_unknown_job_is_refused_with_the_command_that_lists_jobs(
    run: Run, stored_runs: StoredRuns, verb: str
) -> None:
    answer = run("jobs", verb, "nothing")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: there is no job 'nothing'\n")
    assert "mainspring jobs list" in answer.err
    told = run("jobs", verb, "nothing", "--json")
    assert (told.code, told.out) == (2, "")
    assert "there is no job 'nothing'" in told.err
    assert told.err.startswith('{"error":')


def test_looking_through_an_app_changes_nothing(
    run: Run, stored_runs: StoredRuns, folder: Path
) -> None:
    run("jobs", "remove", "whoami", "--force")
    listed = run("jobs", "list", "--app", "app:scheduler", "--json").json["items"]
    assert "whoami" not in [job["id"] for job in listed]


def test_a_webhook_is_shown_without_its_secrets(run: Run, stored_runs: dict[str, str]) -> None:
    store = "sqlite:///mainspring.db"
    with Scheduler(store, workers=0).blocking as blocking:
        webhook = {"url": "https://example.org/x", "headers": {"Authorization": "Bearer t0k3n-1"}}
        blocking.add_job("call", webhook=webhook)
    assert "calls:      POST https://example.org/x\n" in run("jobs", "show", "call").out
    told = run("jobs", "show", "call", "--json").json["webhook"]
    assert told["headers"] == {"Authorization": "********"}
    assert (told["url"], told["signed"]) == ("https://example.org/x", True)
    assert "********" in run("jobs", "list", "--json").out
    assert "t0k3n" not in run("jobs", "list", "--json").out


def test_a_job_whose_code_is_gone_is_named_with_the_command_that_removes_it(
    folder: Path, run: Run
) -> None:
    app = (folder / "app.py").read_text()
    with load_scheduler("app:scheduler").blocking:
        pass
    listed = run("jobs", "list")
    assert "no worker is alive" in listed.err
    assert "no worker" not in listed.out
    (folder / "app.py").write_text(app.replace("def daily_report", "def weekly_report"))
    sys.modules.pop("app")
    with load_scheduler("app:scheduler").blocking:
        until(lambda: "no worker is alive" not in run("jobs", "list").err)
        listed = run("jobs", "list")
        [line] = [line for line in listed.out.splitlines() if "no worker" in line]
        assert line.startswith("daily_report")
        assert "mainspring jobs remove daily_report --force --store sqlite:///" in listed.err
        assert "renamed: @scheduler.job(id='daily_report', …)" in listed.err
        items = run("jobs", "list", "--json").json["items"]
        assert [job["id"] for job in items if not job["has_worker"]] == ["daily_report"]
        checks = run("doctor", "--json").json["checks"]
        [orphan] = [check for check in checks if check["name"] == "handlers"]
        assert orphan["status"] == "warn"
        assert "'daily_report'" in orphan["detail"]
        assert "@scheduler.job(id='daily_report', …) on the new function" in orphan["advice"]
        assert "no longer fired when that lasts for a minute" in orphan["detail"]
        shown = run("jobs", "show", "daily_report")
        assert "no live worker has the handler 'daily_report'" in shown.err
        assert "mainspring jobs remove daily_report --force --store sqlite:///" in shown.err
        assert "next runs" not in shown.out
        shown_json = run("jobs", "show", "daily_report", "--json").json
        assert (shown_json["has_worker"], shown_json["upcoming"]) == (False, [])
        assert len(run("jobs", "show", "weekly_report", "--json").json["upcoming"]) == 5
        assert "no live worker" not in run("jobs", "show", "weekly_report").err
        assert run("jobs", "show", "weekly_report", "--json").json["has_worker"] is True
        assert run("jobs", "remove", "daily_report", "--force").code == 0
    assert "no worker" not in run("jobs", "list").out


def test_orphans_are_listed_and_removed(run: Run, stored_runs: StoredRuns) -> None:
    refused = run("jobs", "prune-orphans", "--yes")
    assert refused.code == 1
    assert "no worker that runs your code is alive" in refused.err
    with Scheduler("sqlite:///mainspring.db", workers=0).blocking as blocking:
        blocking.trigger("daily_report")
        pending = len(blocking.list_runs(state=["pending", "waiting"]).items)
    assert pending > 0
    listed = run("jobs", "prune-orphans", "--dry-run", "--force")
    assert next(row.split()[0] for row in listed.out.splitlines()[1:]) == "daily_report"
    assert "would be removed" in listed.err
    assert f"{plural(pending, 'pending run')} cancelled" in listed.err
    assert "@scheduler.job(id='daily_report', …) on the new one keeps its job" in listed.err
    counted = run("jobs", "prune-orphans", "--dry-run", "--force", "--json").json
    assert (counted["removed"], counted["pending_runs"]) == (False, pending)
    assert "--yes removes them" in run("jobs", "prune-orphans", "--force", "--json").refusal
    removed = run("jobs", "prune-orphans", "--force", "--yes", "--json").json
    assert removed["removed"]
    assert "daily_report" in removed["jobs"]
    assert "nothing to remove" in run("jobs", "prune-orphans", "--force", "--yes").err


def test_show_says_where_each_option_comes_from(run: Run, folder: Path) -> None:
    (folder / "shared.py").write_text(
        "from mainspring import Scheduler\n"
        'scheduler = Scheduler("sqlite:///mainspring.db", defaults={"timeout": "5m"})\n'
        "@scheduler.job(retries=2)\n"
        "def work() -> None: ...\n"
    )
    with load_scheduler("shared:scheduler").blocking:
        pass
    shown = run("jobs", "show", "work").out
    assert "given by the job:         retries=2\n" in shown
    assert "the scheduler's defaults: timeout=300.0\n" in shown
    assert 'queue="default"' in shown.partition("built in:")[2]
    origins = run("jobs", "show", "work", "--json").json["origins"]
    assert [origins[name] for name in ("retries", "timeout", "queue")] == [
        "job",
        "defaults",
        "built_in",
    ]


def test_add_and_update(run: Run, stored_runs: StoredRuns) -> None:
    added = run(
        *("jobs", "add", "ping", "--url", "https://example.org/ping", "--schedule", "1h"),
        *("--set", "webhook.method=GET", "--set", "retries=3", "--set", "backoff.kind=fixed"),
        *("--tag", "calls", "--json"),
    )
    assert added.code == 0, added.err
    job = added.json
    assert (job["owner"], job["webhook"]["method"], job["tags"]) == ("api", "GET", ["calls"])
    assert (job["policy"]["retries"], job["policy"]["backoff"]["kind"]) == (3, "fixed")
    handled = run(
        *("jobs", "add", "mail", "--handler", "send_email", "--payload", '{"to": "a"}'),
        *("--set", "timeout=5m", "--set", "concurrency=2"),
    )
    assert handled.out == "added mail\n"
    changed = run("jobs", "update", "mail", "--set", "timeout=none", "--schedule", "@daily")
    assert changed.out.startswith("updated mail: next run ")
    policy = run("jobs", "show", "mail", "--json").json["policy"]
    assert "timeout" not in policy
    assert policy["concurrency"] == 2


def test_messages_of_add_and_update_can_be_followed(run: Run, stored_runs: StoredRuns) -> None:
    assert run("jobs", "add", "one", "--handler", "send_email", "--schedule", "1h").code == 0
    again = run("jobs", "add", "one", "--handler", "send_email")
    assert again.code == 1
    assert again.err == (
        "error: there is a job 'one' already\n  `mainspring jobs update one` changes it\n"
    )
    neither = run("jobs", "add", "x", "--schedule", "5m").err
    assert "a job needs a handler, or a url (webhook) to call, and this one has neither" in neither
    assert "mainspring jobs add x --handler NAME --schedule 5m" in neither
    both = run("jobs", "add", "x", "--handler", "send_email", "--url", "https://example.org").err
    assert "this one has both: leave one of them out" in both
    twice = run("jobs", "update", "one", "--set", "retries=3", "--set", "retries=4")
    assert (twice.code, "retries is given twice" in twice.err) == (2, True)
    nothing = run("jobs", "update", "one")
    assert (nothing.code, "there is nothing to change" in nothing.err) == (2, True)
    wrong = run("jobs", "update", "one", "--schedule", "61 * * * *")
    assert wrong.err.startswith("error: schedule: minute '61' cannot be used")
    assert "--payload is not JSON" in run("jobs", "update", "one", "--payload", "{").err
    owned = run("jobs", "update", "daily_report", "--set", "retries=2")
    assert "is defined in code" in owned.err


def test_a_payload_may_come_from_stdin(run: Run, stored_runs: StoredRuns) -> None:
    options = ("--handler", "send_email", "--payload", "-")
    assert run("jobs", "add", "mail", *options, stdin='{"to": "a"}').code == 0
    assert run("jobs", "show", "mail", "--json").json["payload"] == {"to": "a"}
    wrong = run("jobs", "add", "other", *options, stdin="{")
    assert "--payload, read from stdin, is not JSON" in wrong.err


def test_none_empties_what_may_be_empty_and_is_refused_elsewhere(
    run: Run, stored_runs: StoredRuns
) -> None:
    added = run(
        *(
            "jobs",
            "add",
            "ping",
            "--url",
            "https://example.org/ping",
            "--set",
            "webhook.method=PUT",
        ),
        *("--set", 'webhook.body="none"'),
    )
    assert added.code == 0, added.err
    assert run("jobs", "show", "ping", "--json").json["webhook"]["body"] == "none"
    changed = run(
        *("jobs", "update", "ping", "--set", "webhook.body=none", "--set", "webhook.method=none"),
        "--json",
    ).json["webhook"]
    assert (changed["body"], changed["method"]) == (None, "POST")
    refused = run("jobs", "update", "ping", "--set", "retries=none").refusal
    assert "retries" in refused


def test_an_update_names_the_headers_that_it_removes(run: Run, stored_runs: StoredRuns) -> None:
    headers = '{"Authorization": "Bearer t0k3n-1", "X-Team": "a"}'
    url = "https://example.org/ping"
    assert run("jobs", "add", "ping", "--url", url, "--set", f"webhook.headers={headers}").code == 0
    assert run("jobs", "update", "ping", "--url", f"{url}/2").err == ""
    moved = run("jobs", "update", "ping", "--url", "https://example.com/")
    assert moved.code == 0
    assert "removed the header authorization: secrets are not sent to another host" in moved.err
    assert "mainspring jobs update ping --set 'webhook.headers=" in moved.err
    replaced = run("jobs", "update", "ping", "--set", "webhook.headers.X-Other=b")
    assert "removed the header x-team: the headers that were given replace all" in replaced.err
    again = run("jobs", "update", "ping", "--set", "webhook.headers=none", "--json")
    assert (again.json["dropped_headers"], again.err) == (["x-other"], "")


def test_show_has_next_runs_in_the_jobs_zone_and_what_clocks_do(
    run: Run, stored_runs: StoredRuns
) -> None:
    made = run(
        *("jobs", "add", "night", "--schedule", "30 2 * * *", "--timezone", "Europe/Berlin"),
        *("--url", "https://example.org/"),
    )
    assert made.code == 0, made.err
    shown = run("jobs", "show", "night").out
    lines = shown.partition("next runs\n")[2].splitlines()
    assert all("T02:30:00+0" in line and "Europe/Berlin" in line for line in lines[:4])
    assert "does not exist in Europe/Berlin: runs at 03:00" in shown
    assert "happens twice in Europe/Berlin" in shown


def test_the_signing_secret_of_a_new_webhook_is_printed_once(
    run: Run, stored_runs: StoredRuns
) -> None:
    url = ("--url", "https://example.org/ping")
    added = run("jobs", "add", "ping", *url)
    shown = re.search(r"^signing secret, shown only now: (whsec_\S+)$", added.out, re.MULTILINE)
    assert shown is not None
    assert _signing_secrets("ping") == [shown[1]]
    assert shown[1] not in run("jobs", "show", "ping", "--json").out
    document = run("jobs", "add", "pong", *url, "--json").json
    assert _signing_secrets("pong") == [document["signing_secret"]]
    own = "whsec_" + "A" * 32
    given = run("jobs", "add", "own", *url, "--set", f"webhook.signing_secret={own}")
    assert given.code == 0
    assert own not in given.out
    assert "secret" not in run("jobs", "add", "plain", "--handler", "send_email").out


def test_rotating_a_secret_prints_the_new_one(run: Run, stored_runs: StoredRuns) -> None:
    run("jobs", "add", "ping", "--url", "https://example.org/ping")
    [old] = _signing_secrets("ping")
    rotated = run("jobs", "rotate-secret", "ping")
    new = rotated.out.strip()
    assert _signing_secrets("ping") == [new, old]
    assert "shown only now" in rotated.err
    options = ("--old-valid-for", "0", "--json")
    last = run("jobs", "rotate-secret", "ping", *options).json["signing_secret"]
    assert _signing_secrets("ping") == [last]
    assert "it is not a webhook job" in run("jobs", "rotate-secret", "send_email").refusal
    assert run("jobs", "rotate-secret", "nothing").code == 2


def _signing_secrets(job_id: str) -> list[str]:
    """The secrets that the job's requests are signed with, decrypted."""

    async def read() -> list[str]:
        async with Client("sqlite:///mainspring.db", inline=True) as client:
            job = await client.get_job(job_id)
            assert job.webhook is not None
            vault = client.webhooks.vault
            return [
                vault.open(one.sealed, job_id, "the signing secret") for one in job.webhook.signing
            ]

    return asyncio.run(read())


def test_a_private_url_is_refused_with_the_variable_that_allows_it(
    run: Run, stored_runs: StoredRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("jobs", "add", "ping", "--schedule", "5m", "--url", "http://127.0.0.1/x")
    assert "MAINSPRING_ALLOW_PRIVATE=127.0.0.1" in run(*words).refusal
    monkeypatch.setenv("MAINSPRING_ALLOW_PRIVATE", "127.0.0.1")
    assert run(*words).code == 0


def work() -> None: ...


def test_jobs_are_listed_by_tag_queue_and_text(run: Run, stored_runs: StoredRuns) -> None:
    def ids(*words: str) -> list[str]:
        return [item["id"] for item in run("jobs", "list", *words, "--json").json["items"]]

    assert ids("--tag", "reports") == ids("--search", "numbers") == ["daily_report"]
    assert "no jobs with the tag 'none' yet" in run("jobs", "list", "--tag", "none").err
    assert len(ids("--queue", "default")) == 5
    assert ids("--queue", "mail") == []
    assert run("jobs", "list", "--queue", "mail").err == "no jobs match\n"


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
    assert "mainspring jobs pause JOB" in run("pause").refusal
