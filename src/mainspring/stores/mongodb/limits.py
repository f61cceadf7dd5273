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

The starts under a rate limit are counted in a note (`stores/rates.py`). A claim reads the note and
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
from mainspring.core.clock import to_us
from mainspring.stores.mongodb import notes
from mainspring.stores.mongodb.collections import BY_ID, Database, Document
from mainspring.stores.mongodb.server_clock import until
from mainspring.stores.mongodb.transaction import WriteConflict
from mainspring.stores.protocol import NoteQuery
from mainspring.stores.rates import RateAllowance, RateLimit


@dataclass(slots=True)
class FreeCapacity:
    """How many more runs each limited job may have. Before `count`, this is all that its limit
    allows."""

    limits: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The number of runs and the key of the limit, by job."""
    sharing: dict[str, str] = field(default_factory=dict)
    """The key of the limit of every job that shares one of these limits."""
    used: Counter[str] = field(default_factory=Counter)
    rates: RateAllowance = field(default_factory=lambda: RateAllowance({}))
    """What the rate limits of these jobs allow."""
    rate_limits: dict[str, RateLimit] = field(default_factory=dict)

    @property
    def limited(self) -> set[str]:
        """The jobs that have a limit of either kind."""
        return self.limits.keys() | self.rate_limits.keys()

    def left(self, job_id: str) -> bool:
        most_runs, key = self.limits.get(job_id, (1, ""))
        return (not key or self.used[key] < most_runs) and self.rates.allows(job_id)

    def take(self, job_id: str) -> None:
        self.rates.take(job_id)
        if job_id in self.limits:
            self.used[self.limits[job_id][1]] += 1

    async def count(self, db: Database) -> None:
        """Count the running runs. In a transaction, mark those with a lapsed lease `evicted`."""
        self.used = Counter()
        if not self.limits:
            return
        shown = {"job_id": 1, "evicted": 1, "lapsed": lapsed_condition(db)}
        where = {"state": "running", "job_id": {"$in": list(self.sharing)}}
        over = []
        async for run in db.runs.find(where, shown, session=db.session):
            if not run["lapsed"]:
                self.used[self.sharing[run["job_id"]]] += 1
            elif not run.get("evicted"):
                over.append(run["_id"])
        if over and db.session is not None:
            ids, mark = {"_id": {"$in": over}}, {"$set": {"evicted": True}}
            await db.runs.update_many(ids, mark, hint=BY_ID, session=db.session)

    async def lock(self, db: Database, job_ids: Iterable[str]) -> None:
        """Make every other transaction that counts for the limits of these jobs conflict with this
        one."""
        for key in sorted({self.limits[job_id][1] for job_id in job_ids if job_id in self.limits}):
            mark = {"$set": {"mark": ObjectId()}}
            await db.limits.update_one({"_id": key}, mark, upsert=True, session=db.session)


async def read_limits(db: Database, job_ids: Iterable[str], at: int | None = None) -> FreeCapacity:
    """The limits of these jobs, and who shares them. `at`: the moment at which the first of their
    runs would start, where that is not now."""
    capacity = FreeCapacity()
    asked = list(job_ids)
    if not asked:
        return capacity
    limited = {"_id": {"$in": asked}, "limit": {"$exists": True}}
    async for job in db.jobs.find(limited, {"limit": 1}, session=db.session):
        if (rate := _read_rate_limit(job)) is not None:
            capacity.rate_limits[job["_id"]] = rate
        if rate is None or job["limit"].get("most") is not None:
            capacity.limits[job["_id"]] = _read_limit(job)
    capacity.rates = await _read_rates(db, capacity.rate_limits, at)
    capacity.sharing = {job_id: key for job_id, (_, key) in capacity.limits.items()}
    shared = sorted({key for key in capacity.sharing.values() if key.startswith("key:")})
    if shared:
        found = db.jobs.find({"limit.key": {"$in": shared}}, {"limit": 1}, session=db.session)
        capacity.sharing |= {job["_id"]: job["limit"]["key"] async for job in found}
    return capacity


def _read_limit(job: Document) -> tuple[int, str]:
    """The number of runs and the key. A damaged limit allows no runs."""
    limit = job["limit"] if isinstance(job["limit"], dict) else {}
    most_runs, key = limit.get("most"), limit.get("key")
    if isinstance(most_runs, int) and isinstance(key, str) and key:
        return most_runs, key
    return 0, f"job:{job['_id']}"


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
    now = to_us(await db.now())
    names = frozenset(limit.name for limit in limits.values())
    query = NoteQuery(kind=note_kinds.RATE, names=names, limit=len(names))
    counts = (await notes.find(db, query)).items
    return RateAllowance(limits, counts, now if at is None else min(at, now))


async def count_starts(db: Database, rates: RateAllowance) -> None:
    """Count what was taken, in a transaction. `WriteConflict`: others count at this moment."""
    writes = rates.writes(to_us(await db.now()))
    for write in writes:
        if await notes.put(db, write) is None:
            raise WriteConflict


def _read_rate_limit(job: Document) -> RateLimit | None:
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
