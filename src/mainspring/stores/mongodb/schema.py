"""Collections and indexes: `prepare` creates them at the start, `setup_script` prints them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pymongo import IndexModel
from pymongo.errors import CollectionInvalid, OperationFailure

from mainspring.errors import StoreError, StoreTooNew
from mainspring.stores.mongodb.database import Database, Document
from mainspring.stores.mongodb.errors import OLDEST, OLDEST_SHARDED, ambiguous, too_old

MIGRATIONS: list[Callable[[Database], Awaitable[None]]] = []
"""Step n takes a database from version n + 1 to n + 2; a new database has the last version. Several
clients may apply a step at once, and again after one of them has crashed. A step that was released
is never edited."""
UNTRIED = ["waiting", "pending", "cancelled", "skipped"]
"""The states that a run may have without an attempt."""

WAKEUPS_BYTES = 64 * 1024
SHARDED = ("runs", "jobs", "keys", "limits", "notes", "counters")
"""The collections that a cluster may shard, each by the hash of its `_id`."""
UNINDEXED = ("keys", "limits", "sessions")
"""Collections that have only the index of `_id`."""


class Index(NamedTuple):
    collection: str
    name: str
    keys: Sequence[tuple[str, int]]
    only: Document | None = None

    @property
    def options(self) -> Document:
        partial = {} if self.only is None else {"partialFilterExpression": self.only}
        return {"name": self.name, **partial}

    def is_in(self, there: Mapping[str, Any]) -> bool:
        """Whether it is among the indexes of its collection, with the right keys and options."""
        index = there.get(self.name, {"key": ()})
        same_keys = list(index["key"]) == list(self.keys)
        return same_keys and index.get("partialFilterExpression") == self.only


_WITH_UPSTREAM = ["waiting", "pending", "running", "skipped"]


INDEXES = (
    # Due runs, in the order of the claim.
    Index(
        "runs",
        "due",
        [("state", 1), ("lane", 1), ("run_at", 1), ("created_at", 1)],
        {"state": "pending"},
    ),
    # Lapsed leases: one range for each length of lease.
    Index("runs", "leases", [("state", 1), ("lease", 1), ("leased_at", 1)], {"state": "running"}),
    # Lists, newest first; counts; the running runs of a limited job.
    Index("runs", "newest", [("state", 1), ("created_at", -1), ("_id", -1)]),
    Index("runs", "newest_of_job", [("job_id", 1), ("state", 1), ("created_at", -1), ("_id", -1)]),
    # Overlap: the unfinished runs of a job's slots.
    Index(
        "runs",
        "slots",
        [("job_id", 1), ("scheduled_at", 1)],
        {"source": "schedule", "state": {"$in": ["waiting", "pending", "running"]}},
    ),
    # The runs that come after a run, unfinished or skipped. Its keys do not change with the state.
    Index(
        "runs",
        "upstream",
        [("after", 1)],
        {"after": {"$exists": True}, "state": {"$in": _WITH_UPSTREAM}},
    ),
    # Runs that can be pruned; runs that ended since a time, counted without reading documents.
    Index("runs", "ended", [("finished_at", 1), ("state", 1)], {"finished_at": {"$gt": 0}}),
    # Runs with a failed attempt, in any state.
    Index("runs", "failing", [("created_at", -1), ("_id", -1)], {"failures": {"$gt": 0}}),
    # Runs with an attempt, in the states where most runs have none.
    Index(
        "runs",
        "tried",
        [("job_id", 1), ("state", 1), ("created_at", -1), ("_id", -1)],
        {"attempt": {"$gt": 0}, "state": {"$in": UNTRIED}},
    ),
    Index("jobs", "due", [("enabled", 1), ("next_run_at", 1), ("_id", 1)]),
    Index("jobs", "follows", [("follows", 1), ("_id", 1)], {"follows": True}),
    Index("jobs", "tags", [("tags", 1), ("_id", 1)]),
    Index("counters", "of_job", [("job", 1), ("start", 1)]),
    Index("counters", "old", [("start", 1)]),
    Index("notes", "of_kind", [("kind", 1), ("name", 1)]),
    Index("notes", "expiring", [("expires_at", 1)], {"expires_at": {"$gt": 0}}),
)


def comes_after(upstream: Iterable[str]) -> Document:
    """The condition that the index "upstream" is used for. It names all states of the index: the
    server does not see that fewer would be in it as well, and would walk the whole index."""
    return {"after": {"$in": sorted(upstream)}, "state": {"$in": _WITH_UPSTREAM}}


async def is_there(database: Database) -> bool:
    """Whether `prepare` has completed at any time."""
    return await database.meta.find_one(_SCHEMA) is not None


async def prepare(database: Database) -> None:
    """Create what is missing. Several clients may do this at once, and again."""
    await _check_server(database, sharded=await refuse_standalone(database))
    await _refuse_newer(database)
    await make_wakeups(database)
    for name in UNINDEXED:  # a transaction over several shards cannot create them
        await _create_collection(database, database.prefix + name)
    for name in dict.fromkeys(index.collection for index in INDEXES):
        collection = database.handle[database.prefix + name]
        there = await collection.index_information()
        missing = [
            IndexModel(list(index.keys), **index.options)
            for index in INDEXES
            if index.collection == name and not index.is_in(there)
        ]
        if missing:
            await collection.create_indexes(missing)
    newest = 1 + len(MIGRATIONS)
    await database.meta.update_one(_SCHEMA, {"$setOnInsert": {"version": newest}}, upsert=True)
    for step in MIGRATIONS[await _refuse_newer(database) - 1 :]:
        await step(database)
    await database.meta.update_one(_SCHEMA, {"$max": {"version": newest}})


_SCHEMA = {"_id": "schema"}


async def _refuse_newer(database: Database) -> int:
    """The version of the database, 1 if it is new; `StoreTooNew` if this program does not know
    it."""
    schema = await database.meta.find_one(_SCHEMA)
    version: int = 1 if schema is None else schema["version"]
    if version > 1 + len(MIGRATIONS):
        raise StoreTooNew(
            f"the database was written by a newer Mainspring (schema {version}; this one knows up"
            f" to {1 + len(MIGRATIONS)}). Upgrade Mainspring and restart, or name another database"
        )
    return version


async def refuse_standalone(database: Database) -> bool:
    """Raise if the server is neither a member of a replica set nor a cluster's router; return
    whether it is a router."""
    hello: dict[str, Any] = await database.client.admin.command("hello")
    sharded = hello.get("msg") == "isdbgrid"
    if "setName" not in hello and not sharded:
        raise StoreError(
            "this MongoDB server is neither a member of a replica set nor a cluster's router, and"
            " only those have the transactions that Mainspring needs. A replica set of one member"
            " is enough: start the server with `--replSet rs0` (or `replication.replSetName: rs0`"
            " in its configuration), then run `rs.initiate()` once in mongosh. The data stays"
        )
    return sharded


async def _check_server(database: Database, *, sharded: bool) -> None:
    oldest = OLDEST_SHARDED if sharded else OLDEST
    build: dict[str, Any] = await database.client.admin.command("buildInfo")
    if tuple(build["versionArray"][:2]) < oldest:
        raise too_old(build["version"], oldest)


async def make_wakeups(database: Database) -> None:
    """Create the capped collection of hints. It is never sharded, so the primary shard has it.

    It may exist without being capped: somebody dropped it and the next hint created it again, or a
    backup was restored without its options. It holds only hints, so it is converted.
    """
    name = database.wakeups.name
    await _create_collection(database, name, capped=True, size=WAKEUPS_BYTES)
    if (await database.wakeups.options()).get("capped"):
        return
    try:
        await database.handle.command("convertToCapped", name, size=WAKEUPS_BYTES)
    except OperationFailure as error:
        if ambiguous(error):
            raise
        raise StoreError(
            f"the collection {name!r} should be capped and is not, and this user cannot change"
            " that. Drop it (it holds hints alone) and make it as `mainspring store schema`"
            f" says ({error.details and error.details.get('codeName')})"
        ) from error


async def _create_collection(database: Database, name: str, **options: Any) -> None:
    """Create a collection, unless it exists. The driver looks first; another client may create it
    at that moment."""
    with suppress(CollectionInvalid):
        try:
            await database.handle.create_collection(name, **options)
        except OperationFailure as error:
            if error.code != _EXISTS:
                raise


_EXISTS = 48


def setup_script(database: str, prefix: str) -> str:
    """A script for mongosh that creates what `prepare` creates. Comments say how to shard it."""
    lines = [
        f"// Mainspring's collections and indexes in {database!r}, for mongosh. Safe to run again.",
        f"const mainspring = db.getSiblingDB({json.dumps(database)});",
        f"if (!mainspring.getCollectionNames().includes({json.dumps(prefix + 'wakeups')}))",
        f"  mainspring.createCollection({json.dumps(prefix + 'wakeups')},"
        f" {{capped: true, size: {WAKEUPS_BYTES}}});",
    ]
    for name in UNINDEXED:
        where = json.dumps(prefix + name)
        lines += [
            f"if (!mainspring.getCollectionNames().includes({where}))",
            f"  mainspring.createCollection({where});",
        ]
    for index in INDEXES:
        where = json.dumps(prefix + index.collection)
        keys, options = json.dumps(dict(index.keys)), json.dumps(index.options)
        lines.append(f"mainspring.getCollection({where}).createIndex({keys}, {options});")
    lines += ["", "// On a sharded cluster, as a user who may shard; once, while they are small:"]
    for name in SHARDED:
        namespace = json.dumps(f"{database}.{prefix}{name}")
        lines.append(f'// sh.shardCollection({namespace}, {{_id: "hashed"}});')
    return "\n".join(lines) + "\n"
