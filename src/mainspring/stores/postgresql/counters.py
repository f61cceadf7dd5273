"""Counters of ended runs. A commit appends what it counts to a log, so that no commit waits for
another one; `fold` adds the log up, and a read adds what is not added up yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from mainspring.core.statistics import PERIODS_KEPT, Ending
from mainspring.stores.codec import from_us, to_us
from mainspring.stores.counters import (
    Counted,
    Key,
    add,
    add_to,
    added_by,
    counts_of,
    decode,
    encode,
    first_start,
)
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.protocol import Counts

_US = timedelta(microseconds=1)
MOST_FOLDED = 2000


async def count(tx: Transaction, endings: Iterable[Ending | None]) -> None:
    counted = [ending for ending in endings if ending is not None]
    if counted:
        added = added_by(counted, tx.time)
        body = [[job_id, to_us(start), encode(more)] for (job_id, start), more in added.items()]
        await tx.changed(
            "INSERT INTO mainspring.counter_log (body) VALUES (%s)", [json.dumps(body)]
        )


_READ = """
SELECT job_id, start, body, NULL FROM mainspring.counters
WHERE job_id = ANY(%s) AND start = 0
UNION ALL
SELECT counted.job_id, counted.start, counted.body, NULL
FROM unnest(%s::text[], %s::bigint[]) AS wanted (job_id, start)
JOIN mainspring.counters AS counted
ON counted.job_id = wanted.job_id AND counted.start >= wanted.start
UNION ALL
SELECT NULL, NULL, NULL, body FROM mainspring.counter_log
"""


async def read(tx: Transaction, since: datetime | None, jobs: frozenset[str]) -> Counts:
    names = sorted(jobs)
    never = 2**62
    starts = {job: never if since is None else to_us(first_start(job, since)) for job in names}
    rows = await tx.rows(_READ, [names, names, list(starts.values())])
    found: dict[Key, Counted] = {}
    for job, start, body, logged in rows:
        for job_id, at, text in [(job, start, body)] if logged is None else json.loads(logged):
            if job_id not in starts or (at != 0 and at < starts[job_id]):
                continue
            key = job_id, from_us(at)
            counted = decode(key, text)
            if counted is not None:
                found[key] = add(found.get(key), counted)
    return counts_of(found)


_TAKE_LOG = f"""
DELETE FROM mainspring.counter_log WHERE seq IN (
    SELECT seq FROM mainspring.counter_log ORDER BY seq LIMIT {MOST_FOLDED} FOR UPDATE SKIP LOCKED
) RETURNING seq, body
"""
_KEYS = "unnest(%s::text[], %s::bigint[]) AS wanted (job_id, start)"
_STORED = f"""
SELECT counted.job_id, counted.start, counted.body FROM {_KEYS}
JOIN mainspring.counters AS counted USING (job_id, start)
ORDER BY counted.job_id, counted.start FOR UPDATE OF counted
"""
_PUT = """
INSERT INTO mainspring.counters (job_id, start, body)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS added ORDER BY 1, 2
ON CONFLICT (job_id, start) DO UPDATE SET body = excluded.body
"""
_LOCK_COUNTERS = "SELECT 1 FROM mainspring.meta WHERE name = 'version' FOR UPDATE"


async def fold(tx: Transaction) -> int:
    """Add the log up; return how many rows it had. One client at a time does this."""
    await tx.rows(_LOCK_COUNTERS)
    rows = sorted(await tx.rows(_TAKE_LOG))
    added: dict[Key, Counted] = {}
    for _, body in rows:
        for job_id, start, text in json.loads(body):
            key = job_id, from_us(start)
            counted = decode(key, text)
            if counted is not None:
                added[key] = add(added.get(key), counted)
    keys = sorted(added)
    names = [job_id for job_id, _ in keys]
    starts = [to_us(start) for _, start in keys]
    stored = {(job, from_us(at)): text for job, at, text in await tx.rows(_STORED, [names, starts])}
    texts = [
        add_to(key, stored[key], added[key]) if key in stored else encode(added[key])
        for key in keys
    ]
    kept = [row for row in zip(names, starts, texts, strict=True) if row[2] is not None]
    if kept:
        await tx.changed(_PUT, [list(column) for column in zip(*kept, strict=True)])
    return len(rows)


async def drop(tx: Transaction, job_ids: Sequence[str]) -> None:
    """Delete the counts of these jobs, also what is not added up yet."""
    while await fold(tx) == MOST_FOLDED:
        pass
    await tx.changed("DELETE FROM mainspring.counters WHERE job_id = ANY(%s)", [list(job_ids)])


async def prune(tx: Transaction) -> None:
    """Delete the totals of jobs that are gone, and periods that are over for long."""
    await fold(tx)
    await tx.changed(
        "DELETE FROM mainspring.counters WHERE start > 0 AND start < %s",
        [tx.now - PERIODS_KEPT // _US],
    )
    await tx.changed(
        "DELETE FROM mainspring.counters AS counted WHERE start = 0 AND job_id <> '' AND NOT EXISTS"
        " (SELECT 1 FROM mainspring.jobs AS job WHERE job.id = counted.job_id)"
    )
