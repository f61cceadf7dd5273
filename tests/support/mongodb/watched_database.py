"""MongoDB as a place of the simulation in real time, and bugs planted there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import claim, commit, jobs
from mainspring.stores.mongodb.database import Database, Document
from mainspring.stores.mongodb.transaction import WriteConflict
from tests.support.mongodb.attributed_store import AttributedStore
from tests.support.mongodb.change_watcher import Watcher
from tests.support.servers.mongodb import with_database
from tests.support.simulation.real_time import Planted
from tests.support.simulation.watching import ConnectionFaults, Mirror, WatchMonitor


class WatchedDatabase:
    def __init__(self, url: str, seed: int) -> None:
        self._url = with_database(url, f"sim_{seed}_{uuid.uuid4().hex[:8]}")

    def store(self, author: str, breaks: ConnectionFaults) -> AttributedStore:
        return AttributedStore(self._url, author, breaks)

    def watcher(self, monitor: WatchMonitor, mirror: Mirror) -> Watcher:
        return Watcher(self._url, monitor, mirror)


# Bugs planted on purpose: the invariants must notice each, on this store too


async def _claim_by_id_only(
    db: Database, runs: Sequence[Document], put: Document, now: int | None
) -> int:
    where = {"_id": {"$in": [run["_id"] for run in runs]}}
    change = claim._change(db, put, now)
    return (await db.runs.update_many(where, change)).matched_count


async def _without_transaction(db: Database, work: Callable[[Database], Any]) -> Any:
    try:
        return await work(db)
    except WriteConflict as conflict:
        raise StoreUnavailable("another client was first") from conflict


PLANTED = (
    Planted(
        "no fence",
        "a commit ignores what it expects",
        frozenset({"fence", "finished", "cancel", "attempts", "rescue", "completion", "suspects"}),
        (commit, "expecting", lambda expect: {}),
        stress=True,
    ),
    Planted(
        "claim by id",
        "a claim does not look whether another has come first",
        frozenset({"lease", "tokens", "attempts", "finished", "fence", "early", "start", "alone"}),
        (claim, "_send", _claim_by_id_only),
    ),
    Planted(
        "no transaction",
        "a firing that fails leaves its runs behind, though its job does not advance",
        frozenset({"slots", "overlap", "misfire"}),
        (jobs, "in_transaction", _without_transaction),
    ),
)
