"""Dedupe keys: a document of its own for each, that points at the run which holds it.

A unique index cannot do this on a sharded collection, and a key may outlive its run. So:

1. The run is written down half made (two_phase.py).
2. Its key is made to point at it, by compare-and-set on the key's version.
3. The run becomes what it is to be.

A key points at its holder for good; it is free when that run is gone, or has ended and its
`dedupe_until` is past. Who finds a half-made run behind a key makes it whole and has its answer:
a duplicate. A revived run takes the same three steps, so it cannot slip in beside a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo import InsertOne, UpdateOne
from pymongo.errors import BulkWriteError

from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb.codec import LIVE_STATES, RESERVED
from mainspring.stores.mongodb.collections import Database, Document
from mainspring.stores.mongodb.errors import duplicates_only
from mainspring.stores.mongodb.two_phase import carry_out, discard, half_made, intent, reserve

__all__ = ["carry_out_pointed", "drop", "take", "take_again"]

ROUNDS = 50


@dataclass(frozen=True, slots=True)
class _Look:
    """A key as it was seen, and the run it points at."""

    key: Document | None = None
    run: Document | None = None
    holds: bool = False

    def other_than(self, run_id: str) -> bool:
        return self.key is not None and self.key["run"] != run_id


async def take(db: Database, runs: Sequence[Document]) -> dict[str, Document | None]:
    """Insert runs, each with its key, no key twice. For each id: None where it is in, else the
    run that stands in its place: the key's holder, or one of the same id."""
    left = {run["_id"]: run for run in runs}
    answers: dict[str, Document | None] = {}
    made: set[str] = set()
    for _ in range(ROUNDS):
        looks = await _look(db, [run["dedupe_key"] for run in left.values()])
        contenders = []
        for run_id, run in list(left.items()):
            look = looks[run["dedupe_key"]]
            if look.other_than(run_id) and look.run is not None and half_made(look.run):
                await _help(db, look)
            elif look.other_than(run_id) and look.holds:
                answers[run_id] = look.run
            else:
                contenders.append(run)
        there = await reserve(db, [run for run in contenders if run["_id"] not in made])
        made |= {run["_id"] for run in contenders}
        whole = {
            run_id: run for run_id, run in (await _runs(db, there)).items() if not half_made(run)
        }
        answers |= whole
        contenders = [run for run in contenders if run["_id"] not in whole]
        wishes = [(run["_id"], run["dedupe_key"], looks) for run in contenders]
        pointed = await _point(db, wishes) == len(wishes)
        won = contenders if pointed else await _pointed_at(db, contenders)
        answers |= dict.fromkeys(await _settle(db, won, made))
        left = {run_id: run for run_id, run in left.items() if run_id not in answers}
        if not left:
            await discard(db, [run_id for run_id in made if answers[run_id] is not None])
            return answers
    raise StoreUnavailable("too many clients want the same dedupe keys; try again")


async def take_again(db: Database, run: Document, where: Document, put: Document) -> bool:
    """Bring a finished run back with its key. `where` is what it must be; `put` what it becomes."""
    run_id, key = run["_id"], run["dedupe_key"]
    wish = intent(put)
    for _ in range(ROUNDS):
        look = (await _look(db, [key]))[key]
        if look.other_than(run_id):
            if look.run is not None and half_made(look.run):
                await _help(db, look)
                continue
            if look.holds:
                await _forget(db, run_id, wish)
                return False
        found = await db.runs.update_one(
            {"_id": run_id, **where, "intent": None}, {"$set": {"intent": wish}}
        )
        if not found.matched_count:
            now = await db.runs.find_one({"_id": run_id})
            if now is None or not half_made(now):
                return now is not None  # someone else did it, or it is over: the caller looks
            if now["intent"]["by"] != wish["by"]:
                await _forget(db, run_id, now["intent"])  # it begins again, if it lives
                continue
        if not await _point(db, [(run_id, key, {key: look})]):
            continue
        await carry_out(db, [{**run, "intent": wish}])
        now = await db.runs.find_one({"_id": run_id})
        if now is None or now["state"] in LIVE_STATES:
            return True
    raise StoreUnavailable("too many clients want the same dedupe key; try again")


async def drop(db: Database, seen: Sequence[Document]) -> None:
    """Delete keys as they were seen, after their runs are gone."""
    if seen:
        same = [{"_id": k["_id"], "run": k["run"], "version": k["version"]} for k in seen]
        await db.keys.delete_many({"$or": same})


