"""`mainspring store`: the script of indexes, and secrets that move to the newest key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring import Scheduler
from mainspring.errors import SecretKeyMissing
from mainspring.stores.mongodb import schema
from mainspring.webhooks import WebhookSettings, new_key
from tests.support.command_line import Run
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.servers.mongodb import with_database

URL = "mongodb://db.example.org/things?mainspringPrefix=app_"


def test_the_script_makes_every_index(run: Run) -> None:
    """tests/stores/mongodb/test_permissions.py does what its lines say."""
    answer = run("store", "schema", "--store", URL)
    assert 'db.getSiblingDB("things")' in answer.out
    assert 'getCollection("app_runs").createIndex({"state": 1, "lane": 1' in answer.out
    assert '// sh.shardCollection("things.app_runs", {_id: "hashed"});' in answer.out
    for index in schema.INDEXES:
        start = f'getCollection("app_{index.collection}").createIndex({{"{index.keys[0][0]}": '
        name = f'"name": "{index.name}"'
        assert any(start in line and name in line for line in answer.out.splitlines())
    assert answer.out.count("sh.shardCollection(") == len(schema.SHARDED)
    assert run("store", "schema", "--store", URL, "--json").json["script"] == answer.out


def test_other_stores_have_none(run: Run) -> None:
    refused = run("store", "schema", "--store", "sqlite:///mainspring.db").refusal
    assert "makes what it needs itself" in refused


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


NOW = datetime(2030, 1, 1, tzinfo=UTC)
HERE, THERE = "sqlite:///mainspring.db", "sqlite:///copy.db"


def test_a_copy_back_equals_the_original(
    run: Run, stored_runs: dict[str, str], replica_set_url: str, database_name: str
) -> None:
    cluster = with_database(replica_set_url, database_name)
    answer = run("store", "copy", HERE, cluster)
    assert answer.code == 0
    assert answer.out.startswith(f"copied {HERE} to {cluster}\njobs:        5\nruns:        2\n")
    assert answer.out.endswith("counted on both sides, and equal\n")
    back = run("store", "copy", cluster, THERE, "--json").json
    assert back == {
        "from": cluster,
        "to": THERE,
        "jobs": 5,
        "notes": 0,
        "runs": {"failed": 1, "succeeded": 1},
        "added": 2,
        "existing": 0,
        "corrected": 0,
        "jobs_with_secrets": 0,
    }
    for words in (["runs", "list"], ["jobs", "list"], ["runs", "show", stored_runs["bad"]]):
        before = run(*words, "--store", HERE, "--json").json
        assert run(*words, "--store", cluster, "--json").json["items" if "list" in words else "id"]
        after = run(*words, "--store", THERE, "--json").json
        for document in (before, after):
            document.pop("cursor", None)
        assert after == before


def test_secrets_need_their_key_over_there(run: Run, stored_runs: dict[str, str]) -> None:
    with Scheduler(HERE, workers=0).blocking as blocking:
        webhook = {"url": "https://example.org/", "headers": {"Authorization": "Bearer t0k3n"}}
        blocking.add_job("call", webhook=webhook)
    answer = run("store", "copy", HERE, THERE)
    assert "secrets of 1 job are encrypted with the key of" in answer.out
    assert "MAINSPRING_SECRET_KEY, or what is in " in answer.out
    assert "mainspring.db-secret.key)" in answer.out
    key = Path("mainspring.db-secret.key").read_text()
    for keys, opens in (([key], True), ([], False)):
        settings = WebhookSettings(secret_keys=keys)
        there = Scheduler(THERE, workers=0, webhooks=settings)
        with there.blocking as blocking:
            job = blocking.get_job("call")
            if opens:
                assert there.webhooks.preview(job, NOW).headers["Authorization"] == "Bearer t0k3n"
                continue
            with pytest.raises(SecretKeyMissing):
                there.webhooks.preview(job, NOW)


def test_a_second_copy_adds_nothing(run: Run, stored_runs: dict[str, str]) -> None:
    run("store", "copy", HERE, THERE)
    answer = run("store", "copy", HERE, THERE)
    assert answer.code == 0
    assert "already in TO: 2 runs, of which 0 had changed in FROM" in answer.out


def test_a_dry_run_writes_nothing(run: Run, stored_runs: dict[str, str], folder: Path) -> None:
    answer = run("store", "copy", HERE, THERE, "--dry-run")
    assert answer.code == 0
    assert answer.out.startswith(f"would copy {HERE} to {THERE}\njobs:        5\nruns:        2\n")
    assert "TO is empty" in answer.out
    assert run("store", "copy", HERE, THERE, "--dry-run", "--json").json["dry_run"] is True
    assert not (folder / "copy.db").exists()


def names(folder: Path) -> set[str]:
    """The files there are, but for those that SQLite keeps for a while."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm"))}


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("sqlite:///missing.db", THERE, "sqlite:///missing.db holds no Mainspring data"),
        (HERE, "sqlite:///./mainspring.db", "FROM and TO are the same store"),
        (HERE, "memory://", "TO is memory://"),
        ("memory://", HERE, "FROM is memory://"),
        (HERE, "redis://here", "there is no store for redis://"),
        (HERE, "copy.db", "a store is named by a URL"),
        (HERE, "sqlite:///no/folder/x.db", "does not exist"),
    ],
)
def test_a_wrong_source_or_target_is_refused_and_leaves_no_file(
    run: Run, stored_runs: dict[str, str], folder: Path, source: str, target: str, words: str
) -> None:
    before = names(folder)
    answer = run("store", "copy", source, target)
    assert answer.code in (2, 3)
    assert words in answer.err
    assert names(folder) == before


def test_a_shared_stores_own_key_moves_to_the_key_file_of_an_embedded_one(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAINSPRING_SECRET_KEY", raising=False)
    first, second = f"file://{folder}/first", f"file://{folder}/second"
    with Scheduler(first, workers=0).blocking as blocking:
        webhook = {"url": "https://example.org/", "headers": {"Authorization": "Bearer t0k3n"}}
        blocking.add_job("call", webhook=webhook)
    for source, target in ((first, second), (second, THERE)):
        for _ in range(2):  # the second copy finds the key there
            copied = run("store", "copy", source, target)
            assert copied.code == 0, copied.err
            assert copied.out.endswith("counted on both sides, and equal\n")
    key_file = Path("copy.db-secret.key")
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert key_file.read_text().strip().encode() not in Path("copy.db").read_bytes()
    there = Scheduler(THERE, workers=0)
    with there.blocking as blocking:
        request = there.webhooks.preview(blocking.get_job("call"), NOW)
        assert request.headers["Authorization"] == "Bearer t0k3n"
    assert "those of 1 webhook can be decrypted" in run("doctor", "--store", THERE).out
    key_file.unlink()
    assert "those of 1 webhook cannot be decrypted" in run("doctor", "--store", THERE).out
