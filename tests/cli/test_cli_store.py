from __future__ import annotations

from tests.cli.conftest import Run

URL = "mongodb://db.example.org/things?mainspringPrefix=app_"


def test_the_script_makes_every_index(run: Run) -> None:
    answer = run("store", "indexes", "--store", URL)
    assert 'db.getSiblingDB("things")' in answer.out
    assert 'getCollection("app_runs").createIndex({"state": 1, "lane": 1' in answer.out
    assert '// sh.shardCollection("things.app_runs", {_id: "hashed"});' in answer.out
    assert run("store", "indexes", "--store", URL, "--json").json["script"] == answer.out


def test_other_stores_have_none(run: Run) -> None:
    answer = run("store", "indexes", "--store", "sqlite:///mainspring.db")
    assert answer.code == 2
    assert "makes its indexes itself" in answer.err
