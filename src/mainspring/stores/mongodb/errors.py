"""Errors of MongoDB as errors of Mainspring: what happened, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bson.errors import BSONError
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mainspring.errors import InvalidInput, StoreError, StoreUnavailable

DUPLICATE = 11000
WRITE_CONFLICT = 112
INTERRUPTED = 11601
"""The code of an operation that somebody has ended, here with its session."""
OLDEST = (7, 0)
"""No command of the store needs more than MongoDB 6.0 (`$in` in the filter of a partial index)."""
OLDEST_SHARDED = (8, 0)
"""Which clock `$$NOW` is behind a router is not documented. It was measured on 8.2 alone."""
_REFUSED = 18
_FORBIDDEN = 13
_INDEX_CONFLICTS = frozenset({85, 86})
_AWAY = frozenset(
    {6, 7, 46, 50, 63, 64, 79, 89, 91, 100, 112, 133, 150, 175, 189, 234, 246, 262, 317, 358, 9001}
    | {10058, 10107, 11600, 11602, 13388, 13435, 13436}
)
"""Codes of a server that is busy, stepping down, moving chunks or out of reach."""

_SERVER_TYPE = re.compile(r"server_type: (\w+)")


@contextmanager
def translating() -> Iterator[None]:
    """Turn errors of the driver and the server into errors of Mainspring."""
    try:
        yield
    except (PyMongoError, BSONError, UnicodeEncodeError, OverflowError) as error:
        raise _translated(error) from error


def ambiguous(error: PyMongoError) -> bool:
    """Whether the write may have been applied although it raised."""
    if isinstance(error, ServerSelectionTimeoutError):
        return False
    return isinstance(error, ConnectionFailure) or error.timeout or error_code(error) in _AWAY


def duplicates_only(error: BulkWriteError) -> bool:
    """Whether every document that failed exists already."""
    details = error.details or {}
    failed = details.get("writeErrors", [])
    concerned = details.get("writeConcernErrors", [])
    return (
        bool(failed) and not concerned and all(failure["code"] == DUPLICATE for failure in failed)
    )


def too_old(version: str, oldest: tuple[int, int] = OLDEST) -> StoreError:
    where = " for a sharded cluster" if oldest == OLDEST_SHARDED else ""
    return StoreError(
        f"the MongoDB server is {version}; Mainspring needs {'.'.join(map(str, oldest))} or later"
        f"{where} (and is tested with 8.2). Upgrade the server, or use another store"
    )


def _translated(error: Exception) -> Exception:
    if not isinstance(error, PyMongoError):
        return InvalidInput(f"MongoDB cannot keep this: {error}")
    code = error_code(error)
    if code == _REFUSED or "authentication failed" in str(error).lower():
        return StoreError(
            "MongoDB refused the user or the password. Check the URL, and its authSource: the"
            f" database that holds the user ({_describe(error)})"
        )
    if code == _FORBIDDEN:
        return StoreError(
            "the MongoDB user may not do this. It needs the role readWrite on the database; see"
            f" docs/how-to/use-mongodb.md ({_describe(error)})"
        )
    if code in _INDEX_CONFLICTS:
        return StoreError(
            "MongoDB has an index of this name or these keys with other options. Drop it and"
            " restart, or create Mainspring's indexes by hand: `mainspring store schema` prints"
            f" them ({_describe(error)})"
        )
    if isinstance(error, ServerSelectionTimeoutError):
        if _lacks_configuration(error):
            return StoreUnavailable(
                "the MongoDB server was started with --replSet, and its replica set has no"
                " configuration yet: run `rs.initiate()` once in mongosh. The data stays"
            )
        return StoreUnavailable(
            f"no MongoDB server answers, or none is primary at the moment ({_describe(error)})"
        )
    if isinstance(error, ConfigurationError):
        if "wire version" in str(error):
            return too_old("too old for the driver")
        return StoreError(f"the MongoDB URL cannot be used: {error}")
    if isinstance(error, ConnectionFailure | AutoReconnect) or error.timeout or code in _AWAY:
        return StoreUnavailable(
            f"MongoDB cannot be reached, or is electing a primary ({_describe(error)})"
        )
    if isinstance(error, DocumentTooLarge):
        return InvalidInput(f"too large for a MongoDB document: {error}")
    if isinstance(error, InvalidOperation):
        return StoreError(f"the store is closed ({error})")
    return StoreError(f"MongoDB: {_describe(error)}")


def error_code(error: PyMongoError) -> int | None:
    if isinstance(error, BulkWriteError):
        details = error.details or {}
        for failure in (*details.get("writeErrors", []), *details.get("writeConcernErrors", [])):
            if failure.get("code") != DUPLICATE:
                return int(failure.get("code", 0))
        return None
    return error.code if isinstance(error, OperationFailure) else None


def _lacks_configuration(error: ServerSelectionTimeoutError) -> bool:
    """Whether each server that answers waits for its replica set to be initiated. The driver tells
    it only by the text of its error."""
    kinds = set(_SERVER_TYPE.findall(str(error))) - {"Unknown"}
    return kinds == {"RSGhost"}


def _describe(error: PyMongoError) -> str:
    """The message, without the topology or the command that the driver appends."""
    text = str(error)
    for dump in (", Timeout: ", ", full error: ", " to execute command {"):
        text = text.split(dump, 1)[0]
    return text[:500]
