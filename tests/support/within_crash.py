"""A program that writes an order and enqueues its runs in one transaction, and is killed in it.

It is killed (`kill -9`, by itself) at the step of that number: before each statement or command
that it sends for the transaction, and after it. With a higher number than there are steps it ends.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pymongo
from pymongo.monitoring import CommandListener

from mainspring import Client

NO_KILL = 10**9


class Steps:
    def __init__(self, kill_at: int) -> None:
        self._left = kill_at

    def step(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def on_sqlite(url: str, order: int, kill_at: int) -> None:
    steps = Steps(kill_at)
    with Client(url).blocking as client, closing(sqlite3.connect(url[10:])) as connection:
        connection.set_trace_callback(steps.step)
        connection.execute("INSERT INTO orders VALUES (?)", (order,))
        enqueue(client, order, connection)
        steps.step()
        connection.commit()
        steps.step()


def on_postgresql(url: str, order: int, kill_at: int) -> None:
    steps = Steps(kill_at)

    class Connection(psycopg.Connection[Any]):
        def wait(self, *arguments: Any, **options: Any) -> Any:
            steps.step()
            result = super().wait(*arguments, **options)
            steps.step()
            return result

    with Client(url).blocking as client:
        connection = psycopg.connect(url.partition("?")[0])
        connection.close()
        with Connection.connect(url.partition("?")[0], application_name="caller") as connection:
            connection.execute("INSERT INTO crash_orders VALUES (%s)", (order,))
            enqueue(client, order, connection)
            connection.commit()


def on_mongodb(url: str, order: int, kill_at: int) -> None:
    steps = Steps(kill_at)

    class Listener(CommandListener):
        def started(self, event: Any) -> None:
            steps.step()

        succeeded = failed = started

    with (
        Client(url).blocking as client,
        pymongo.MongoClient[Any](url, event_listeners=[Listener()]) as mongo,
        mongo.start_session() as session,
        session.start_transaction(),
    ):
        mongo.get_default_database().orders.insert_one({"_id": order}, session=session)
        enqueue(client, order, session)


def enqueue(client: Any, order: int, within: Any) -> None:
    payload = {"order": order}
    first = client.enqueue("ship", payload, dedupe_key=f"order {order}", within=within)
    client.enqueue("ship", payload, after=first, within=within)
    client.enqueue_many("ship", [payload] * 2, delay="1h", within=within)
