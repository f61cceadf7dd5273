"""Every benchmark runs to its end, with few items: a broken one fails here, not when it is needed.

Nothing is measured. Benchmarks on MongoDB use the shared replica set instead of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from bench.__main__ import BENCHMARKS, measure, show
from bench.cron import _MOMENTS
from tests.support.servers.fixtures import *  # noqa: F403

pytestmark = pytest.mark.thorough

SMALL: dict[str, dict[str, Any]] = {
    "sqlite": {"ROUNDS": 1, "RUNS": 40, "SINGLE_RUNS": 5},
    "latency": {"ROUNDS": 1, "SAMPLES": 3},
    "lateness": {"JOBS": (3,), "ROUNDS": 1, "SECONDS": 1},
    "slots": {"SETTLE_SECONDS": 1},
    "catch_up": {"RUNS_IN_PROGRESS": 1},
    "cron": {"_ROUNDS": 1, "_MOMENTS": _MOMENTS[:3]},
    "effects": {"ROUNDS": 1, "COUNT": 5},
    "api": {"ROUNDS": 1, "CREATIONS": 3, "JOBS": 10, "LISTS": 2, "LIMIT": 2},
    "dashboard": {"TIMES": 1},
    "webhooks": {"ROUNDS": 1, "CALLS": 5, "IN_FLIGHT": 2},
    "mongodb": {"ROUNDS": 1, "RUNS": 20, "BATCHES": (10,)},
    "mongodb_scale": {
        **{"ROUNDS": 1, "RUNS": 20, "PROCESSES": 1, "LIMITED_RUNS": 5, "HEAD_START": 1.0},
    },
    "objects": {
        "RUNS": 20,
        "SAMPLES": 2,
        "IDLE_SECONDS": 1.0,
        "WRITER_SECONDS": 1.0,
        "SETTLE_SECONDS": 0.1,
    },
    "postgresql": {"RUNS": 20, "BATCHES": (10,)},
    "postgresql_bloat": {"BATCH": 10},
    "transactions": {"JOBS": 120, "ROUNDS": {1: 1, 100: 1}},
    "within": {"TRANSACTIONS": 3, "WARM_UP": 1},
    "statistics": {"RUNS_DRAINED": 20, "ROUNDS": 1, "MANY_RUNS": 60, "FEW_RUNS": 40, "TIMES": 1},
    "sizing": {"RUNS_STORED": 100, "SAMPLE": 10, "BATCH": 50, "TIMES": 1},
    "peers": {"DRIVEN": {"RUNS": 20, "SAMPLES": 3, "IDLE": 0.2, "TICKS": 2, "TICK_SECONDS": 2}},
    "growth": {"FIRST": 4000, "TIMES": 1},
}
"""The constants of each benchmark that say how much it does."""

OPTIONS = {
    "slots": ["--store", "sqlite", "--rate", "3", "--seconds", "1", "--instances", "1"],
    "catch_up": ["--store", "sqlite", "--jobs", "2", "--days", "1"],
    "peers": ["--only", "mainspring"],
    "growth": ["--store", "sqlite", "--most", "4000"],
    "dashboard": ["--jobs", "20", "--runs", "2000"],
    "postgresql": ["--rounds", "1"],
    "postgresql_bloat": ["--seconds", "2", "--rate", "50", "--pending", "200", "--finished", "200"],
}
ON_MONGODB = ("mongodb", "mongodb_scale", "transactions", "statistics", "sizing")
SLOW_PARTS = {"latencies", "idle", "connections", "processes"}
"""Parts of the benchmarks on MongoDB that take many seconds, whatever their size."""


def test_every_benchmark_is_tried() -> None:
    assert SMALL.keys() == BENCHMARKS.keys()


@pytest.fixture(autouse=True)
def _keep_log_level() -> Iterator[None]:
    """Some benchmarks silence the log, which later tests of the same process read."""
    logger = logging.getLogger("mainspring")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a benchmark that has been made small."""
    name: str = request.param
    module = import_module(f"bench.{name}")
    for constant, value in SMALL[name].items():
        monkeypatch.setattr(module, constant, value)
    if hasattr(module, "tune_garbage_collector"):  # it would last beyond the test
        monkeypatch.setattr(module, "tune_garbage_collector", lambda: None)
    return name


@pytest.mark.parametrize("small", [n for n in BENCHMARKS if n not in ON_MONGODB], indirect=True)
def test_a_benchmark_gives_figures(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if small == "api":

        @contextmanager
        def without_mongodb() -> Iterator[tuple[None, str]]:
            yield None, "this is a test"

        monkeypatch.setattr("bench.api._mongodb", without_mongodb)
    if small == "postgresql":  # they take many seconds, whatever their size
        monkeypatch.setattr("bench.postgresql.processes", lambda *given: {"not": "tried"})
    _check_figures(measure(small, OPTIONS.get(small, [])))


@pytest.mark.parametrize("small", ON_MONGODB, indirect=True)
def test_a_benchmark_on_mongodb_gives_figures(
    small: str, replica_set_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared(*given: Any, **options: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(url=replica_set_url)

    @contextmanager
    def empty_store(store: str) -> Iterator[tuple[str, None]]:
        yield replica_set_url.replace("/?", "/bench_test?"), None

    module = import_module(f"bench.{small}")
    monkeypatch.setattr(module, "ReplicaSet", shared, raising=False)
    monkeypatch.setattr(module, "empty_store", empty_store, raising=False)
    for part in SLOW_PARTS & set(vars(module)):
        monkeypatch.setattr(module, part, lambda *given: {"not": "tried"})
    _check_figures(measure(small, []))


def _check_figures(figures: object) -> None:
    assert isinstance(figures, dict)
    assert figures
    show(figures, "  ")
