"""Counters of ended runs: a row for the totals of each job, and one for each of its periods.

They are read and written again in the transaction that stores the ends: two statements, however
many runs have ended in it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime

from mainspring.core.statistics import PERIODS_KEPT, Ending
from mainspring.stores.codec import from_us, to_us
from mainspring.stores.counters import Key, add_to, added_by, counts_of, decode, encode, first_start
from mainspring.stores.protocol import Counts
from mainspring.stores.sqlite.codec import span_us
from mainspring.stores.sqlite.statements import WriteTransaction, bulk, one_value, select


def count(tx: WriteTransaction, endings: Sequence[Ending]) -> None:
    """Count ends that this transaction stores, in this order."""
    if not endings:
        return
    added = added_by(endings, tx.time)
    keys = [(job_id, to_us(start)) for job_id, start in added]
    kept = [row for text in select(tx.connection, _STORED, keys) for row in json.loads(text)]
    stored = {(job, from_us(start)): body for job, start, body in kept}
    rows = [
        (*row, text)
        for row, (key, more) in zip(keys, added.items(), strict=True)
        if (text := add_to(key, stored[key], more) if key in stored else encode(more)) is not None
    ]
    bulk(tx.connection, _PUT, rows)


_ROW = "json_array(job_id, start, body)"
_STORED = (
    f"SELECT json_group_array({_ROW}) FROM (VALUES ",
    ") AS v CROSS JOIN mainspring_counters ON job_id = v.column1 AND start = v.column2",
    2,
)
_PUT = (
    "INSERT OR REPLACE INTO mainspring_counters (job_id, start, body) SELECT * FROM (VALUES ",
    ") WHERE column1 IS NOT NULL",
    3,
)


def read(connection: sqlite3.Connection, since: datetime | None, jobs: frozenset[str]) -> Counts:
    """Costs what it gives: one look-up for each job, and one for each period."""
    starts = [[job, None if since is None else to_us(first_start(job, since))] for job in jobs]
    text = one_value(connection, READ, [json.dumps(starts)])
    texts: dict[Key, str] = {(job, from_us(start)): body for job, start, body in json.loads(text)}
    decoded = {key: decode(key, body) for key, body in texts.items()}
    return counts_of({key: counted for key, counted in decoded.items() if counted is not None})


READ = f"""
SELECT json_group_array({_ROW}) FROM (
    SELECT counted.* FROM json_each(?1) AS name CROSS JOIN mainspring_counters AS counted
    ON counted.job_id = name.value ->> 0 AND counted.start = 0
    UNION ALL
    SELECT counted.* FROM json_each(?1) AS name CROSS JOIN mainspring_counters AS counted
    ON counted.job_id = name.value ->> 0 AND counted.start >= name.value ->> 1
)
"""


def drop(tx: WriteTransaction, job_ids: Sequence[str]) -> None:
    bulk(tx.connection, _DROP, [(job_id,) for job_id in job_ids])


_DROP = ("DELETE FROM mainspring_counters WHERE job_id IN (VALUES ", ")", 1)


def prune(tx: WriteTransaction) -> None:
    """Delete the totals of jobs that are gone, and periods that are over for long."""
    tx.changed(PRUNE_PERIODS, tx.now - span_us(PERIODS_KEPT))
    tx.changed(PRUNE_TOTALS)


PRUNE_PERIODS = """
DELETE FROM mainspring_counters INDEXED BY mainspring_counters_start WHERE start > 0 AND start < ?
"""
PRUNE_TOTALS = """
DELETE FROM mainspring_counters INDEXED BY mainspring_counters_start
WHERE start = 0 AND job_id <> ''
AND NOT EXISTS (SELECT 1 FROM mainspring_jobs AS job WHERE job.id = mainspring_counters.job_id)
"""
