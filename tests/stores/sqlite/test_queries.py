"""Listing 10,000 jobs by page: what SQLite reads."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model import Job, Page, replace
from mainspring.core.policy import Policy
from mainspring.stores.protocol import JobQuery, NoteQuery, RunQuery
from mainspring.stores.sqlite import codec, queries, schema
from mainspring.stores.sqlite.codec import decode_jobs, job_row
from mainspring.stores.sqlite.file_lock import FileLock
from mainspring.testing import FakeClock
from tests.support.sqlite_store import a_claim, a_job, a_run, opened

JOBS = 10_000
LIMIT = 20
LAST = JOBS - LIMIT


def filled(path: Path, count: int) -> sqlite3.Connection:
    connection = schema.connect(path, create=True)
    schema.migrate(connection, path, FileLock(path.with_suffix(".lock"), 1))
    row = job_row(a_job("job"))
    columns = ", ".join(row)
    made = [tuple({**row, "id": f"job-{n:05}"}.values()) for n in range(count)]
    marks = ", ".join("?" * len(row))
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO mainspring_jobs ({columns}) VALUES ({marks})", made)
    connection.execute("COMMIT")
    return connection


def paged(offset: int) -> JobQuery:
    return JobQuery(limit=LIMIT, offset=offset, with_total=True)


def worked(connection: sqlite3.Connection, query: JobQuery) -> tuple[Page[Job], int]:
    """A page, and how many steps of SQLite's machine it took."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(step, 1)
    try:
        page = queries.jobs(connection, query)
    finally:
        connection.set_progress_handler(None, 1)
    return page, steps


def test_the_first_page_costs_the_same_of_many_jobs_as_of_few(tmp_path: Path) -> None:
    few, of_few = worked(filled(tmp_path / "few.db", 100), paged(0))
    many, of_many = worked(filled(tmp_path / "many.db", JOBS), paged(0))
    assert (few.total, many.total) == (100, JOBS)
    assert many.items == few.items
    assert of_many <= of_few + 10


def test_followers_are_found_without_a_look_at_other_jobs(tmp_path: Path) -> None:
    """Each enqueue may ask for them, once a second: all definitions were parsed for it."""
    steps = {}
    for count in (100, JOBS):
        connection = filled(tmp_path / f"{count}.db", count)
        policy = Policy.make(after=("job-00000",))
        behind = job_row(replace(a_job("behind"), policy=policy))
        columns, marks = ", ".join(behind), ", ".join("?" * len(behind))
        connection.execute(
            f"INSERT INTO mainspring_jobs ({columns}) VALUES ({marks})", tuple(behind.values())
        )
        page, steps[count] = worked(connection, JobQuery(follows=True))
        assert [job.id for job in page.items] == ["behind"]
    assert steps[JOBS] <= steps[100] + 10


@pytest.mark.parametrize(
    "query",
    [
        JobQuery(text="x"),
        JobQuery(follows=True),
        JobQuery(enabled=False),
        JobQuery(queue="q"),
        JobQuery(order="updated_at", descending=True),
        JobQuery(order="next_run_at"),
    ],
)
def test_lists_parse_no_definition_to_choose_jobs(tmp_path: Path, query: JobQuery) -> None:
    connection = filled(tmp_path / "jobs.db", 10)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    queries.jobs(connection, query)
    connection.set_trace_callback(None)
    [sql] = [one for one in statements if "ORDER BY" in one]
    chosen = sql[sql.index("(SELECT rowid") + 1 : sql.rindex(")")]
    program = connection.execute(f"EXPLAIN {chosen}").fetchall()
    assert not [step for step in program if "json" in str(step[5])]


def test_the_last_page_steps_over_ids_and_reads_no_job_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = filled(tmp_path / "jobs.db", JOBS)
    read: list[Job] = []

    def watched(text: Any) -> list[Job]:
        found = decode_jobs(text)
        read.extend(found)
        return found

    monkeypatch.setattr(codec, "decode_jobs", watched)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    first, of_first = worked(connection, paged(0))
    last, of_last = worked(connection, paged(LAST))
    connection.set_trace_callback(None)
    assert read == [*first.items, *last.items]
    assert [job.id for job in last.items] == [f"job-{n:05}" for n in range(LAST, JOBS)]
    assert of_last - of_first <= 4 * LAST  # a few steps for each id that is passed over
    [listing] = {sql for sql in statements if "OFFSET" in sql and str(LAST) in sql}
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {listing}")]
    assert [step for step in plan if "mainspring_jobs" in step] == [
        "SEARCH mainspring_jobs USING INTEGER PRIMARY KEY (rowid=?)",
        "SCAN mainspring_jobs USING COVERING INDEX sqlite_autoindex_mainspring_jobs_1",
    ]


async def test_reads_commit_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    clock = FakeClock()
    async with opened(path, clock) as store:
        await store.add([a_run("one", run_at=clock.now())])
        await store.claim(a_claim())
        clock.advance(60)
        other = sqlite3.connect(path)
        version = "PRAGMA data_version"
        before = other.execute(version).fetchone()
        for query in (RunQuery(lapsed=True), RunQuery(set_aside=True), RunQuery(brief=True)):
            await store.find(query)
        await store.counts()
        await store.jobs(JobQuery())
        await store.notes(NoteQuery())
        assert other.execute(version).fetchone() == before
        await store.add([a_run("two")])
        assert other.execute(version).fetchone() != before
        other.close()
