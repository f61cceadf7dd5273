from __future__ import annotations

from tests.support.command_line import Run

StoredRuns = dict[str, str]


def test_without_a_worker_the_list_says_how_to_start_one(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("workers", "list")
    assert (answer.code, answer.out) == (0, "")
    assert "no worker is running: start one" in answer.err
    assert run("workers", "list", "--json").json == {"items": []}


def test_workers_alone_lists_them(run: Run, stored_runs: StoredRuns) -> None:
    store = ("--store", "sqlite:///mainspring.db")
    for words in ((), store, ("--json",)):
        assert run("workers", *words) == run("workers", "list", *words)
    assert "COMMAND" in run("workers", "--help").out
    assert run("workers", "lst").code == 2
