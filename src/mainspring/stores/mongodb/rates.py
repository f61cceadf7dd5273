"""Rate limits: what may start now, and the count of what was started.

The count of each limit is a note (`stores/rates.py`). A claim reads it and writes it in the
transaction that takes its runs, so of two claims that count at the same time one meets a write
conflict and counts again. The moment that is compared is the earliest at which one of the runs
starts; the moment that is counted is that of the transaction, which is no earlier.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.core import note_kinds
from mainspring.core.clock import to_us
from mainspring.stores.mongodb import notes
from mainspring.stores.mongodb.collections import Database, Document
from mainspring.stores.mongodb.transaction import WriteConflict
from mainspring.stores.protocol import NoteQuery
from mainspring.stores.rates import RateAllowance, RateLimit

__all__ = ["count_starts", "read_rate_limit", "read_rates"]


async def read_rates(
    db: Database, limits: Mapping[str, RateLimit], at: int | None = None
) -> RateAllowance:
    """What these limits, by job, allow now, or at an earlier moment."""
    if not limits:
        return RateAllowance({})
    now = to_us(await db.now())
    names = frozenset(limit.name for limit in limits.values())
    query = NoteQuery(kind=note_kinds.RATE, names=names, limit=len(names))
    found = (await notes.find(db, query)).items
    return RateAllowance(limits, found, now if at is None else min(at, now))


async def count_starts(db: Database, rates: RateAllowance) -> None:
    """Count what was taken, in a transaction. `WriteConflict`: others count at this moment."""
    writes = rates.writes(to_us(await db.now()))
    for write in writes:
        if await notes.put(db, write) is None:
            raise WriteConflict


def read_rate_limit(job: Document) -> RateLimit | None:
    """The rate limit in a job's document. A damaged one counts as 0 starts, so no run of the job is
    claimed."""
    limit = job["limit"] if isinstance(job["limit"], dict) else {}
    rate = limit.get("rate")
    if rate is None:
        return None
    try:
        name, most, span = rate
        return RateLimit(str(name), int(most), int(span))
    except (TypeError, ValueError):
        return RateLimit(f"job:{job['_id']}", 0, 60_000_000)
