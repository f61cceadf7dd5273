"""Programs that are killed in a transaction with a run: there are both or neither."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from mainspring import Scheduler
from tests.support import within_crash
from tests.support.postgresql import shared_schema

RUNS_EACH = 4

Transact = Callable[[str, int, int], None]


def check_every_step(url: str, transact: Transact, read_orders: Callable[[], set[int]]) -> None:
    """Kill the program at its first step, at its second, and so on until it ends."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([within_crash.__name__])
    reader = Scheduler(url, workers=0)
    reader.job(ship)
    with reader.blocking as client:
        step, exit_code = 0, -9
        while exit_code != 0:
            step += 1
            process = context.Process(target=transact, args=(url, step, step))
            process.start()
            process.join()
            exit_code = process.exitcode or 0
            assert exit_code in (0, -9)
            _wait_until_equal(client, read_orders)
        assert step > 8
        assert step in read_orders()


def _wait_until_equal(client: Any, read_orders: Callable[[], set[int]]) -> None:
    """The server may still end what was sent before the kill. Each side is read in turn, so a
    difference that stays is one of the two."""
    ends = time.monotonic() + 20
    while True:
        orders = read_orders()
        runs = client.list_runs(limit=1000).items
        counted = Counter(client.get_run(run).payload["order"] for run in runs)
        if counted == dict.fromkeys(orders, RUNS_EACH) and orders == read_orders():
            return
        assert time.monotonic() < ends, (orders, counted)
        time.sleep(0.05)


async def ship(order: int) -> None: ...


def test_killed_at_every_step_on_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")

    def read() -> set[int]:
        with closing(sqlite3.connect(file)) as connection:
            return {order for (order,) in connection.execute("SELECT id FROM orders")}

    check_every_step(f"sqlite:///{file}", within_crash.on_sqlite, read)


def test_killed_at_every_step_on_postgresql(postgresql_url: str) -> None:
    with shared_schema(postgresql_url) as schema:
        schema.execute("CREATE TABLE IF NOT EXISTS public.crash_orders (id int)")

        def read() -> set[int]:
            return {order for (order,) in schema.execute("SELECT id FROM public.crash_orders")}

        try:
            check_every_step(schema.url, within_crash.on_postgresql, read)
        finally:
            schema.execute("DROP TABLE public.crash_orders")


def test_killed_at_every_step_on_mongodb(database_url: str) -> None:
    with MongoClient[dict[str, Any]](database_url) as client:
        database = client.get_default_database()
        database.create_collection("orders")

        def read() -> set[int]:
            return {document["_id"] for document in database.orders.find()}

        check_every_step(database_url, within_crash.on_mongodb, read)
