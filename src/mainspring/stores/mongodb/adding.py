"""Add: runs inserted once each, and one for each dedupe key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mainspring import codec
from mainspring.model import Run, replace
from mainspring.store import Added
from mainspring.stores.mongodb import keys
from mainspring.stores.mongodb.database import Database, Document, chunks
from mainspring.stores.mongodb.reserved import insert
from mainspring.stores.mongodb.rows import LIVE_STATES, RESERVED, read_run, run_document

__all__ = ["add", "documents", "limited_jobs"]


async def add(db: Database, runs: Sequence[Run]) -> list[Added]:
    if not runs:
        return []
    made = await documents(db, runs)
    if all(run.dedupe_key is None for run in runs):
        stored = await _insert(db, made)
        return [Added(read_run(stored[run.id])) for run in runs]
    return await _Adding(db, runs, made).answers()


async def documents(db: Database, runs: Sequence[Run]) -> list[Document]:
    """The runs as documents, in order. Refuses what cannot be kept before anything is."""
    payloads = [None if run.payload is None else codec.encode(run.payload) for run in runs]
    limited = await limited_jobs(db, {run.job_id for run in runs})
    return [
        run_document(run, payload, limited=run.job_id in limited)
        for run, payload in zip(runs, payloads, strict=True)
    ]


async def limited_jobs(db: Database, job_ids: Iterable[str]) -> set[str]:
    """Those with a limit, whose runs have lanes of their own. A lane is only the way to a run:
    the claim looks at the job again, so it does not matter if this is out of date at once."""
    found = db.jobs.find(
        {"_id": {"$in": list(job_ids)}, "limit.key": {"$exists": True}}, {"_id": 1}
    )
    return {job["_id"] async for job in found}


async def _insert(db: Database, made: Sequence[Document]) -> dict[str, Document]:
    """Insert those whose id is new; all as they are stored, by id."""
    there = await insert(db, made)
    stored: dict[str, Document] = {}
    for run in made:
        stored.setdefault(run["_id"], run)
    return stored | await _read(db, there)


async def _read(db: Database, ids: Iterable[str]) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for part in chunks(ids):
        where = {"_id": {"$in": list(part)}, "state": {"$ne": RESERVED}}
        found |= {run["_id"]: run async for run in db.runs.find(where)}
    return found


class _Adding:
    """A batch in which some runs have keys: they are decided in order."""

    def __init__(self, db: Database, runs: Sequence[Run], made: Sequence[Document]) -> None:
        self._db = db
        self._runs = runs
        self._made = {}
        for run in made:
            self._made.setdefault(run["_id"], run)
        self._stands: dict[str, Document] = {}  # by the id asked for
        self._refused: set[str] = set()

    async def answers(self) -> list[Added]:
        self._stands |= await _read(self._db, self._made)
        await self._take_at_once()
        plain: list[Document] = []
        for run in self._runs:
            made = self._made[run.id]
            if run.id in self._stands or run.id in self._refused:
                continue
            if not self._refused.isdisjoint(run.after):
                self._refused.add(run.id)
            elif run.dedupe_key is None:
                plain.append(made)
                self._stands[run.id] = made
            else:
                await self._take([made])
        self._stands |= await _insert(self._db, plain) if plain else {}
        return [self._answer(run) for run in self._runs]

    async def _take_at_once(self) -> None:
        """Those that hang on nothing in this batch: the first of each key, all together."""
        ids = self._made.keys()
        first: dict[str, Document] = {}
        for run in self._runs:
            if run.dedupe_key is not None and run.id not in self._stands:
                first.setdefault(run.dedupe_key, self._made[run.id])
        free = [r for r in first.values() if ids.isdisjoint(r.get("after", ()))]
        await self._take(free)
        held = {r["dedupe_key"]: r for r in free if self._holds(r)}
        for run in self._runs:
            made = self._made[run.id]
            holder = held.get(run.dedupe_key or "") if run.dedupe_key is not None else None
            if holder is None or holder is made or run.id in self._stands:
                continue
            if ids.isdisjoint(run.after):  # the same key again: what came first has it
                self._refused.add(run.id)
                self._stands[run.id] = self._stands[holder["_id"]]

    def _holds(self, made: Document) -> bool:
        """Whether the key is surely taken now, by this run or by the one that stands for it."""
        stands = self._stands[made["_id"]]
        return made["_id"] in self._refused or stands["state"] in LIVE_STATES

    async def _take(self, made: Sequence[Document]) -> None:
        if not made:
            return
        answers = await keys.take(self._db, made)
        for run in made:
            stands = answers[run["_id"]]
            self._stands[run["_id"]] = run if stands is None else stands
            if stands is not None and stands["_id"] != run["_id"]:
                self._refused.add(run["_id"])

    def _answer(self, run: Run) -> Added:
        if run.id not in self._refused:
            return Added(read_run(self._stands[run.id]))
        stands = self._stands.get(run.id)
        holder = replace(run, payload=_kept(run)) if stands is None else read_run(stands)
        return Added(replace(holder, duplicate=True), duplicate=True)


def _kept(run: Run) -> object:
    return None if run.payload is None else codec.decode(codec.encode(run.payload))
