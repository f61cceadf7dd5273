"""Limits: how many runs of a job, or of jobs that share a key, may be running, and how many may
start in a span of time.

A query counts the running runs with a valid lease. So no client has to give capacity back, limits
may be set and changed while runs are running, and a crashed worker uses capacity no longer than its
lease lasts.

A claim, or the renewal of a lapsed lease, counts and writes in one transaction. It also writes the
document of the limit: `{_id: "job:mail", mark: ObjectId}`. Otherwise two such transactions at the
same time would each count without the other's runs. As both write that document, one of them meets
a write conflict and counts again.

A run with a lapsed lease does not count, but its worker might renew the lease at this moment,
outside of any transaction. So the counting transaction marks the run `evicted`. Either the renewal
came first, and the mark meets a write conflict. Or the renewal finds the mark, and counts too.

The starts under a rate limit are counted in a note (`stores/limits.py`). A claim reads the note and
writes it in the transaction that takes its runs, so of two claims that count at the same time one
meets a write conflict and counts again. The moment that is compared is the earliest at which one of
the runs starts; the moment that is counted is that of the transaction, which is no earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bson import ObjectId

from mainspring.core import note_kinds
from mainspring.stores.limits import ConcurrencyLimit, RateAllowance, RateLimit
from mainspring.stores.mongodb import notes
from mainspring.stores.mongodb.database import BY_ID, Database, Document, until
from mainspring.stores.mongodb.transaction import WriteConflict
from mainspring.stores.protocol import NoteQuery


@dataclass(slots=True)
class FreeCapacity:
    """How many more runs each limited job may have. Before `count`, this is all that its limit
    allows."""

    limits: dict[str, ConcurrencyLimit] = field(default_factory=dict)
    """By job."""
    used: Counter[str] = field(default_factory=Counter)
    rates: RateAllowance = field(default_factory=lambda: RateAllowance({}))
    """What the rate limits of these jobs allow."""
    rate_limits: dict[str, RateLimit] = field(default_factory=dict)

    @property
    def limited(self) -> set[str]:
        """The jobs that have a limit of either kind."""
        return self.limits.keys() | self.rate_limits.keys()

    def left(self, job_id: str) -> bool:
        limit = self.limits.get(job_id)
        fits = limit is None or self.used[limit.key] < limit.most
        return fits and self.rates.allows(job_id)

    def take(self, job_id: str) -> None:
        self.rates.take(job_id)
        if job_id in self.limits:
            self.used[self.limits[job_id].key] += 1

    async def count(self, db: Database) -> None:
        """Count the running runs. In a transaction, mark those with a lapsed lease `evicted`.

        A limit that jobs share is counted by all that is running: a key may have thousands of jobs.
        """
        self.used = Counter()
        if not self.limits:
            return
        keys = {job_id: limit.key for job_id, limit in self.limits.items()}
        shared = sorted({key for key in keys.values() if key.startswith("key:")})
        where: Document = {"state": "running"}
        if not shared:
            where["job_id"] = {"$in": list(keys)}
        shown = {"job_id": 1, "evicted": 1, "lapsed": lapsed_condition(db)}
        running = await db.runs.find(where, shown, session=db.session).to_list()
        if shared:
            ids = {"$in": list({job_of(run) for run in running})}
            sharing = {"_id": ids, "limit.key": {"$in": shared}}
            jobs = db.jobs.find(sharing, {"limit.key": 1}, hint=BY_ID, session=db.session)
            keys |= {job["_id"]: job["limit"]["key"] async for job in jobs}
        lapsed = []
        for run in running:
            if (key := keys.get(job_of(run))) is None:
                continue
            if not run["lapsed"]:
                self.used[key] += 1
            elif not run.get("evicted"):
                lapsed.append(run["_id"])
        if lapsed and db.session is not None:
            mark = {"$set": {"evicted": True}}
            by_ids = {"_id": {"$in": lapsed}}
            await db.runs.update_many(by_ids, mark, hint=BY_ID, session=db.session)

    async def lock(self, db: Database, job_ids: Iterable[str]) -> None:
        """Make every other transaction that counts for the limits of these jobs conflict with this
        one."""
        keys = {self.limits[job_id].key for job_id in job_ids if job_id in self.limits}
        for key in sorted(keys):
            mark = {"$set": {"mark": ObjectId()}}
            await db.limits.update_one({"_id": key}, mark, upsert=True, session=db.session)


async def read_limits(db: Database, job_ids: Iterable[str], at: int | None = None) -> FreeCapacity:
    """The limits of these jobs. `at`: the moment at which the first of their
    runs would start, where that is not now."""
    capacity = FreeCapacity()
    asked = list(job_ids)
    if not asked:
        return capacity
    limited = {"_id": {"$in": asked}, "limit": {"$exists": True}}
    async for job in db.jobs.find(limited, {"limit": 1}, session=db.session):
        limit = job["limit"] if isinstance(job["limit"], dict) else {}
        if "rate" in limit:
            capacity.rate_limits[job["_id"]] = _read_rate_limit(job["_id"], limit["rate"])
        if "rate" not in limit or limit.get("most") is not None:
            capacity.limits[job["_id"]] = _read_limit(job["_id"], limit)
    capacity.rates = await _read_rates(db, capacity.rate_limits, at)
    return capacity


def _read_limit(job_id: str, limit: Document) -> ConcurrencyLimit:
    """A damaged limit allows no runs."""
    most, key = limit.get("most"), limit.get("key")
    if isinstance(most, int) and isinstance(key, str) and key:
        return ConcurrencyLimit(key, most)
    return ConcurrencyLimit(f"job:{job_id}", 0)


def _read_rate_limit(job_id: str, rate: Any) -> RateLimit:
    """A damaged rate counts as 0 starts, so no run of the job is claimed."""
    try:
        name, most, span = rate
        return RateLimit(str(name), int(most), int(span))
    except (TypeError, ValueError):
        return RateLimit(f"job:{job_id}", 0, 60_000_000)


def lapsed_condition(db: Database) -> Any:
    """An expression for `find`: whether a running run's lease has lapsed."""
    over = {"$lte": [until("leased_at", "lease"), db.time.now]}
    return {"$and": [{"$gt": ["$leased_at", None]}, over]}


def job_of(run: Document) -> str:
    """The id of its job, or "" if that is damaged."""
    job_id = run.get("job_id")
    return job_id if isinstance(job_id, str) else ""


# -- rates ---------------------------------------------------------------------------------


async def _read_rates(
    db: Database, limits: Mapping[str, RateLimit], at: int | None = None
) -> RateAllowance:
    """What these limits, by job, allow now, or at an earlier moment."""
    if not limits:
        return RateAllowance({})
    now = await db.now()
    names = frozenset(limit.name for limit in limits.values())
    query = NoteQuery(kind=note_kinds.RATE, names=names, limit=len(names))
    counts = (await notes.find(db, query)).items
    return RateAllowance(limits, counts, now if at is None else min(at, now))


async def count_starts(db: Database, rates: RateAllowance) -> None:
    """Count what was taken, in a transaction. `WriteConflict`: others count at this moment."""
    for write in rates.writes(await db.now()):
        if await notes.put(db, write) is None:
            raise WriteConflict
