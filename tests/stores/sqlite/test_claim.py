"""Claims: lanes, limits, order, and which rows they read."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import State
from mainspring.stores.protocol import RunQuery
from mainspring.stores.sqlite import (
    SqliteStore,
    claim,
    commit,
    dedupe,
    jobs,
    limits,
    queries,
    schema,
)
from mainspring.stores.sqlite.codec import RUN_SELECT
from mainspring.stores.sqlite.commit import change_shape
from mainspring.stores.sqlite.files import FileLock
from mainspring.testing.store_calls import claim_runs, get_runs, put_job
from tests.support.sqlite_store import a_claim, a_job, a_run


async def claimed(store: SqliteStore, **fields: Any) -> list[str]:
    return [run.id for run in await claim_runs(store, a_claim(**fields))]


async def test_a_revived_run_comes_under_the_limit_of_today(store: SqliteStore) -> None:
    await store.add([a_run("old"), a_run("new")])
    [old, new] = await claim_runs(store, a_claim())
    failure = transitions.Failure("no")
    now = await store.now()
    assert await store.commit([transitions.failed(run, now, failure) for run in (old, new)])
    await put_job(store, a_job("job", concurrency=1))
    runs = await get_runs(store, ["old", "new"])
    assert await store.commit([transitions.revived(run, now) for run in runs.values()])
    assert len(await claimed(store)) == 1
    assert await claimed(store) == []


# -- query plans ----------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    path = tmp_path / "jobs.db"
    connection = schema.connect(path, create=True)
    schema.migrate(connection, path, FileLock(tmp_path / "lock", 1))
    return connection


def plan(database: sqlite3.Connection, sql: str) -> list[str]:
    numbers = set(re.findall(r"\?([1-9])", sql))
    parameters = [None] * (len(numbers) or sql.count("?"))
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


def scans(steps: list[str]) -> list[str]:
    """Steps that walk a whole table of ours."""
    ours = {"mainspring_runs", "mainspring_jobs", "run", "job", "sharing"}
    return [step for step in steps if step.startswith("SCAN") and step.split()[1] in ours]


BULK = (
    claim._EARLIEST,
    claim._RENEW,
    (f"{RUN_SELECT} {dedupe._HOLDERS[0]}", *dedupe._HOLDERS[1:]),
    claim._HELD,
    dedupe._WAIT,
    jobs._ADVANCE,
)


def of_four_rows(head: str, tail: str, width: int) -> str:
    rows = ",".join([f"({','.join('?' * width)})"] * 4)
    return head + rows + tail


@pytest.mark.parametrize(
    "sql",
    [
        *(claim._LANES_DUE, claim.LANES_AFTER, limits._LIMIT_OF_JOB, claim._EARLIEST_OF_ONE),
        *(of_four_rows(*parts) for parts in BULK),
        commit._PRUNE,
    ],
)
def test_no_table_is_read_from_end_to_end(database: sqlite3.Connection, sql: str) -> None:
    assert scans(plan(database, sql)) == []


def test_a_claim_sorts_nothing(database: sqlite3.Connection) -> None:
    """Not even the runs of one instant: a million may have been enqueued at once."""
    head, tail, _ = claim._EARLIEST
    for sql in (claim._EARLIEST_OF_ONE, f"{head}(?), (?){tail}"):
        assert not any("TEMP B-TREE" in step for step in plan(database, sql))


@pytest.mark.parametrize("deletes", [False, True])
def test_a_change_goes_by_id(database: sqlite3.Connection, deletes: bool) -> None:
    expect, put = ("state", "token"), () if deletes else ("state", "run_at", "result")
    head, tail, width = change_shape(expect, put, deletes).update
    steps = plan(database, f"{head}({','.join('?' * width)}){tail}")
    assert scans(steps) == []
    assert any("(id=?)" in step for step in steps)


@pytest.mark.parametrize("job", [None, "job"])
@pytest.mark.parametrize("state", [*State, None])
@pytest.mark.parametrize("lapsed", [False, True])
def test_find_walks_an_index(
    database: sqlite3.Connection, job: str | None, state: State | None, lapsed: bool
) -> None:
    query = RunQuery(job=job, states=None if state is None else frozenset({state}), lapsed=lapsed)
    index_scans = queries.index_scans(query, 1, 1)
    assert index_scans or (lapsed and state not in (State.RUNNING, None))
    for sql, _ in index_scans:
        steps = plan(database, sql)
        assert all("USING" in step and "INDEX" in step for step in scans(steps))
        # Runs that run now are few and may be sorted, and so may the tops of the jobs' walks.
        if "mainspring_runs_running" not in sql and "newest" not in sql:
            assert not any("TEMP B-TREE" in step for step in steps)


@pytest.mark.parametrize("state", State)
def test_runs_of_a_job_that_were_tried_are_found_by_an_index(
    database: sqlite3.Connection, state: State
) -> None:
    [(sql, _)] = queries.index_scans(
        RunQuery(job="job", tried=True, states=frozenset({state})), 1, 1
    )
    [step] = [one for one in plan(database, sql) if "TEMP B-TREE" not in one]
    untried = state in (State.WAITING, State.PENDING, State.CANCELLED, State.SKIPPED)
    assert ("USING INDEX mainspring_runs_tried (job_id=? AND state=?" in step) is untried
    assert step.startswith("SEARCH")
