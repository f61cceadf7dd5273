"""Commit: applies changes to runs that are still as the changes expect.

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
from typing import Any, NamedTuple

from pymongo import UpdateMany, UpdateOne

from mainspring.core.model import FINISHED, LIVE
from mainspring.core.transitions import Change
from mainspring.stores.batching import split_in_order
from mainspring.stores.mongodb.codec import encode_fields, expecting, lane_changes, read_run
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.dedupe import read_keys, take_keys
from mainspring.stores.mongodb.prune import delete_finished
from mainspring.stores.mongodb.transaction import in_transaction

RESENDS = 20


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


async def commit_changes(
    db: Database, changes: Sequence[Change], applied: set[int] | None = None
) -> list[bool]:
    """Which changes are applied. The ids of those that were not applied before are added to
    `applied`. If that is unknown for a part of them, none of this part is added."""
    items = [EncodedChange.of(change) for change in changes]
    done = [False] * len(items)
    applied = set() if applied is None else applied
    for part in split_in_order(items, lambda item: item.id, lambda item: item.revives):
        group = [items[at] for at in part]
        if group[0].revives:
            stands = [await _revive(db, group[0])]
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
    return await _apply(db, [EncodedChange.of(change) for change in changes])


async def _apply(
    db: Database, items: Sequence[EncodedChange], applied: set[int] | None = None
) -> list[bool]:
    stands: dict[str, bool] = {}
    applied = set() if applied is None else applied
    left = [item for item in items if not item.deletes]
    for _ in range(RESENDS):
        if not left:
            break
        sent, found = left, await _send(db, left)
        if found == len(sent):
            stands |= dict.fromkeys((item.id for item in sent), True)
            applied |= {item.change_id for item in sent}
            break
        left = await _check_unmatched(db, sent, stands)
        standing = {item.change_id for item in sent if stands[item.id]}
        if len(standing) == found:
            applied |= standing
    return [stands.get(item.id, False) for item in items]


async def _send(db: Database, items: Sequence[EncodedChange]) -> int:
    """Send the changes. Gives how many runs were as expected."""
    groups: dict[Any, list[EncodedChange]] = {}
    for item in items:
        alone = item.id if any(name.startswith("lane.") for name in item.put) else None
        groups.setdefault((alone, *item.expect.items()), []).append(item)
    updates = [_update(group) for group in groups.values()]
    if len(updates) == 1:
        where, change = updates[0]
        result = await db.runs.update_many(where, change, hint=BY_ID, session=db.session)
        return result.matched_count
    operations = [
        UpdateOne(where, change)
        if isinstance(change, dict)
        else UpdateMany(where, change, hint=BY_ID)
        for where, change in updates
    ]
    sent = await db.runs.bulk_write(operations, ordered=False, session=db.session)
    return sent.matched_count


def _update(group: Sequence[EncodedChange]) -> tuple[Document, Any]:
    where = expecting(group[0].expect)
    if len(group) == 1:
        return {"_id": group[0].id, **where}, {"$set": group[0].put}
    ids = [item.id for item in group]
    return {"_id": {"$in": ids}, **where}, _by_id(ids, [item.put for item in group])


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
    found = {kept["_id"]: kept async for kept in db.runs.find(where, session=db.session)}
    again = []
    for item in items:
        kept = found.get(item.id)
        stands[item.id] = kept is not None and _is_there(item, kept)
        if kept is not None and not stands[item.id] and _still_expected(item, kept):
            again.append(item)
    return again


def _is_there(item: EncodedChange, kept: Document) -> bool:
    return bool(kept.get("last_change") == item.put["last_change"])


def _still_expected(item: EncodedChange, kept: Document) -> bool:
    plain = {name: value for name, value in item.expect.items() if name != "lease_until"}
    if any(_field(kept, name) != value for name, value in encode_fields(plain).items()):
        return False
    if "lease_until" not in item.expect:
        return True
    return bool(read_run(kept).lease_until == item.expect["lease_until"])


def _field(kept: Document, name: str) -> Any:
    if name.startswith("lane."):
        return kept["lane"][name[5:]]
    return kept.get(name)


async def _revive(db: Database, item: EncodedChange) -> bool:
    """Revive a finished run, together with its dedupe key or not at all."""
    kept = await db.runs.find_one({"_id": item.id})
    if kept is None:
        return False
    key = kept.get("dedupe_key")
    if key is None or not _still_expected(item, kept):
        [stands] = await _apply(db, [item])
        return stands
    return await in_transaction(db, lambda db: _revive_with_key(db, item, key))


async def _revive_with_key(db: Database, item: EncodedChange, key: str) -> bool:
    keys = await read_keys(db, [key])
    holder = keys.holders.get(key)
    if holder is not None and holder["_id"] != item.id:
        return False
    [stands] = await _apply(db, [item])
    if stands:
        await take_keys(db, {key: item.id}, keys.known)
    return stands
