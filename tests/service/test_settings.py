"""Where `mainspring serve` and `mainspring keys` take their settings from: options, environment
variables, `.env`; with and without an app."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from mainspring import Scheduler
from mainspring.cli.serve import make_scheduler
from mainspring.cli.store_access import StoreChoice
from mainspring.errors import InvalidInput
from mainspring.service.settings import ServiceSettings
from tests.support.command_line import Run
from tests.support.service import WEBHOOK, Serve

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
APP = """
from mainspring import Scheduler

scheduler = Scheduler("sqlite:///app.db", workers=2, poll="7s", retention="9d")
"""


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("RATE_LIMIT", "100/minute", "RATE_LIMIT is a number, not '100/minute'"),
        ("RATE_LIMIT", "nan", "RATE_LIMIT is a number, not"),
        ("RATE_LIMIT", "inf", "RATE_LIMIT is a number, not"),
        ("RATE_LIMIT", "0", "RATE_LIMIT is more than 0, not '0'"),
        ("RATE_LIMIT", "1e7", "RATE_LIMIT is at most 1000000, not '1e7'"),
        ("PORT", "70000", "PORT is at most 65535, not '70000'"),
        ("PORT", "no", "PORT is a whole number, not 'no'"),
        ("MAX_CONCURRENT_JOBS", "-1", "MAX_CONCURRENT_JOBS is 0 or more"),
        ("SCHEDULER_POLL_INTERVAL", "1", "SCHEDULER_POLL_INTERVAL is 10 or more"),
        ("RETENTION", "30", "RETENTION is a span with its unit, such as 12h or 30d, not '30'"),
        ("PRUNE_EVERY", "2d", "PRUNE_EVERY is 1 second to 1 day, with its unit, such as 10m"),
        ("PRUNE_EVERY", "often", "PRUNE_EVERY is 1 second to 1 day, with its unit, such as 10m"),
        ("MAINSPRING_PER_HOST", "0", "MAINSPRING_PER_HOST is 1 to 10000, not '0'"),
        ("MAINSPRING_PER_HOST", "ten", "MAINSPRING_PER_HOST is 1 to 10000, not 'ten'"),
        ("MAINSPRING_RETRY_AFTER_CAP", "soon", "MAINSPRING_RETRY_AFTER_CAP"),
        ("BODY_LIMIT", "1MB", "BODY_LIMIT is a whole number, not '1MB'"),
        ("LEADER_ELECTION", "redis://r", "LEADER_ELECTION is true or false, not 'redis://r'"),
        ("LEADER_ELECTION", "1", "LEADER_ELECTION is true or false, not '1'"),
        *(
            ("ALLOWED_HOSTS", text, "ALLOWED_HOSTS is a list of names such as jobs.example.org")
            for text in (
                *("jobs.example.org:x", "https://jobs.example.org", "*", ".example.org"),
                *(
                    "a.example, *.example.org",
                    "jobs.example.org/x",
                    "[2001:db8::1]",
                    "büro.example",
                ),
            )
        ),
    ],
)
def test_a_setting_that_is_wrong_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidInput, match=f"^{re.escape(words)}"):
        made_by_serve(tmp_path)


@pytest.mark.parametrize(("text", "elects"), [("false", False), ("True", True), (None, True)])
def test_leader_election_is_switched_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str | None, elects: bool
) -> None:
    if text is not None:
        monkeypatch.setenv("LEADER_ELECTION", text)
    settings = ServiceSettings.read()
    scheduler = make_scheduler(settings, StoreChoice("memory://", None), [])
    assert scheduler._settings.leader_election is elects


def test_names_that_may_be_asked_for() -> None:
    given = "Jobs.example.org, other:8443,, my_box.local ,2001:db8::1, [2001:db8::2]:81, 192.0.2.7"
    hosts = ServiceSettings.read(allowed_hosts=given).hosts
    assert [name for name, port in hosts.items() if port is None] == [
        *("jobs.example.org", "my_box.local", "2001:db8::1", "192.0.2.7")
    ]
    assert (hosts["other"], hosts["2001:db8::2"]) == (8443, 81)


@pytest.fixture
def app(folder: Path) -> Path:
    """The working directory, with an app in it."""
    (folder / "app.py").write_text(APP)
    return folder


# `.env`


def test_private_addresses_and_the_secret_key_may_be_in_the_file(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text(
        f"MAINSPRING_ALLOW_PRIVATE=127.0.0.1\nMAINSPRING_SECRET_KEY={KEY}\n"
    )
    with serve().client() as client:
        job = {**WEBHOOK, "endpoint": "http://127.0.0.1:9/", "id": "near"}
        assert client.post("/api/v1/jobs", json=job).status_code == 201
    # The header's secret was sealed with the key given: none was made beside the database.
    assert (tmp_path / "mainspring.db").exists()
    assert not (tmp_path / "mainspring.db-secret.key").exists()


# With an app


def test_what_an_operator_left_open_is_the_codes(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(app)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "app", raising=False)
    where = StoreChoice(None, "app:scheduler")
    made = make_scheduler(ServiceSettings.read(), where, [])
    assert (made.workers, made.poll, made.retention.days) == (2, timedelta(seconds=7), 9)
    monkeypatch.setenv("SCHEDULER_POLL_INTERVAL", "250")
    monkeypatch.setenv("RETENTION", "90d")
    monkeypatch.setenv("MAX_CONCURRENT_JOBS", "3")
    made = make_scheduler(ServiceSettings.read(), where, [])
    assert (made.workers, made.poll, made.retention.days) == (3, timedelta(milliseconds=250), 90)
    del sys.modules["app"]  # by hand: monkeypatch would put it back for the tests that follow


# Calls and history


def made_by_serve(tmp_path: Path, *allow: str) -> Scheduler:
    where = StoreChoice(f"sqlite:///{tmp_path / 'jobs.db'}", None)
    return make_scheduler(ServiceSettings.read(), where, list(allow))


def test_calls_and_history_are_limited_by_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = made_by_serve(tmp_path)
    calls = usual.webhooks.settings
    assert (calls.per_host, calls.retry_after_cap) == (None, timedelta(hours=1))
    assert usual.retention == timedelta(days=30)
    monkeypatch.setenv("MAINSPRING_PER_HOST", "7")
    monkeypatch.setenv("MAINSPRING_RETRY_AFTER_CAP", "5m")
    monkeypatch.setenv("RETENTION", "12h")
    told = made_by_serve(tmp_path, "10.0.0.0/8")
    calls = told.webhooks.settings
    assert (calls.per_host, calls.retry_after_cap) == (7, timedelta(minutes=5))
    assert calls.allow == ("10.0.0.0/8",)
    assert told.retention == timedelta(hours=12)
    # They are of every process that calls webhooks, workers too.
    assert Scheduler("memory://").webhooks.settings.per_host == 7


# The first key


@pytest.mark.parametrize(
    ("given", "environ"),
    [
        (("--app", "app:scheduler"), {}),
        ((), {"MAINSPRING_APP": "app:scheduler"}),
        (("--store", "sqlite:///given.db"), {}),
        ((), {}),
    ],
)
def test_the_refusal_tells_a_command_that_helps(
    run: Run,
    app: Path,
    started: list[Scheduler],
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    environ: dict[str, str],
) -> None:
    """Wherever the store was named, and whichever folder the command is typed in."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    refused = run("serve", "--port", "0", "--host", "0.0.0.0", *given).refusal
    assert started == []
    words = refused.partition("make one first (mainspring ")[2].partition("), or")[0]
    elsewhere = app / "elsewhere"
    elsewhere.mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(elsewhere)
        assert run(*shlex.split(words), "--json").json["key"].startswith("ms_")
    assert run("serve", "--port", "0", "--host", "0.0.0.0", *given).code == 0
    assert len(started) == 1


