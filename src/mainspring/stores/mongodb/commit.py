"""Commit: applies changes to runs that are still as the changes expect; prune: deletes old runs.

Changes that expect the same fields are one update of many documents. It sets the values that all
changes have in common, and takes the others from a list, by the document's id. That is three times
cheaper than an update for each change (docs/decisions/0006-mongodb-store.md has the figures). If
fewer documents matched than were sent, they are read back. Each change is then one of these:

    applied     the run has the id of this change as its last one: it was applied now or before
    sent again  the run is still as expected: it was moved between shards during the update
    lost        anything else
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from pymongo import UpdateMany, UpdateOne

from mainspring.core.model import FINISHED, LIVE
from mainspring.core.transitions import Change
from mainspring.stores.batching import split_in_order
from mainspring.stores.codec import to_us
from mainspring.stores.mongodb.codec import encode_fields, expecting, lane_changes
from mainspring.stores.mongodb.database import BY_ID, Database, Document, chunks, span_us
from mainspring.stores.mongodb.dedupe import read_keys, take_keys
from mainspring.stores.mongodb.schema import comes_after
from mainspring.stores.mongodb.transaction import in_transaction
from mainspring.stores.protocol import TTL_NOTE_KEPT

RESENDS = 20
_FINISHED = sorted(map(str, FINISHED))


class EncodedChange(NamedTuple):
    """A change, with its fields as a document keeps them."""

    id: str
    expect: Mapping[str, Any]
    put: Document
    revives: bool
    deletes: bool
    change_id: int

    @classmethod
    def of(cls, change: Change) -> EncodedChange:
        put, expect = change.set, change.expect
        revives = put.get("state") in LIVE and expect.get("state", "") in FINISHED
        fields = {**encode_fields(put), **lane_changes(put), "last_change": change.change_id}
        return cls(change.id, expect, fields, revives, change.deletes, change.change_id)


async def commit_changes(db: Database, changes: Sequence[Change], applied: set[int]) -> list[bool]:
    """Which changes are applied. The ids of those that were not applied before are added to
    `applied`. If that is unknown for a part of them, none of this part is added."""
    items = [EncodedChange.of(change) for change in changes]
    done = [False] * len(items)
    for part in split_in_order(items, lambda item: item.id, lambda item: item.revives):
        group = [items[at] for at in part]
        if group[0].revives:
            stands = [await _revive(db, group[0], applied)]
        else:
            stands = [kept for part in chunks(group) for kept in await _apply(db, part, applied)]
        deleted = [item for item in group if item.deletes]
        if deleted:
            left = await delete_finished(db, {item.id: item.expect for item in deleted})
            stands = [
                item.id not in left if item.deletes else kept
                for item, kept in zip(group, stands, strict=True)
            ]
        for at, kept in zip(part, stands, strict=True):
            done[at] = kept
    return done


async def apply(db: Database, changes: Sequence[Change]) -> list[bool]:
    """Apply changes of different runs, none of which revives a run. `db` may be bound to a
    transaction."""
    return await _apply(db, [EncodedChange.of(change) for change in changes], set())


async def _apply(db: Database, items: Sequence[EncodedChange], applied: set[int]) -> list[bool]:
    stands: dict[str, bool] = {}
    left = [item for item in items if not item.deletes]
    for _ in range(RESENDS):
        if not left:
            break
        sent, matched = left, await _send(db, left)
        if matched == len(sent):
            stands |= dict.fromkeys((item.id for item in sent), True)
            applied |= {item.change_id for item in sent}
            break
        left = await _check_unmatched(db, sent, stands)
        standing = {item.change_id for item in sent if stands[item.id]}
        if len(standing) == matched:
            applied |= standing
    return [stands.get(item.id, False) for item in items]


async def _send(db: Database, items: Sequence[EncodedChange]) -> int:
    """Send the changes. Gives how many runs were as expected."""
    groups: dict[Any, list[EncodedChange]] = {}
    for item in items:
        alone = item.id if any(name.startswith("lane.") for name in item.put) else None
        groups.setdefault((alone, *item.expect.items()), []).append(item)
    operations = [_update(group) for group in groups.values()]
    sent = await db.runs.bulk_write(operations, ordered=False, session=db.session)
    return sent.matched_count


def _update(group: Sequence[EncodedChange]) -> UpdateOne | UpdateMany:
    where = expecting(group[0].expect)
    if len(group) == 1:
        return UpdateOne({"_id": group[0].id, **where}, {"$set": group[0].put})
    ids = [item.id for item in group]
    change = _by_id(ids, [item.put for item in group])
    return UpdateMany({"_id": {"$in": ids}, **where}, change, hint=BY_ID)


def _by_id(ids: Sequence[str], puts: Sequence[Document]) -> list[Document]:
    """A pipeline that sets the values that belong to each document's id."""
    first = puts[0]
    common = {
        name: value
        for name, value in first.items()
        if all(name in put and put[name] == value for put in puts)
    }
    stages: list[Document] = []
    if common:
        stages.append({"$set": {name: {"$literal": value} for name, value in common.items()}})
    own = [{n: v for n, v in put.items() if n not in common} for put in puts]
    if any(own):
        place = {"$indexOfArray": [{"$literal": list(ids)}, "$_id"]}
        values = {"$arrayElemAt": [{"$literal": own}, place]}
        stages.append({"$replaceWith": {"$mergeObjects": ["$$ROOT", values]}})
    return stages


async def _check_unmatched(
    db: Database, items: Sequence[EncodedChange], stands: dict[str, bool]
) -> list[EncodedChange]:
    """Record which changes are applied and which are lost. Gives those to send again."""
    where = {"_id": {"$in": [item.id for item in items]}}
    walk = db.runs.find(where, {"last_change": 1}, session=db.session)
    last_changes = {run["_id"]: run.get("last_change") async for run in walk}
    again = []
    for item in items:
        stands[item.id] = last_changes.get(item.id) == item.change_id
        if not stands[item.id] and await _find_as_expected(db, item) is not None:
            again.append(item)
    return again


