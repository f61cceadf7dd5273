"""Limits: how many runs of a job, or of jobs that share a key, may be running, and how many may
start in a span of time; and the renewal of leases, which counts where a lease has lapsed.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from bson import ObjectId
from pymongo import UpdateMany

from mainspring.core import note_kinds
from mainspring.stores.codec import progress_text
from mainspring.stores.mongodb import notes
from mainspring.stores.mongodb.database import BY_ID, Database, Document, chunks, span_us, until
from mainspring.stores.mongodb.transaction import WriteConflict, in_transaction
from mainspring.stores.protocol import Held, NoteQuery, Renewed
from mainspring.stores.rates import RateAllowance, RateLimit
from mainspring.stores.turns import ConcurrencyLimit

TRIES = 20
_RENEWED_FIELDS = {"cancel_requested": 1, "reason": 1}
_LEASE_FIELDS = dict.fromkeys(("job_id", "token", "leased_at", "evicted"), 1)


@dataclass(slots=True)
class FreeCapacity:
    """How many more runs each limited job may have. Before `count`, this is all that its limit
    allows."""

    limits: dict[str, ConcurrencyLimit] = field(default_factory=dict)
    """By job."""
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
        limit = self.limits.get(job_id)
        fits = limit is None or self.used[limit.key] < limit.most
        return fits and self.rates.allows(job_id)

    def take(self, job_id: str) -> None:
        self.rates.take(job_id)
        if job_id in self.limits:
            self.used[self.limits[job_id].key] += 1

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
        keys = {self.limits[job_id].key for job_id in job_ids if job_id in self.limits}
        for key in sorted(keys):
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
        limit = job["limit"] if isinstance(job["limit"], dict) else {}
        if "rate" in limit:
            capacity.rate_limits[job["_id"]] = _read_rate_limit(job["_id"], limit["rate"])
        if "rate" not in limit or limit.get("most") is not None:
            capacity.limits[job["_id"]] = _read_limit(job["_id"], limit)
    capacity.rates = await _read_rates(db, capacity.rate_limits, at)
    capacity.sharing = {job_id: limit.key for job_id, limit in capacity.limits.items()}
    shared = sorted({key for key in capacity.sharing.values() if key.startswith("key:")})
    if shared:  # read from the index alone: many jobs may share a key
        shown = {"limit.key": 1}
        jobs = db.jobs.find({"limit.key": {"$in": shared}}, shown, session=db.session)
        capacity.sharing |= {job["_id"]: job["limit"]["key"] async for job in jobs}
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


# -- renewals -------------------------------------------------------------------------------


async def renew_leases(db: Database, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
    kept: dict[str, Renewed] = {}
    for part in chunks(held):
        kept |= await _renew(db, {item.id: item for item in part}, span_us(lease))
    return [kept[item.id] for item in held if item.id in kept]


async def _renew(db: Database, held: Mapping[str, Held], lease: int) -> dict[str, Renewed]:
    nonce = ObjectId()
    kept: dict[str, Renewed] = {}
    left = dict(held)
    for _ in range(TRIES):
        mine = await _mine(db, left.values())
        if not mine:
            break
        items = [left[run_id] for run_id in mine]
        lapsed_jobs = {job_of(run) for run in mine.values() if _has_lapsed(run)}
        if (await read_limits(db, lapsed_jobs)).limits:
            await in_transaction(db, partial(_extend_within_limits, items, lease, nonce))
        else:
            await _extend(db, [(left[run_id], run) for run_id, run in mine.items()], lease, nonce)
        done = {"_id": {"$in": list(mine)}, "state": "running", "renewed": nonce}
        async for run in db.runs.find(done, _RENEWED_FIELDS, hint=BY_ID):
            wish = bool(run.get("cancel_requested"))
            kept[run["_id"]] = Renewed(run["_id"], wish, run.get("reason"))
        left = {run_id: left[run_id] for run_id in mine if run_id not in kept}
        if not left:
            break
    return kept


async def _mine(db: Database, held: Iterable[Held]) -> dict[str, Document]:
    """Those that are running under the token held."""
    tokens = {item.id: item.token for item in held}
    where = {"_id": {"$in": list(tokens)}, "state": "running"}
    shown = {**_LEASE_FIELDS, "lapsed": lapsed_condition(db)}
    walk = db.runs.find(where, shown, hint=BY_ID, session=db.session)
    return {run["_id"]: run async for run in walk if run.get("token") == tokens[run["_id"]]}


def _has_lapsed(run: Document) -> bool:
    return bool(run["lapsed"] or run.get("evicted"))


async def _extend_within_limits(
    held: Iterable[Held], lease: int, nonce: ObjectId, db: Database
) -> None:
    """Extend the leases that are valid, have no limit, or fit under their limit. Called in a
    transaction."""
    items = {item.id: item for item in held}
    seen = await _mine(db, items.values())
    jobs = {job_of(run) for run in seen.values() if _has_lapsed(run)}
    capacity = await read_limits(db, jobs)
    await capacity.lock(db, jobs)
    await capacity.count(db)
    kept = []
    for run_id, run in seen.items():
        if _has_lapsed(run):
            if not capacity.left(job_of(run)):
                continue
            capacity.take(job_of(run))
        kept.append((items[run_id], run))
    if kept:
        await _extend(db, kept, lease, nonce)


async def _extend(
    db: Database, runs: Sequence[tuple[Held, Document]], lease: int, nonce: ObjectId
) -> None:
    """Extend leases. A lapsed one is extended only if nobody has renewed it since it was read."""
    groups: dict[Any, list[str]] = {}
    updates: list[tuple[Document, Document]] = []
    for item, run in runs:
        progress = progress_text(item.progress)
        if not _has_lapsed(run):
            groups.setdefault((item.token, progress), []).append(item.id)
            continue
        seen = {"leased_at": run["leased_at"]}
        where = {"_id": item.id, "state": "running", "token": item.token, **seen}
        change = _extension(db, lease, nonce, progress)
        updates.append((where, {**change, "$unset": {"evicted": ""}}))
    for (token, progress), ids in groups.items():
        alike = {"_id": {"$in": ids}, "state": "running", "token": token, "evicted": None}
        updates.append((alike, _extension(db, lease, nonce, progress)))
    operations = [UpdateMany(where, change, hint=BY_ID) for where, change in updates]
    await db.runs.bulk_write(operations, ordered=False, session=db.session)


def _extension(db: Database, lease: int, nonce: ObjectId, progress: str | None) -> Document:
    put = {"lease": lease, "renewed": nonce, "progress": progress}
    return db.time.stamped({"$set": put}, "leased_at")