def test_keys_go_where_the_app_is(run: Run, app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_APP", "app:scheduler")
    made = run("keys", "create", "ops", "--scope", "admin", "--json").json
    assert (app / "app.db").exists()
    assert not (app / "mainspring.db").exists()
    listed = run("keys", "list", "--app", "app:scheduler", "--json").json["items"]
    assert [one["id"] for one in listed] == [made["id"]]
    assert run("keys", "revoke", made["id"], "--json").json["state"] == "revoked"


def test_a_password_is_not_told_with_the_refusal() -> None:
    from mainspring.cli.store_access import LocatedStore

    found = LocatedStore(object(), "mongodb://user:hunter2@db/jobs?replicaSet=rs")  # type: ignore[arg-type]
    assert found.from_anywhere == "mongodb://user:…@db/jobs?replicaSet=rs"


def test_prune_every_of_the_environment_wins_over_the_file(
    run: Run, tmp_path: Path, started: list[Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('prune_every = "1d"\n')
    serve = ("serve", "--port", "0", "--file", str(file))
    assert run(*serve).code == 0
    monkeypatch.setenv("PRUNE_EVERY", "10s")
    assert run(*serve).code == run(*serve, "--prune-every", "5s").code == 0
    spans = [one._settings.prune_every for one in started]
    assert spans == [timedelta(days=1), timedelta(seconds=10), timedelta(seconds=5)]