async def _find_as_expected(db: Database, item: EncodedChange) -> Document | None:
    where = {"_id": item.id, **expecting(item.expect)}
    return await db.runs.find_one(where, {"dedupe_key": 1}, session=db.session)


async def _revive(db: Database, item: EncodedChange, applied: set[int]) -> bool:
    """Revive a finished run, together with its dedupe key or not at all."""
    run = await _find_as_expected(db, item)
    if run is None or "dedupe_key" not in run:
        [stands] = await _apply(db, [item], applied)
        return stands
    return await in_transaction(db, lambda db: _revive_with_key(db, item, run["dedupe_key"]))


async def _revive_with_key(db: Database, item: EncodedChange, key: str) -> bool:
    keys = await read_keys(db, [key])
    holder = keys.holders.get(key)
    if holder is not None and holder["_id"] != item.id:
        return False
    [stands] = await _apply(db, [item], set())
    if stands:
        await take_keys(db, {key: item.id}, keys.known)
    return stands


# -- prune ----------------------------------------------------------------------------------


async def prune_runs(db: Database, before: datetime, limit: int) -> int:
    """Delete by ids, and only runs that have not changed since they were read: a run may be revived
    meanwhile."""
    now = await db.now()
    await db.notes.delete_many({"expires_at": {"$gt": 0, "$lte": now}, "ttl": None})
    kept = now - span_us(TTL_NOTE_KEPT)
    await db.notes.delete_many({"expires_at": {"$gt": 0, "$lte": kept}, "ttl": {"$ne": None}})
    if limit <= 0:
        return 0
    old = {"state": {"$in": _FINISHED}, "finished_at": {"$gt": 0, "$lt": to_us(before)}}
    where, count = prunable(db, before), 0
    awaited: set[str] = set()
    while count < limit:
        walk = db.runs.find(where, {"dedupe_key": 1}).sort("finished_at", 1).limit(limit - count)
        ended = await walk.to_list(limit)
        free = await _without_awaited(db, ended)
        count += await _drop(db, free, old)
        if len(free) == len(ended):
            break
        awaited |= {run["_id"] for run in ended} - {run["_id"] for run in free}
        where = {**prunable(db, before), "_id": {"$nin": sorted(awaited)}}
    return count


async def _without_awaited(db: Database, runs: Sequence[Document]) -> list[Document]:
    """Those of these runs that no unfinished run comes after."""
    awaited: set[str] = set()
    for part in chunks([run["_id"] for run in runs]):
        where = comes_after(part) | {"$nor": [{"state": "skipped"}]}
        async for follower in db.runs.find(where, {"after": 1}, hint="upstream"):
            awaited.update(follower["after"])
    return [run for run in runs if run["_id"] not in awaited]


async def delete_finished(db: Database, expected: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Delete those of the runs that are as expected, have finished and hold no key. Gives the ids
    of the runs that still exist."""
    free = {"$lte": [{"$ifNull": ["$dedupe_until", 0]}, db.time.now]}
    left: set[str] = set()
    for part in chunks(expected):
        where = {"_id": {"$in": list(part)}, "state": {"$in": _FINISHED}, "$expr": free}
        shown = {"dedupe_key": 1, "state": 1, "token": 1}
        ended = await db.runs.find(where, shown, hint=BY_ID).to_list()
        alike: dict[tuple[str, int], list[Document]] = {}
        for run in await _without_awaited(db, ended):
            if all(run.get(name) == value for name, value in expected[run["_id"]].items()):
                alike.setdefault((run["state"], run["token"]), []).append(run)
        for (state, token), same in alike.items():
            await _drop(db, same, {"state": state, "token": token, "finished_at": {"$gt": 0}})
        kept = db.runs.find({"_id": {"$in": list(part)}}, {"_id": 1}, hint=BY_ID)
        left |= {run["_id"] async for run in kept}
    return left


async def _drop(db: Database, old: list[Document], as_seen: Document) -> int:
    """Delete these runs with their keys, unless they have changed since they were read."""
    count = 0
    for part in chunks([run["_id"] for run in old if "dedupe_key" not in run]):
        count += await _delete(db, part, as_seen)
    for keyed in chunks([run for run in old if "dedupe_key" in run]):
        count += await in_transaction(db, partial(_delete_with_keys, keyed, as_seen))
    return count


async def _delete(db: Database, ids: Sequence[str], as_seen: Document) -> int:
    where = {"_id": {"$in": ids}, **as_seen}
    return (await db.runs.delete_many(where, hint=BY_ID, session=db.session)).deleted_count


async def _delete_with_keys(runs: Sequence[Document], as_seen: Document, db: Database) -> int:
    ids = [run["_id"] for run in runs]
    count = await _delete(db, ids, as_seen)
    walk = db.runs.find({"_id": {"$in": ids}}, {"_id": 1}, hint=BY_ID, session=db.session)
    left = {run["_id"] async for run in walk}
    keys = {run["_id"]: run["dedupe_key"] for run in runs if run["_id"] not in left}
    held = {"_id": {"$in": list(keys.values())}, "run": {"$in": list(keys)}}
    await db.keys.delete_many(held, hint=BY_ID, session=db.session)
    return count


def prunable(db: Database, before: datetime) -> Document:
    """The condition of runs that have finished and hold no key."""
    free = {"$lte": [{"$ifNull": ["$dedupe_until", 0]}, db.time.now]}
    return {"finished_at": {"$gt": 0, "$lt": to_us(before)}, "$expr": free}
