"""Errors of the driver as errors of Mainspring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from mainspring.errors import MainspringError, StoreDamaged, StoreError, StoreUnavailable

CONFLICTS = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation)
"""Errors of a transaction that met another one: it is sent again."""

NO_PREPARED_STATEMENTS = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)
"""What a pooler in transaction mode that knows no prepared statements answers."""

_AWAY = (
    pg.OperatorIntervention,  # the server shuts down, starts, or ended this connection
    pg.InsufficientResources,
    pg.ConnectionException,
    pg.ReadOnlySqlTransaction,  # it is a standby now: another server has been promoted
    PoolTimeout,
    TooManyRequests,
)


def is_away(error: BaseException) -> bool:
    """Whether the server cannot be reached now, and may be later."""
    if isinstance(error, (pg.DiskFull, pg.InvalidPassword, pg.InvalidAuthorizationSpecification)):
        return False
    if isinstance(error, (*_AWAY, *CONFLICTS)):
        return True
    without_code = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return without_code or isinstance(error, psycopg.InterfaceError)


def translated(error: Exception, location: str) -> MainspringError:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName)):
        return StoreDamaged(f"{location} no longer has Mainspring's tables ({text})")
    if isinstance(error, PoolClosed):
        return StoreError("the store is closed; open it first")
    if isinstance(error, pg.InsufficientPrivilege):
        return StoreError(
            f"{location}: {text}. The role needs CREATE on the database for the first start, or the"
            " schema from `mainspring store schema`; afterwards the tables of the schema suffice"
        )
    if is_away(error):
        return StoreUnavailable(f"{location} cannot be used now: {text}")
    return StoreError(f"{location}: {text}")


@contextmanager
def translating(location: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests) as error:
        raise translated(error, location) from error
