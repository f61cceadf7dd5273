"""The least that an API over SQLite does: FastAPI validates a job, one row is inserted and synced.

python -m uvicorn bench.bare_api:app     (BARE_DATABASE names the file)
"""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
database = sqlite3.connect(os.environ.get("BARE_DATABASE", ":memory:"), isolation_level=None)
database.executescript(
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
    "CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, body TEXT NOT NULL)"
)


class Job(BaseModel):
    schedule: str
    endpoint: str
    method: str = "POST"
    headers: dict[str, str] = {}
    body: Any = None


@app.post("/api/jobs", status_code=201)
async def create(job: Job) -> dict[str, Any]:
    job_id = uuid.uuid4().hex
    database.execute("INSERT INTO jobs VALUES (?, ?)", (job_id, job.model_dump_json()))
    return {"success": True, "data": {"jobId": job_id}}


@app.post("/api/v1/jobs/bulk")
async def create_many(given: dict[str, list[Job]]) -> dict[str, Any]:
    rows = [(uuid.uuid4().hex, job.model_dump_json()) for job in given["jobs"]]
    database.execute("BEGIN")
    database.executemany("INSERT INTO jobs VALUES (?, ?)", rows)
    database.execute("COMMIT")
    return {"succeeded": len(rows)}


@app.get("/api/jobs")
async def list_jobs(page: int = 1, limit: int = 20) -> dict[str, Any]:
    sql = "SELECT id, body FROM jobs ORDER BY id LIMIT ? OFFSET ?"
    rows = database.execute(sql, (limit, (page - 1) * limit)).fetchall()
    [total] = database.execute("SELECT count(*) FROM jobs").fetchone()
    data = [{"_id": job_id, **json.loads(body)} for job_id, body in rows]
    return {"success": True, "data": data, "page": page, "limit": limit, "total": total}
