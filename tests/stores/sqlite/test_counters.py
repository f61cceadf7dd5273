"""Counters of ended runs in an SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from mainspring.core import transitions
from mainspring.core.model import State
from mainspring.core.statistics import WHOLE_STORE
from mainspring.stores.sqlite import counters, schema
from mainspring.stores.sqlite.files import FileLock
from mainspring.testing.store_calls import claim_runs
from tests.support.sqlite_store import a_claim, a_run, opened

BOTH = frozenset({"job", WHOLE_STORE})


async def test_changes_that_were_sent_before_are_not_counted_again_beside_new_ones(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        await store.add([a_run(f"r{n}") for n in range(4)])
        held = await claim_runs(store, a_claim(limit=4))
        now = await store.now()
        ends = [transitions.succeeded(run, now, None) for run in held]
        assert await store.commit(ends[:2]) == [True, True]
        assert await store.commit(ends) == [True] * 4
        # What several callers send at once is written together.
        answers = await asyncio.gather(*(store.commit(ends[n:]) for n in range(4)))
        assert all(all(done) for done in answers)
        counts = await store.counts(jobs=BOTH)
        assert {name: total.ended for name, total in counts.totals.items()} == {
            "job": {State.SUCCEEDED: 4},
            WHOLE_STORE: {State.SUCCEEDED: 4},
        }


async def test_ends_are_counted_in_the_transaction_that_stores_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure after the runs are written undoes both."""
    async with opened(tmp_path / "jobs.db") as store:
        await store.add([a_run("run")])
        [run] = await claim_runs(store, a_claim())
        change = transitions.succeeded(run, await store.now(), None)
        with monkeypatch.context() as patch:
            patch.setattr(counters, "_PUT", ("Nonsense (VALUES ", ")", 3))
            with pytest.raises(Exception, match="Nonsense"):
                await store.commit([change])
        assert (await store.counts()).total(State.RUNNING) == 1
        assert await store.commit([change]) == [True]
        assert (await store.counts()).total(State.SUCCEEDED) == 1


@pytest.mark.parametrize("damaged", ["x", '{"ended": 5}'])
async def test_a_counter_that_cannot_be_read_is_not_overwritten(
    tmp_path: Path, damaged: str
) -> None:
    path = tmp_path / "jobs.db"
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


async def test_what_a_read_costs_does_not_grow_with_the_runs(tmp_path: Path) -> None:
    """Nothing of the table of runs is looked at."""
    async with opened(tmp_path / "jobs.db") as store:
        now = await store.now()
        await store.add([a_run(f"r{n}", state=State.FAILED, finished_at=now) for n in range(50)])
    connection = schema.connect(tmp_path / "jobs.db")
    touched: set[str] = set()

    def note(action: int, table: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ and table:
            touched.add(table)
        return sqlite3.SQLITE_OK

    connection.set_authorizer(note)
    found = counters.read(connection, now - timedelta(hours=1), BOTH)
    assert found.totals["job"].ended == {State.FAILED: 50}
    assert touched - {"sqlite_master"} == {"mainspring_counters", "json_each"}
    connection.close()
