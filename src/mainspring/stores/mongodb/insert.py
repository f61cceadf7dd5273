"""Add: runs inserted once each, and one for each dedupe key; a workflow whole or not at all.

A run that waits for others of the same batch is its follower. It is reserved (two_phase.py) before
they are there and comes to life after them, by whoever gets to it: so none is left behind where a
client dies, and none is ever seen without what it waits for, which would count as long gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mainspring.core import codec
from mainspring.core.model import Run, State, replace
from mainspring.stores.mongodb import dedupe
from mainspring.stores.mongodb.codec import LIVE_STATES, RESERVED, read_run, run_document
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.two_phase import carry_out, discard, fill, insert, reserved
from mainspring.stores.protocol import Added

__all__ = ["add", "carry_out_followers", "documents", "limited_jobs"]


async def add(db: Database, runs: Sequence[Run]) -> list[Added]:
    if not runs:
        return []
    made = await documents(db, runs)
    if all(run.dedupe_key is None and not run.after for run in runs):
        stored = await _insert(db, made)
        return [Added(read_run(stored[run.id])) for run in runs]
    return await _Adding(db, runs, made).answers()


async def documents(
    db: Database, runs: Sequence[Run], known: Mapping[str, bool] | None = None
) -> list[Document]:
    """The runs as documents, in order. Refuses what cannot be kept before anything is. `known` says
    of jobs that were just read whether they are limited."""
    known = known or {}
    payloads = [None if run.payload is None else codec.encode(run.payload) for run in runs]
    limited = {job_id for job_id in known if known[job_id]}
    if unknown := {run.job_id for run in runs} - known.keys():
        limited |= await limited_jobs(db, unknown)
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
    whole = await _read(db, there)
    await fill(db, [stored[run_id] for run_id in there if run_id not in whole])
    return stored | whole


async def _read(db: Database, ids: Iterable[str]) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for part in chunks(ids):
        where = {"_id": {"$in": list(part)}, "state": {"$ne": RESERVED}}
        found |= {run["_id"]: run async for run in db.runs.find(where, hint=BY_ID)}
    return found


async def carry_out_followers(db: Database, runs: Sequence[Document]) -> set[str]:
    """Let those of these reserved runs live whose upstream does. Gives their ids, and those of the
    others that may still come to it: what they wait for is reserved itself."""
    following = [run for run in runs if run["intent"].get("after")]
    if not following:
        return set()
    upstream = {run_id for run in following for run_id in run["intent"]["after"]}
    found = await db.settled(db.runs, upstream)
    alive = {run_id for run_id, run in found.items() if run["state"] != RESERVED}
    await carry_out(db, [run for run in following if alive.issuperset(run["intent"]["after"])])
    return {run["_id"] for run in following if found.keys() >= set(run["intent"]["after"])}


class _Adding:
    """A batch in which some runs have keys or followers: decided in order, as far as order
    matters."""

    def __init__(self, db: Database, runs: Sequence[Run], made: Sequence[Document]) -> None:
        self._db = db
        self._runs = runs
        self._made = made
        self._ids = [run.id for run in runs]
        self._stored: dict[str, Document] = {}  # those that are in, by id
        self._holders: dict[int, Document] = {}  # who has the key that a run wanted, by position
        self._refused: set[str] = set()
        self._followers: list[dict[str, Document]] = []  # reserved, by id; each behind the last

    async def answers(self) -> list[Added]:
        self._stored |= await self._there()
        self._find_followers()
        following = {run_id: run for level in self._followers for run_id, run in level.items()}
        following_before = await insert(self._db, list(following.values()))
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
                    self._stored[run.id] = self._made[at]
                    if run.id not in following:
                        plain.append(self._made[at])
                else:
                    await self._take([at])
            if at in self._holders:
                self._refused.add(run.id)
                holder = read_run(self._holders[at])
                decided.append(Added(replace(holder, duplicate=True), duplicate=True))
            else:
                decided.append(run.id)
        self._stored |= await _insert(self._db, plain) if plain else {}
        await self._let_follow()
        await discard(self._db, [*(following.keys() & self._refused) - following_before])
        return [Added(read_run(self._stored[d])) if isinstance(d, str) else d for d in decided]

    async def _there(self) -> dict[str, Document]:
        """Those that are in already, for certain: someone sent them before, and perhaps their
        insertion is not decided yet."""
        seen = await _read(self._db, set(self._ids))
        found = await self._db.settled(self._db.runs, seen)
        return {run_id: run for run_id, run in found.items() if run["state"] != RESERVED}

    def _find_followers(self) -> None:
        depths: dict[str, int] = {}
        for run, made in zip(self._runs, self._made, strict=True):
            if run.id in depths or run.id in self._stored:
                continue
            upstream = [run_id for run_id in run.after if run_id in depths]
            depths[run.id] = 0
            if upstream and run.state is State.WAITING and run.dedupe_key is None:
                depth = depths[run.id] = 1 + max(depths[run_id] for run_id in upstream)
                if depth > len(self._followers):
                    self._followers.append({})
                self._followers[depth - 1][run.id] = reserved(made, after=upstream)

    async def _let_follow(self) -> None:
        """What they wait for is there: let them live, those first that others wait for."""
        for level in self._followers:
            chosen = {run_id: run for run_id, run in level.items() if run_id not in self._refused}
            if await carry_out(self._db, chosen.values()) < len(chosen):  # swept, or there before
                made = [self._stored[run_id] for run_id in chosen]
                self._stored |= await _insert(self._db, made)

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
        stands = await dedupe.take(self._db, [self._made[at] for at in places])
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
