"""Errors of the driver as errors of Mainspring."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from mainspring.errors import MainspringError, StoreDamaged, StoreError, StoreUnavailable

REPEATED = (pg.SerializationFailure, pg.DeadlockDetected)
"""Errors of a transaction that met another one: it is sent again."""

CONFLICTS = (*REPEATED, pg.UniqueViolation, pg.LockNotAvailable)
"""The same for the store's own transactions: two clients have inserted one record, or another
transaction holds a lock for long."""

NO_PREPARED_STATEMENTS = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)
"""What a pooler in transaction mode that knows no prepared statements answers."""

_PASSING = (
    PoolTimeout,
    TooManyRequests,
    pg.ReadOnlySqlTransaction,  # it is a standby now, and another server has been promoted
    pg.IdleInTransactionSessionTimeout,  # this client was frozen
)

_AWAY = frozenset({"08", "53", "57"})
"""Classes of errors of a server that is away, full of connections, or shuts down."""

_LASTS = re.compile(
    r"(database|role) .* does not exist|authentication failed|unrecognized|invalid .*option"
    r"|no password|SSL was required|invalid \w+ value"
)
"""What libpq says, without a code, of a connection that will fail the next time as well."""


_ADVICE = {
    "database .* does not exist": "Create it, or name another database in the URL",
    "role .* does not exist|authentication failed|no password": "Give the role and its password in"
    " the URL, or in PGUSER and PGPASSWORD",
    "read-only transaction": "It is a standby: name the primary, or both hosts and"
    " target_session_attrs=read-write",
    "lock timeout": "Another transaction that is open for long holds the lock, perhaps one of your"
    " own that has enqueued with the same dedupe_key: commit it or roll it back",
    "SSL was required": "Turn TLS on at the server, or change sslmode",
    "invalid URI query parameter": "Mainspring's own options are schema, pool_size, listen,"
    " listen_url, prepare and skip_locked; others are libpq's",
    "permission denied": "The role needs CREATE on the database for the first start, or the schema"
    " from `mainspring store schema`; afterwards USAGE on the schema and all rights on its tables",
    "refused|failed to resolve|timeout expired": "Is the server running, and are the host and the"
    " port of the URL right?",
}


def is_away(error: BaseException) -> bool:
    """Whether the server cannot be reached now, and may be later."""
    if isinstance(error, pg.DiskFull) or _LASTS.search(str(error)):
        return False
    if isinstance(error, (*CONFLICTS, *_PASSING)):
        return True
    state = getattr(error, "sqlstate", None)
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state[:2] in _AWAY


def translated(error: Exception, location: str) -> MainspringError:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName)):
        return StoreDamaged(f"{location} no longer has Mainspring's tables ({text})")
    if isinstance(error, PoolClosed):
        return StoreError("the store is closed; open it first")
    advice = next((advice for what, advice in _ADVICE.items() if re.search(what, text)), None)
    if advice is not None:
        text = f"{text}. {advice}"
    if is_away(error):
        return StoreUnavailable(f"{location} cannot be used now: {text}")
    return StoreError(f"{location}: {text}")


@contextmanager
def translating(location: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests) as error:
        raise translated(error, location) from error
