"""Listing 10,000 jobs by page: what the server examines."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainspring.core.model import Job, replace
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.codec import job_document
from mainspring.stores.protocol import JobQuery

JOBS = 10_000
LIMIT = 20
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("page", [1, JOBS // LIMIT], ids=["first", "last"])
async def test_a_page_reads_its_own_jobs_alone(database_url: str, page: int) -> None:
    store = MongoStore(database_url)
    await store.open()
    db = store._db
    ids = [f"job-{n:05}" for n in range(JOBS)]
    job = Job(id="", handler="work", created_at=LONG_AGO, updated_at=LONG_AGO)
    await db.jobs.insert_many([job_document(replace(job, id=job_id)) for job_id in ids])
    await db.handle.command("profile", 2)
    offset = (page - 1) * LIMIT
    listed = await store.jobs(JobQuery(limit=LIMIT, offset=offset, with_total=True))
    await db.handle.command("profile", 0)
    assert [job.id for job in listed.items] == ids[offset : offset + LIMIT]
    assert listed.total == JOBS
    profiled = db.handle["system.profile"].find({"ns": db.jobs.full_name})
    examined = {(op["docsExamined"], op["keysExamined"]) async for op in profiled}
    assert examined == {(0, JOBS), (LIMIT, offset + LIMIT)}  # the total and the page, at once
    await store.close()
