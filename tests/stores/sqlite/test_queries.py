"""Listing 10,000 jobs by page: what SQLite reads."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from mainspring.core.model import Job, Page
from mainspring.stores.protocol import JobQuery
from mainspring.stores.sqlite import queries, schema
from mainspring.stores.sqlite.codec import JOB_COLUMNS, job_row
from mainspring.stores.sqlite.files import FileLock
from tests.support.sqlite_store import a_job

JOBS = 10_000
LIMIT = 20


def filled(path: Path, count: int) -> sqlite3.Connection:
    connection = schema.connect(path, create=True)
    schema.migrate(connection, path, FileLock(path.with_suffix(".lock"), 1))
    insert(connection, [a_job(f"job-{n:05}") for n in range(count)])
    return connection


def insert(connection: sqlite3.Connection, jobs: list[Job]) -> None:
    marks = ", ".join("?" * len(JOB_COLUMNS))
    sql = f"INSERT INTO mainspring_jobs ({', '.join(JOB_COLUMNS)}) VALUES ({marks})"
    connection.execute("BEGIN")
    connection.executemany(sql, map(job_row, jobs))
    connection.execute("COMMIT")


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
