"""Counters of ended runs in an SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.core import transitions
from mainspring.core.model import State
from mainspring.core.statistics import WHOLE_STORE
from mainspring.stores.sqlite import SqliteStore, counters, schema
from mainspring.stores.sqlite.files import FileLock
from mainspring.testing.store_calls import claim_runs
from tests.support.sqlite_store import a_claim, a_run, opened

BOTH = frozenset({"job", WHOLE_STORE})


async def test_ends_are_counted_in_the_transaction_that_stores_them(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure after the runs are written undoes both."""
    await store.add([a_run("run")])
    [run] = await claim_runs(store, a_claim())
    change = transitions.succeeded(run, await store.now(), None)
    with monkeypatch.context() as patch:
        patch.setattr(counters, "_APPEND", "Nonsense ?, ?")
        with pytest.raises(Exception, match="Nonsense"):
            await store.commit([change])
    assert (await store.counts()).total(State.RUNNING) == 1
    assert await store.commit([change]) == [True]
    assert (await store.counts()).total(State.SUCCEEDED) == 1


@pytest.mark.parametrize("damaged", ["x", '{"ended": 5}'])
async def test_a_counter_that_cannot_be_read_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    path = tmp_path / "jobs.db"
    monkeypatch.setattr(counters, "BUSY_FOLD", 1)
    async with opened(path) as store:
        for run_id in ("first", "second"):
            await store.add([a_run(run_id)])
            [run] = await claim_runs(store, a_claim())
            await store.commit([transitions.succeeded(run, await store.now(), None)])
            if run_id == "first":
                with sqlite3.connect(path) as other:
                    other.execute(
                        "UPDATE mainspring_counters SET body = ? WHERE job_id = 'job'", [damaged]
                    )
                other.close()
                assert (await store.counts(jobs=BOTH)).totals.keys() == {WHOLE_STORE}
        counts = await store.counts(jobs=BOTH)
        assert counts.totals.keys() == {WHOLE_STORE}
        assert counts.totals[WHOLE_STORE].ended == {State.SUCCEEDED: 2}
    with closing(sqlite3.connect(path)) as other:
        kept = other.execute("SELECT DISTINCT body FROM mainspring_counters WHERE job_id = 'job'")
        assert kept.fetchall() == [(damaged,)]


def test_counters_are_read_and_pruned_by_index(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connection = schema.connect(path, create=True)
    schema.migrate(connection, path, FileLock(path.with_suffix(".lock"), 1))
    for sql, values in (
        (counters.READ, ('[["job", 0]]',)),
        (counters.PRUNE_PERIODS, (1,)),
        (counters.PRUNE_TOTALS, ()),
    ):
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        looks = [step for step in plan if "counte" in step]
        assert looks
        assert all(step.startswith("SEARCH") for step in looks), plan
