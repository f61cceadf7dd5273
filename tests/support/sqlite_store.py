"""Makes runs, jobs, claims and stores for tests of the SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mainspring.core.clock import Clock
from mainspring.core.model import Job, Run
from mainspring.core.policy import Policy
from mainspring.stores.protocol import Claim, RunQuery
from mainspring.stores.sqlite import SqliteStore

START = datetime(2030, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def opened(path: Path, clock: Clock | None = None) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def a_run(run_id: str, **fields: Any) -> Run:
    """A run that is due, by any clock of these tests."""
    given: dict[str, Any] = {
        "job_id": "job",
        "handler": "handler",
        "created_at": LONG_AGO,
        "scheduled_at": LONG_AGO,
        "run_at": LONG_AGO,
    }
    return Run(id=run_id, **(given | fields))


def a_job(job_id: str, *, version: int = 0, **policy: Any) -> Job:
    return Job(
        id=job_id,
        handler="handler",
        created_at=LONG_AGO,
        updated_at=LONG_AGO,
        policy=Policy.make(**policy),
        version=version,
    )


def a_claim(**fields: Any) -> Claim:
    given: dict[str, Any] = {
        "worker": "worker",
        "handlers": frozenset({"handler"}),
        "limit": 100,
        "lease": timedelta(seconds=30),
    }
    return Claim(**(given | fields))


async def ids_of(store: SqliteStore) -> list[str]:
    """Every run's id, oldest first."""
    page = await store.find(RunQuery(limit=100_000))
    return [run.id for run in reversed(page.items)]


def sql(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()
