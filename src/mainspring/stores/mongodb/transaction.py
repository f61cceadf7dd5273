"""Transactions of the store's own: several documents written together or not at all.

`work` gets the database bound to a session and passes `session=db.session` to every command. `work`
may run several times, each time on a new snapshot, so it must not keep state between runs.

A snapshot is what a majority of the servers has: with `w=majority`, unless the URL says otherwise,
the commit waits for a majority of all that the transaction read and wrote, also when it wrote
nothing. So an answer can rest on what was read.

The server rolls back what nobody commits. If a client dies in a transaction, any other client makes
the server do so after a few seconds (`SessionPool`).

docs/decisions/0016-mongodb-transactions.md says what runs in a transaction and why.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from pymongo import ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, PyMongoError

from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb.database import SNAPSHOT, Database
from mainspring.stores.mongodb.errors import (
    INTERRUPTED,
    WRITE_CONFLICT,
    duplicates_only,
    error_code,
)

T = TypeVar("T")
Work = Callable[[Database], Awaitable[T]]

RETRY_FOR = 8.0
"""Seconds for which a transaction that meets conflicts is begun again: longer than it takes to end
the session of a dead client."""
TRIES = 200
LONGEST_PAUSE = 0.1


class WriteConflict(Exception):
    """The transaction was rolled back because others wrote the same documents."""


async def in_transaction(db: Database, work: Work[T]) -> T:
    """Do the work in a transaction, and repeat it on a write conflict, for a few seconds.

    `StoreUnavailable` where that did not help. An error of the driver means what it means for a
    single write: where the answer to the commit was lost, the transaction may be done or not.
    """
    ends = db.time.elapsed() + RETRY_FOR
    tries, over = 0, False
    while True:
        tries += 1
        try:
            return await run_once(db, work)
        except WriteConflict as conflict:
            if over:
                raise StoreUnavailable(
                    "other clients wrote the same documents each time this was tried, for"
                    f" {RETRY_FOR:g} seconds. Try again"
                ) from conflict
        except PyMongoError as error:
            lost = error.has_error_label("TransientTransactionError") and not error.timeout
            if not lost or over:
                raise
        over = db.time.elapsed() > ends or tries >= TRIES  # one more try after a freeze
        await asyncio.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.002 * 2 ** min(tries, 10))))


async def run_once(db: Database, work: Work[T]) -> T:
    """Do the work in one transaction, once. `WriteConflict`: nothing was written, it may be tried
    again."""
    try:
        async with db.sessions.session() as session:
            try:
                await session.start_transaction(
                    read_concern=SNAPSHOT, read_preference=ReadPreference.PRIMARY
                )
                result = await work(replace(db, session=session))
                await _commit(session)
            except OperationFailure as error:
                if _is_conflict(error):
                    raise WriteConflict from error
                raise
            return result
    except WriteConflict:
        await db.sessions.resolve_conflict()
        raise


async def _commit(session: AsyncClientSession) -> None:
    """Commit. The driver sends a commit again whose response is lost, as long as `timeoutMS`
    allows."""
    try:
        await session.commit_transaction()
    except OperationFailure as error:
        if error_code(error) != INTERRUPTED:
            raise
        # Another client has ended the session, perhaps after the commit: the server knows.
        await session.commit_transaction()


def _is_conflict(error: OperationFailure) -> bool:
    """Whether others wrote what this transaction read or wrote. What was inserted since its
    snapshot is a duplicate to it."""
    if isinstance(error, DuplicateKeyError):
        return True
    if isinstance(error, BulkWriteError) and duplicates_only(error):
        return True
    if error.has_error_label("UnknownTransactionCommitResult"):
        return False
    if error.has_error_label("TransientTransactionError"):
        return True
    return error_code(error) in (WRITE_CONFLICT, INTERRUPTED)
