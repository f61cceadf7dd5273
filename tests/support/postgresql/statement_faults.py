"""A client of PostgreSQL that is killed, cut off or refused at one of its statements."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import StrEnum
from typing import Any
from unittest.mock import patch

import psycopg
from psycopg.errors import SerializationFailure


class Effect(StrEnum):
    KILLED_BEFORE = "killed before"
    KILLED_AFTER = "killed after"
    CUT = "cut"
    """The connection is gone before the statement is sent."""
    LOST_RESPONSE = "lost response"
    CONFLICT = "conflict"
    """The server rolls the transaction back, as it does when two of them meet."""


class Killed(BaseException):
    """The process that made the call is dead."""


def cut(connection: Any) -> None:
    """End the connection under the driver: another task may use it at this moment."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as cut:
        cut.shutdown(socket.SHUT_RDWR)


class Client:
    """Counts its statements (`BEGIN` and `COMMIT` too), and meets the fault at one of them."""

    def __init__(self, effect: Effect | None = None, at: int = 0) -> None:
        self.dead = False
        self.met = False
        self.statements = 0
        self._effect = effect
        self._at = at
        self._connections: set[Any] = set()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """The calls of the block, and the tasks that it starts, are this client's."""
        token = _CALLER.set(self)
        try:
            yield
        finally:
            _CALLER.reset(token)

    def before(self, connection: Any, request: Any) -> None:
        if request.__name__ not in _STATEMENTS:  # a setting of the driver's own
            return
        if self.dead:
            raise Killed
        self._connections.add(connection)
        self.statements += 1
        if self.statements != self._at:
            return
        self.met = True
        if self._effect is Effect.KILLED_BEFORE:
            self._die()
        if self._effect is Effect.CUT:
            cut(connection)
            raise psycopg.OperationalError("injected: the connection is gone")
        if self._effect is Effect.CONFLICT and request.__name__ == "_execute_gen":
            connection.pgconn.exec_(_FAILS)
            raise SerializationFailure("injected: another transaction was first")

    def after(self, connection: Any, request: Any) -> None:
        if self.statements != self._at or request.__name__ not in _STATEMENTS:
            return
        if self._effect is Effect.KILLED_AFTER:
            self._die()
        if self._effect is Effect.LOST_RESPONSE:
            cut(connection)
            raise psycopg.OperationalError("injected: the response is lost")

    def _die(self) -> None:
        """The system closes the connections of a process that is killed."""
        self.dead = True
        for connection in self._connections:
            cut(connection)
        raise Killed


_STATEMENTS = ("_enter_gen", "_execute_gen", "_exit_gen")
_FAILS = b"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '40001'; END $$"
_CALLER: ContextVar[Client | None] = ContextVar("caller", default=None)


@contextmanager
def statement_faults() -> Iterator[None]:
    """Let the clients of the block meet their faults."""
    with (
        patch.object(psycopg.AsyncConnection, "wait", _waiting(psycopg.AsyncConnection.wait)),
        patch.object(psycopg.Connection, "wait", _waiting_in_thread(psycopg.Connection.wait)),
    ):
        yield


def _waiting(wait: Callable[..., Any]) -> Callable[..., Any]:
    async def sent(connection: Any, request: Any, **more: Any) -> Any:
        client = _CALLER.get()
        if client is None or _is_pools_own():
            return await wait(connection, request, **more)
        client.before(connection, request)
        answer = await wait(connection, request, **more)
        client.after(connection, request)
        return answer

    return sent


def _is_pools_own() -> bool:
    """Whether a task of the connection pool connects or tidies up."""
    task = asyncio.current_task()
    return task is not None and task.get_name().startswith("pool-")


def _waiting_in_thread(wait: Callable[..., Any]) -> Callable[..., Any]:
    def sent(connection: Any, request: Any, **more: Any) -> Any:
        client = _CALLER.get()
        if client is None:
            return wait(connection, request, **more)
        client.before(connection, request)
        answer = wait(connection, request, **more)
        client.after(connection, request)
        return answer

    return sent
