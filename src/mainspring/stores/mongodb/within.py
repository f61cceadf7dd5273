"""`add(runs, within=…)`: adds runs in the transaction of the caller's own client session.

A dedupe key that another client takes meanwhile is a write conflict: the server aborts the
transaction, and `with_transaction` of the driver repeats it. Runs that have ended already (of
`each_node` jobs without a node) are not counted: the counters are documents that all clients write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from mainspring.core.model import Run
from mainspring.stores.caller_connection import check_upstream, recognise, refuse
from mainspring.stores.mongodb.codec import read_run
from mainspring.stores.mongodb.database import BY_ID, Database, chunks
from mainspring.stores.mongodb.dedupe import add_in_transaction, run_documents
from mainspring.stores.protocol import Added

ACCEPTED = "a client session of pymongo, sync or async"
_DRIVERS = ("pymongo.ClientSession", "pymongo.AsyncClientSession")


class Callers:
    """Adds runs in sessions of callers, and remembers which of their clients were checked."""

    def __init__(self) -> None:
        self._checked: WeakSet[Any] = WeakSet()

    async def add(
        self,
        db: Database,
        runs: Sequence[Run],
        within: Any,
        read_identity: Callable[[], Awaitable[Any]],
    ) -> list[Added]:
        """`read_identity` is `identity` of the store itself, called on its loop."""
        caller = await recognise(within, ACCEPTED)
        if caller.driver not in _DRIVERS:
            refuse(within, "this is no client session of MongoDB", ACCEPTED)
        if within.has_ended or not within.in_transaction:
            why = "has ended" if within.has_ended else "is in no transaction"
            refuse(within, f"this session {why}", ACCEPTED)
        documents = run_documents(runs)
        ours, client = db.handle, within.client
        handle = client.get_database(ours.name, codec_options=ours.codec_options)
        if caller.driver == "pymongo.ClientSession":
            handle = _Awaitable(handle)
        bound = replace(db, handle=handle, session=within)
        if client not in self._checked:
            if await identity(bound) != await read_identity():
                refuse(within, "this session is of another deployment than the store's", ACCEPTED)
            self._checked.add(client)
        if upstream := {name for run in runs for name in run.after}:
            walk = bound.runs.find(
                {"_id": {"$in": list(upstream)}}, {"_id": 1}, hint=BY_ID, session=within
            )
            check_upstream(runs, {run["_id"] async for run in walk})
        if any(run.dedupe_key is not None for run in runs):
            return await add_in_transaction(bound, runs, documents)
        for part in chunks(documents):
            await bound.runs.insert_many(part, ordered=False, session=within)
        return [Added(read_run(document)) for document in documents]


async def identity(db: Database) -> Any:
    """The number of the collection of runs: another database has another one."""
    named = {"name": f"{db.prefix}runs"}
    found = await (await db.handle.list_collections(filter=named)).to_list()
    return found[0]["info"]["uuid"] if found else None


class _Awaitable:
    """A database, collection or cursor of the driver's sync client with the methods of the async
    one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getitem__(self, name: str) -> _Awaitable:
        return _Awaitable(self._inner[name])

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            return _Awaitable(result) if name == "list_collections" else result

        return call

    def find(self, *arguments: Any, **options: Any) -> _Awaitable:
        return _Awaitable(self._inner.find(*arguments, **options))

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._inner:
            yield item
