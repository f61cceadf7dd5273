"""Recognises what a caller gives as `within`, by the names of its classes: no library is imported.

SQLAlchemy and Django are taken apart down to the connection of the driver, because a transaction
belongs to that one. Each store sends its statements over it by itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from mainspring.core.model import Run
from mainspring.errors import InvalidInput, RunNotFound

T = TypeVar("T")
OnCommit = Callable[[Callable[[], None]], Any]


@dataclass(frozen=True, slots=True)
class CallerConnection:
    """A connection of a driver, such as `psycopg.AsyncConnection`. `on_commit` calls a function
    after the commit, where the caller's library offers that."""

    driver: str
    connection: Any
    on_commit: OnCommit | None = None


def refuse(within: object, why: str, accepted: str) -> NoReturn:
    """Raise for a connection that a store does not accept."""
    raise InvalidInput(
        f"{why}: within takes {accepted}, with a transaction under way on the store's own database",
        field="within",
        given=type(within).__qualname__,
    )


async def call_on_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a store on the store's loop, perhaps in another thread."""
    if asyncio.get_running_loop() is loop:
        return await coroutine
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


def check_upstream(runs: Sequence[Run], known: set[str]) -> None:
    """Raise for a run that comes after one that its transaction does not see."""
    known = known | {run.id for run in runs}
    for name in (name for run in runs for name in run.after):
        if name not in known:
            raise RunNotFound(name)


def without_proxy(within: Any) -> Any:
    """The connection that `django.db.connection` stands for here. In plain code that must be asked
    before an event loop runs in the thread: Django has other connections in async code."""
    if "django.ConnectionProxy" in _class_names(within):
        return within._connections[within._alias]
    return within


async def recognise(within: Any, accepted: str) -> CallerConnection:
    """The driver's connection behind what a caller gave. Raises `InvalidInput` for anything else,
    and for what is closed or has no transaction as far as the caller's library knows."""
    names = _class_names(within)
    if names & {"sqlalchemy.scoped_session", "sqlalchemy.async_scoped_session"}:
        within = within()
        names = _class_names(within)
    if (wrapper := without_proxy(within)) is not within:
        within, names = wrapper, _class_names(wrapper)
    on_commit: OnCommit | None = None
    for name, take_apart in _LIBRARIES.items():
        if name in names:
            within, on_commit = await take_apart(within, accepted)
            names = _class_names(within)
            break
    for driver in _DRIVERS:
        if driver in names:
            connection = getattr(within, "_con", within)  # behind the proxy of a pool of asyncpg
            if connection is None:
                refuse(within, "this connection was given back to its pool", accepted)
            return CallerConnection(driver, connection, on_commit)
    refuse(within, f"{type(within).__qualname__} is not accepted", accepted)


def _class_names(value: Any) -> set[str]:
    """Its class and the classes above it, as library and name. A proxy has the class it stands
    for."""
    classes = type.mro(value.__class__)
    return {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in classes}


async def _of_session(session: Any, accepted: str) -> tuple[Any, OnCommit]:
    connection, _ = await _of_connection(session.connection(), accepted)
    return connection, lambda call: _after_commit(session, call)


async def _of_async_session(session: Any, accepted: str) -> tuple[Any, OnCommit]:
    connection, _ = await _of_async_connection(await session.connection(), accepted)
    return connection, lambda call: _after_commit(session.sync_session, call)


async def _of_connection(connection: Any, accepted: str) -> tuple[Any, None]:
    if connection.closed:
        refuse(connection, "this connection is closed", accepted)
    if not connection.in_transaction():
        connection.begin()  # as its first statement does
    return connection.connection.driver_connection, None


async def _of_async_connection(connection: Any, accepted: str) -> tuple[Any, None]:
    if connection.closed:
        refuse(connection, "this connection is closed", accepted)
    if not connection.in_transaction():
        await connection.run_sync(lambda sync: sync.begin())
    driver = (await connection.get_raw_connection()).driver_connection
    if "asyncpg.Connection" in _class_names(driver) and not driver.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # it begins with the first statement
    return driver, None


async def _of_django(wrapper: Any, accepted: str) -> tuple[Any, OnCommit | None]:
    if wrapper.connection is None or (not wrapper.in_atomic_block and wrapper.autocommit):
        refuse(wrapper, "this connection is in no transaction.atomic() block", accepted)
    return wrapper.connection, wrapper.on_commit if wrapper.in_atomic_block else None


def _after_commit(session: Any, call: Callable[[], None]) -> None:
    """One listener serves a session, which may live for long."""
    if _CALLS not in session.info:
        session.info[_CALLS] = set()
        sys.modules["sqlalchemy.event"].listen(session, "after_commit", _call_once)
    session.info[_CALLS].add(call)


def _call_once(session: Any) -> None:
    while session.info[_CALLS] and not session.in_nested_transaction():
        session.info[_CALLS].pop()()


_CALLS = "mainspring: to be called after the commit"


_TakeApart = Callable[[Any, str], Awaitable[tuple[Any, OnCommit | None]]]
_LIBRARIES: dict[str, _TakeApart] = {
    "sqlalchemy.Session": _of_session,
    "sqlalchemy.AsyncSession": _of_async_session,
    "sqlalchemy.Connection": _of_connection,
    "sqlalchemy.AsyncConnection": _of_async_connection,
    "django.BaseDatabaseWrapper": _of_django,
}
_DRIVERS = (
    "psycopg.Connection",
    "psycopg.AsyncConnection",
    "psycopg2.connection",
    "asyncpg.Connection",
    "asyncpg.PoolConnectionProxy",
    "sqlite3.Connection",
    "aiosqlite.Connection",
    "pymongo.ClientSession",
    "pymongo.AsyncClientSession",
)
