"""10,000 jobs listed by page: what SQLite does for it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mainspring.model import Job, Page
from mainspring.store import JobQuery
from mainspring.stores.sqlite import reads, rows, schema
from mainspring.stores.sqlite.lock import TurnLock
from mainspring.stores.sqlite.rows import _read_jobs, job_row
from tests.unit.sqlite_kit import a_job

JOBS = 10_000
LIMIT = 20
LAST = JOBS - LIMIT


def filled(path: Path, count: int) -> sqlite3.Connection:
    connection = schema.connect(path, create=True)
    schema.migrate(connection, path, TurnLock(path.with_suffix(".lock"), 1))
    row = job_row(a_job("job"))
    columns = ", ".join(row)
    made = [tuple({**row, "id": f"job-{n:05}"}.values()) for n in range(count)]
    marks = ", ".join("?" * len(row))
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO mainspring_jobs ({columns}) VALUES ({marks})", made)
    connection.execute("COMMIT")
    return connection


def worked(connection: sqlite3.Connection, offset: int) -> tuple[Page[Job], int]:
    """A page, and how many steps of SQLite's machine it took."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(step, 1)
    try:
        page = reads.jobs(connection, JobQuery(limit=LIMIT, offset=offset, counted=True))
    finally:
        connection.set_progress_handler(None, 1)
    return page, steps


def test_the_first_page_costs_the_same_of_many_jobs_as_of_few(tmp_path: Path) -> None:
    few, of_few = worked(filled(tmp_path / "few.db", 100), 0)
    many, of_many = worked(filled(tmp_path / "many.db", JOBS), 0)
    assert (few.total, many.total) == (100, JOBS)
    assert many.items == few.items
    assert of_many <= of_few + 10


def test_the_last_page_steps_over_ids_and_reads_no_job_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = filled(tmp_path / "jobs.db", JOBS)
    read: list[Job] = []

    def watched(text: Any) -> list[Job]:
        found = _read_jobs(text)
        read.extend(found)
        return found

    monkeypatch.setattr(rows, "_read_jobs", watched)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    first, of_first = worked(connection, 0)
    last, of_last = worked(connection, LAST)
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