async def _look(db: Database, keys: Sequence[str]) -> dict[str, _Look]:
    """Keys and their runs. What is there is looked at once more, as a majority has it: an answer
    may rest on it, or another document. A key that is new costs one read."""
    looks = dict.fromkeys(keys, _Look())
    seen = [kept["_id"] async for kept in db.keys.find({"_id": {"$in": list(keys)}}, {"_id": 1})]
    if not seen:
        return looks
    found = await db.settled(db.keys, seen)
    runs = await db.settled(db.runs, [kept["run"] for kept in found.values()])
    held = await _held_by_time(db, runs)
    for key, kept in found.items():
        run = runs.get(kept["run"])
        holds = run is not None and (run["state"] in LIVE_STATES or run["_id"] in held)
        looks[key] = _Look(kept, run, holds)
    return looks


async def _runs(db: Database, ids: Iterable[str]) -> dict[str, Document]:
    wanted = list(ids)
    if not wanted:
        return {}
    return {run["_id"]: run async for run in db.runs.find({"_id": {"$in": wanted}})}


async def _held_by_time(db: Database, runs: Mapping[str, Document]) -> set[str]:
    """Those of the finished runs whose `dedupe_until` is still to come."""
    ids = [
        run_id
        for run_id, run in runs.items()
        if run["state"] not in LIVE_STATES and run.get("dedupe_until") is not None
    ]
    if not ids:
        return set()
    to_come = {"_id": {"$in": ids}, "$expr": {"$gt": ["$dedupe_until", db.time.now]}}
    return {run["_id"] async for run in db.runs.find(to_come, {"_id": 1})}


async def _help(db: Database, look: _Look) -> None:
    """Make the half-made run behind a key whole.

    A revival is only safe once the key has changed behind its intent: someone may have seen the
    run when it was still over, and be about to take its key. A new run's key has.
    """
    assert look.run is not None
    assert look.key is not None
    key = look.key["_id"]
    if look.run["state"] == RESERVED or await _point(db, [(look.run["_id"], key, {key: look})]):
        await carry_out(db, [look.run])


async def _point(db: Database, wishes: Sequence[tuple[str, str, Mapping[str, _Look]]]) -> int:
    """Make keys point at runs, unless they have changed since the look; say how many do."""
    operations: list[Any] = []
    for run_id, key, looks in wishes:
        seen = looks[key].key
        if seen is None:
            operations.append(InsertOne({"_id": key, "run": run_id, "version": 1}))
        else:
            same = {"_id": key, "run": seen["run"], "version": seen["version"]}
            change = {"$set": {"run": run_id}, "$inc": {"version": 1}}
            operations.append(UpdateOne(same, change))
    if not operations:
        return 0
    try:
        result = await db.keys.bulk_write(operations, ordered=False)
    except BulkWriteError as error:
        if not duplicates_only(error):
            raise
        return int(error.details["nInserted"] + error.details["nMatched"])
    return result.inserted_count + result.matched_count


async def _pointed_at(db: Database, runs: Sequence[Document]) -> list[Document]:
    """Those of the runs that their keys point at, for certain."""
    named = [run["dedupe_key"] for run in runs if "dedupe_key" in run]
    if not named:
        return []
    pointed = {kept["run"] for kept in (await db.settled(db.keys, named)).values()}
    return [run for run in runs if run["_id"] in pointed]


async def _settle(db: Database, won: Sequence[Document], made: set[str]) -> list[str]:
    """Make these runs whole, which their keys point at; give their ids."""
    ids = [run["_id"] for run in won]
    found = await _runs(db, ids)
    half = [run for run in found.values() if half_made(run)]
    if await carry_out(db, half) < len(half):  # others have, or some were swept away
        found = await _runs(db, ids)
    made -= set(ids) - found.keys()  # to be written down again
    return list(found)


async def carry_out_pointed(db: Database, runs: Sequence[Document]) -> set[str]:
    """Make those of these runs whole that their keys point at; give their ids."""
    won = await _pointed_at(db, runs)
    await carry_out(db, won)
    return {run["_id"] for run in won}


async def _forget(db: Database, run_id: str, wish: Document) -> None:
    same = {"_id": run_id, "intent.by": wish["by"]}
    await db.runs.update_one(same, {"$unset": {"intent": ""}})
