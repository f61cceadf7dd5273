"""`mainspring store`: the script of indexes, and secrets that move to the newest key."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring import Scheduler
from mainspring.stores.mongodb import schema
from mainspring.webhooks import WebhookSettings, new_key
from tests.support.command_line import Run

URL = "mongodb://db.example.org/things?mainspringPrefix=app_"


def test_the_script_makes_every_index(run: Run) -> None:
    """tests/stores/mongodb/test_permissions.py does what its lines say."""
    answer = run("store", "indexes", "--store", URL)
    assert 'db.getSiblingDB("things")' in answer.out
    assert 'getCollection("app_runs").createIndex({"state": 1, "lane": 1' in answer.out
    assert '// sh.shardCollection("things.app_runs", {_id: "hashed"});' in answer.out
    for index in schema.INDEXES:
        start = f'getCollection("app_{index.collection}").createIndex({{"{index.keys[0][0]}": '
        name = f'"name": "{index.name}"'
        assert any(start in line and name in line for line in answer.out.splitlines())
    assert answer.out.count("sh.shardCollection(") == len(schema.SHARDED)
    assert run("store", "indexes", "--store", URL, "--json").json["script"] == answer.out


def test_other_stores_have_none(run: Run) -> None:
    answer = run("store", "indexes", "--store", "sqlite:///mainspring.db")
    assert answer.code == 2
    assert "makes its indexes itself" in answer.err


def test_secrets_move_to_the_newest_key(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = new_key(), new_key()
    monkeypatch.setenv("MAINSPRING_SECRET_KEY", old)
    with Scheduler("sqlite:///mainspring.db", workers=0).blocking as blocking:
        webhook = {"url": "https://a.example/", "headers": {"Authorization": "Bearer s3cret"}}
        blocking.add_job("call", webhook=webhook)

    monkeypatch.setenv("MAINSPRING_SECRET_KEY", new)
    lost = run("store", "reseal")
    assert lost.code != 0
    assert "add it to MAINSPRING_SECRET_KEY" in lost.err

    monkeypatch.setenv("MAINSPRING_SECRET_KEY", f"{new},{old}")
    answer = run("store", "reseal")
    assert (answer.code, answer.out.startswith("encrypted the secrets of 1 job with")) == (0, True)
    assert run("store", "reseal", "--json").json["jobs"] == 0
    assert run("store", "reseal").out == "no secret is encrypted with an older key\n"

    monkeypatch.setenv("MAINSPRING_SECRET_KEY", new)  # the old one is gone
    scheduler = Scheduler("sqlite:///mainspring.db", workers=0)
    with scheduler.blocking as blocking:
        sent = scheduler.webhooks.preview(blocking.get_job("call"), datetime.now(UTC))
    assert sent.headers["Authorization"] == "Bearer s3cret"


def test_keys_of_an_apps_code_are_taken_too(run: Run, folder: Path) -> None:
    old, new = new_key(), new_key()

    with Scheduler(
        "sqlite:///hooks.db", workers=0, webhooks=WebhookSettings(secret_keys=[old])
    ).blocking as blocking:
        blocking.add_job("call", webhook="https://a.example/")
    (folder / "hooks.py").write_text(
        "from mainspring import Scheduler\nfrom mainspring.webhooks import WebhookSettings\n"
        f"settings = WebhookSettings(secret_keys={[new, old]})\n"
        "scheduler = Scheduler('sqlite:///hooks.db', webhooks=settings)\n"
    )
    sys.modules.pop("hooks", None)
    assert run("store", "reseal", "--app", "hooks:scheduler", "--json").json["jobs"] == 1
    sys.modules.pop("hooks", None)
