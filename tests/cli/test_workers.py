"""`mainspring workers` with and without a worker."""

from __future__ import annotations

import os
from pathlib import Path

from mainspring import __version__
from mainspring.cli.app_loader import load_scheduler
from tests.support.command_line import Run, until

StoredRuns = dict[str, str]


def test_without_a_worker_the_list_says_how_to_start_one(run: Run, stored_runs: StoredRuns) -> None:
    answer = run("workers", "list")
    assert (answer.code, answer.out) == (0, "")
    assert "no worker is alive: start one" in answer.err
    assert run("workers", "list", "--json").json == {"items": []}


def test_a_worker_is_listed_with_its_load_and_its_queues(run: Run, folder: Path) -> None:
    with load_scheduler("app:scheduler").blocking:
        until(lambda: bool(run("workers", "list", "--json").json["items"]))
        [worker] = run("workers", "list", "--json").json["items"]
        answer = run("workers", "list")
    assert (answer.code, answer.err) == (0, "")
    heads, row = answer.out.splitlines()
    assert heads.split()[:4] == ["ID", "LEADS", "FIRES", "RUNNING"]
    assert row.split()[:6] == [worker["id"], "yes", "yes", "0", "of", "2"]
    assert " all " in row
    assert f" {__version__} " in row
    assert (worker["pid"], worker["capacity"], worker["queues"]) == (os.getpid(), 2, None)


def test_workers_alone_lists_them(run: Run, stored_runs: StoredRuns) -> None:
    store = ("--store", "sqlite:///mainspring.db")
    for words in ((), store, ("--json",)):
        assert run("workers", *words) == run("workers", "list", *words)
    assert "COMMAND" in run("workers", "--help").out
    assert run("workers", "lst").code == 2
