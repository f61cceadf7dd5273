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
    """A batch in which some runs have keys: decided in order, as far as order matters."""

    def __init__(self, db: Database, runs: Sequence[Run], made: Sequence[Document]) -> None:
        self._db = db
        self._runs = runs
        self._made = made
        self._ids = [run.id for run in runs]
        self._stored: dict[str, Document] = {}  # those that are in, by id
        self._holders: dict[int, Document] = {}  # who has the key that a run wanted, by position
        self._refused: set[str] = set()

    async def answers(self) -> list[Added]:
        self._stored |= await self._there()
        await self._take_at_once()
        plain: list[Document] = []
        decided: list[Added | str] = []  # a text is the id of a run that is in
        for at, run in enumerate(self._runs):
            if at not in self._holders and run.id not in self._stored:
                if not self._refused.isdisjoint(run.after):
                    self._refused.add(run.id)
                    decided.append(Added(replace(_as_kept(run), duplicate=True), duplicate=True))
                    continue
                if run.dedupe_key is None:
                    plain.append(self._made[at])
                    self._stored[run.id] = self._made[at]
                else:
                    await self._take([at])
            if at in self._holders:
                self._refused.add(run.id)
                holder = read_run(self._holders[at])
                decided.append(Added(replace(holder, duplicate=True), duplicate=True))
            else:
                decided.append(run.id)
        self._stored |= await _insert(self._db, plain) if plain else {}
        return [Added(read_run(self._stored[d])) if isinstance(d, str) else d for d in decided]

    async def _there(self) -> dict[str, Document]:
        """Those that are in already, for certain: someone sent them before, and perhaps their
        insertion is not decided yet."""
        seen = await _read(self._db, set(self._ids))
        found = await self._db.settled(self._db.runs, seen)
        return {run_id: run for run_id, run in found.items() if run["state"] != RESERVED}

    async def _take_at_once(self) -> None:
        """Those that hang on nothing in this batch: the first of each key, all together. The
        others of that key then have their answer too."""
        free: dict[str, int] = {}
        others: dict[str, list[int]] = {}
        ids, seen = set(self._ids), set(self._stored)
        for at, run in enumerate(self._runs):
            key = run.dedupe_key
            alone = run.id not in seen and ids.isdisjoint(run.after)
            seen.add(run.id)
            if key is None:
                continue
            if key not in free and key not in others and alone:
                free[key] = at
            else:
                others.setdefault(key, []).extend([at] if alone else [])
        await self._take(list(free.values()))
        for key, at in free.items():
            holder = self._holders.get(at, self._stored.get(self._ids[at]))
            if holder is not None and (at in self._holders or holder["state"] in LIVE_STATES):
                self._holders |= dict.fromkeys(others.get(key, ()), holder)

    async def _take(self, places: Sequence[int]) -> None:
        """Try to insert the runs at these places, each with its key: no id or key twice."""
        if not places:
            return
        stands = await keys.take(self._db, [self._made[at] for at in places])
        for at in places:
            run_id = self._ids[at]
            found = stands[run_id]
            if found is not None and found["_id"] != run_id:
                self._holders[at] = found
            else:
                self._stored[run_id] = found or self._made[at]


def _as_kept(run: Run) -> Run:
    """The run with its payload as it would come back."""
    if run.payload is None:
        return run
    return replace(run, payload=codec.decode(codec.encode(run.payload)))
