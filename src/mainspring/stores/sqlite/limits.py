"""The concurrency and rate limits of jobs, and what is used of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from mainspring.core import note_kinds
from mainspring.stores.limits import ClaimLimits
from mainspring.stores.protocol import NoteQuery
from mainspring.stores.sql import read_limits, stored_concurrency
from mainspring.stores.sqlite.notes import find as find_notes
from mainspring.stores.sqlite.statements import one_value

_LIMIT_OF_JOB = "SELECT json_array(concurrency, limit_key, rate) FROM mainspring_jobs WHERE id = ?"
# A limit of one job is counted by the job. A limit that jobs share is counted by what is running,
# because a key may have thousands of jobs, and all of them would be looked up.
_USED = """
SELECT json_group_array(json_array(key, used)) FROM (
    SELECT own.value AS key, (
        SELECT count(*) FROM mainspring_runs INDEXED BY mainspring_runs_running
        WHERE state = 'running' AND job_id = substr(own.value, 5) AND lease_until > ?1
    ) AS used
    FROM json_each(?2) AS own
    UNION ALL
    SELECT job.limit_key, count(*)
    FROM mainspring_runs AS run INDEXED BY mainspring_runs_running
    CROSS JOIN mainspring_jobs AS job ON job.id = run.job_id
    WHERE ?3 <> '[]' AND run.state = 'running' AND run.lease_until > ?1
    AND job.limit_key IN (SELECT value FROM json_each(?3))
    GROUP BY job.limit_key
)
"""


def has_capacity(connection: sqlite3.Connection, job_id: str, now: int) -> bool:
    """Whether the concurrency limit of the job allows one more run."""
    row = connection.execute(_LIMIT_OF_JOB, (job_id,)).fetchone()
    if row is None:
        return True
    most, key, _ = json.loads(row[0])
    if most is None:
        return True
    limit = stored_concurrency(job_id, most, key)
    return _count_used(connection, [limit.key], now).get(limit.key, 0) < limit.most


def add_limits(
    connection: sqlite3.Connection, limits: ClaimLimits, kept: Mapping[str, list[Any]], now: int
) -> None:
    """Add the limits of further jobs, with what is used of them."""
    concurrency, rates = read_limits(kept)
    keys = {limit.key for limit in concurrency.values()} - limits.counted
    limits.add(concurrency, dict.fromkeys(keys, 0) | _count_used(connection, keys, now))
    names = frozenset(limit.name for limit in rates.values())
    if names:
        query = NoteQuery(kind=note_kinds.RATE, names=names, limit=len(names))
        limits.rates.add(rates, find_notes(connection, query, now).items)


def _count_used(connection: sqlite3.Connection, keys: Iterable[str], now: int) -> dict[str, int]:
    """How many running runs with valid leases count for each limit."""
    own = sorted(key for key in keys if key.startswith("job:"))
    shared = sorted(key for key in keys if key.startswith("key:"))
    if not own and not shared:
        return {}
    return dict(
        json.loads(one_value(connection, _USED, (now, json.dumps(own), json.dumps(shared))))
    )
