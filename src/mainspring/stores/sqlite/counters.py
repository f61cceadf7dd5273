"""Counters of ended runs: a row for the totals of each job, and one for each of its periods.

A transaction that stores ends appends them to a log: one row, however many jobs and runs there are.
To read and write the rows of each job in every commit took a fifth of the time of a slot. `fold`
adds the log up later; until then, whoever reads the counters adds it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from mainspring.core.statistics import PERIODS_KEPT, WHOLE_STORE, Ending
from mainspring.stores.codec import from_us, json_text, to_us
from mainspring.stores.counters import (
    TOTALS,
    Key,
    add,
    add_to,
    added_by,
    counts_of,
    decode,
    encode,
    first_start,
)
from mainspring.stores.protocol import Counts
from mainspring.stores.sqlite.codec import span_us
from mainspring.stores.sqlite.statements import WriteTransaction, bulk, one_value, select

IDLE_FOLD, BUSY_FOLD = 5_000, 20_000
"""Ends in the log that an idle writer adds up, and that are added up in any case. Whoever reads
counters reads the log too, at 0.3 µs an end, and adds up the ends of their jobs, at 2 µs."""

_read_endings = msgspec.json.Decoder(list[Ending]).decode


def count(tx: WriteTransaction, endings: Sequence[Ending]) -> None:
    """Count ends that this transaction stores, in this order."""
    if endings:
        logged = tx.value(_APPEND, len(endings), json_text(endings))
        if logged >= BUSY_FOLD:
            fold(tx)


_APPEND = """
INSERT INTO mainspring_counter_log (seq, body)
VALUES ((SELECT coalesce(max(seq), 0) FROM mainspring_counter_log) + ?, ?) RETURNING seq
"""
"""The last `seq` is the number of ends in the log."""


def count_logged(connection: sqlite3.Connection) -> int:
    return int(one_value(connection, "SELECT coalesce(max(seq), 0) FROM mainspring_counter_log"))


def fold(tx: WriteTransaction) -> None:
    """Add up the log."""
    added = added_by(_log(tx.connection), tx.time)
    keys = [(job_id, to_us(start)) for job_id, start in added]
    kept = [row for text in select(tx.connection, _STORED, keys) for row in json.loads(text)]
    stored = {(job, from_us(start)): body for job, start, body in kept}
    rows = [
        (*row, text)
        for row, (key, more) in zip(keys, added.items(), strict=True)
        if (text := add_to(key, stored[key], more) if key in stored else encode(more)) is not None
    ]
    bulk(tx.connection, _PUT, rows)
    tx.changed("DELETE FROM mainspring_counter_log")


def _log(connection: sqlite3.Connection) -> Iterator[Ending]:
    """The ends that are not added up yet, in the order in which they were stored."""
    for text in json.loads(one_value(connection, _LOG)):
        with suppress(msgspec.MsgspecError, ValueError):
            yield from _read_endings(text)


_LOG = """
SELECT json_group_array(body) FROM (SELECT body FROM mainspring_counter_log ORDER BY seq)
"""
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


def read(
    connection: sqlite3.Connection, now: int, since: datetime | None, jobs: frozenset[str]
) -> Counts:
    """Costs what it gives, one look-up for each job and one for each period, and the log."""
    firsts = {job: None if since is None else first_start(job, since) for job in jobs}
    starts = [[job, None if first is None else to_us(first)] for job, first in firsts.items()]
    text = one_value(connection, READ, [json.dumps(starts)])
    texts: dict[Key, str] = {(job, from_us(start)): body for job, start, body in json.loads(text)}
    counted = {key: decode(key, body) for key, body in texts.items()}
    for key, more in added_by(_of_jobs(_log(connection), jobs), from_us(now)).items():
        job_id, start = key
        first = firsts.get(job_id)
        is_wanted = start == TOTALS or (first is not None and start >= first)
        if job_id in jobs and is_wanted and counted.get(key, more) is not None:
            counted[key] = add(counted.get(key), more)
    return counts_of({key: value for key, value in counted.items() if value is not None})


def _of_jobs(endings: Iterable[Ending], jobs: frozenset[str]) -> Iterable[Ending]:
    return endings if WHOLE_STORE in jobs else (end for end in endings if end.job_id in jobs)


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
    if job_ids:
        fold(tx)  # also what is not added up yet
    bulk(tx.connection, _DROP, [(job_id,) for job_id in job_ids])


_DROP = ("DELETE FROM mainspring_counters WHERE job_id IN (VALUES ", ")", 1)


def prune(tx: WriteTransaction) -> None:
    """Delete the totals of jobs that are gone, and periods that are over for long."""
    fold(tx)
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
