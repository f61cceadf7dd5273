"""Concurrency and rate limits, exact over all clients.

A claim that may take runs of a job with a limit locks the limit's row first, and then counts what
is running and what has started. So claims for one limit come one after the other; renewals of such
runs too, because a lease that is about to lapse must not be renewed by one client while another one
counts it as lapsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mainspring.core import note_kinds
from mainspring.stores.limits import ClaimLimits
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.postgresql.notes import find as find_notes
from mainspring.stores.protocol import NoteQuery
from mainspring.stores.sql import read_limits

_USED = """
SELECT own.key, (
    SELECT count(*) FROM mainspring.runs
    WHERE NOT done AND state = 'running' AND job_id = substr(own.key, 5) AND lease_until > %s
) FROM unnest(%s::text[]) AS own (key)
UNION ALL
SELECT job.limit_key, count(*) FROM mainspring.runs AS run
JOIN mainspring.jobs AS job ON job.id = run.job_id
WHERE NOT run.done AND run.state = 'running' AND run.lease_until > %s
AND job.limit_key = ANY(%s::text[])
GROUP BY job.limit_key
"""
_MAKE = """
INSERT INTO mainspring.limits SELECT name FROM unnest(%s::text[]) AS wanted (name) ORDER BY name
ON CONFLICT DO NOTHING
"""
_LOCK = "SELECT name FROM mainspring.limits WHERE name = ANY(%s::text[]) ORDER BY name FOR UPDATE"


async def lock(tx: Transaction, names: Iterable[str]) -> None:
    """Lock the rows of these limits, in the order of their names, and set the transaction's time
    anew: another client may have held them for long. To be called once in a transaction."""
    wanted = sorted(set(names))
    if len(await tx.rows(_LOCK, [wanted])) < len(wanted):
        await tx.changed(_MAKE, [wanted])
        await tx.rows(_LOCK, [wanted])
    tx.now = await tx.current_time()


def lock_names(kept: Mapping[str, Sequence[Any]]) -> list[str]:
    """The names of the rows that the limits of these jobs have."""
    concurrency, rates = read_limits(kept)
    running = [f"running {limit.key}" for limit in concurrency.values()]
    return running + [f"rate {limit.name}" for limit in rates.values()]


async def add_limits(
    tx: Transaction, limits: ClaimLimits, kept: Mapping[str, Sequence[Any]], now: int
) -> None:
    """Add the limits of further jobs, with what is used of them. `kept` has for each job its
    concurrency, the key of that limit, and its rate."""
    concurrency, rates = read_limits(kept)
    keys = {limit.key for limit in concurrency.values()} - limits.counted
    names = frozenset(limit.name for limit in rates.values())
    limits.add(concurrency, dict.fromkeys(keys, 0) | await count_used(tx, keys, now))
    if names:
        query = NoteQuery(kind=note_kinds.RATE, names=names, limit=len(names))
        limits.rates.add(rates, (await find_notes(tx, query, now)).items)


async def count_used(tx: Transaction, keys: Iterable[str], now: int) -> dict[str, int]:
    """How many running runs with valid leases count for each limit."""
    own = sorted(key for key in keys if key.startswith("job:"))
    shared = sorted(key for key in keys if key.startswith("key:"))
    if not own and not shared:
        return {}
    return dict(await tx.rows(_USED, [now, own, now, shared]))
