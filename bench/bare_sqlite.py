"""What SQLite itself can do: the loop a careful engineer would write against the same schema.

`bare_drain` and `bare_enqueue` make the same writes to the same file with the same settings as
the store (WAL, `synchronous=FULL`, every index, payloads decoded, results and attempt records
encoded, history kept), in one thread, with nothing around them.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from mainspring.stores.sqlite import schema
from mainspring.stores.sqlite.files import FileLock

__all__ = [
    "bare_drain",
    "bare_enqueue",
    "fill",
]

HANDLER = "send_email"

_INSERT = """
INSERT INTO mainspring_runs (
    id, job_id, handler, queue, priority, lane, source, state, attempt, failures, lapses, token,
    cancel_requested, after_any, created_at, scheduled_at, run_at, payload
) VALUES (?, ?, ?, 'default', ?, ?, 'enqueue', 'pending', 0, 0, 0, 0, 0, 0, ?, ?, ?, ?)
"""
_DUE = """
SELECT seq, id, token, attempt, payload FROM mainspring_runs
WHERE state = 'pending' AND lane = ? AND run_at <= ? ORDER BY run_at LIMIT ?
"""
_TAKE = """
UPDATE mainspring_runs SET state = 'running', token = token + 1, attempt = attempt + 1,
    worker = ?, started_at = ?, lease_until = ? WHERE seq = ?
"""
_COMPLETE = """
UPDATE mainspring_runs SET state = 'succeeded', finished_at = ?, lease_until = NULL,
    result = ?, error = NULL, attempts = ?
WHERE id = ? AND state = 'running' AND token = ? AND cancel_requested = 0
"""


def payload(number: int) -> dict[str, object]:
    return {"to": "someone@example.org", "subject": "hello", "number": number}


def lane(handler: str, priority: int) -> str:
    """The lane that the store gives to runs of a job that is named after its handler."""
    return f"{9 - priority}\x1f{handler}\x1fdefault\x1f{handler}"


def us() -> int:
    return time.time_ns() // 1000


@contextmanager
def database(path: Path | str) -> Iterator[sqlite3.Connection]:
    """A connection as the store makes it, on a file with the store's schema."""
    path = Path(path)
    connection = schema.connect(path, create=True)
    lock = FileLock(path.with_name(path.name + "-lock"), 5)
    schema.migrate(connection, path, lock)
    try:
        yield connection
    finally:
        connection.close()


def fill(
    path: Path | str,
    count: int,
    *,
    run_at: int | None = None,
    priority: int = 5,
    handler: str = HANDLER,
    batch: int = 10_000,
) -> None:
    """Many pending runs, as `add` would write them."""
    with database(path) as connection:
        first = connection.execute("SELECT coalesce(max(seq), 0) FROM mainspring_runs").fetchone()[
            0
        ]
        rng = random.Random(first)
        for start in range(first, first + count, batch):
            rows = []
            for number in range(start, min(start + batch, first + count)):
                now = us() if run_at is None else run_at
                rows.append((
                    f"{now // 1000:012x}{rng.getrandbits(80):020x}", handler, handler, priority,
                    lane(handler, priority), now, now, now, json.dumps(payload(number)),
                ))  # fmt: skip
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, rows)
            connection.execute("COMMIT")


def top_up(path: Path | str, count: int) -> None:
    """Fill until `count` runs are pending."""
    with database(path) as connection:
        pending = "SELECT count(*) FROM mainspring_runs WHERE state = 'pending'"
        missing = count - connection.execute(pending).fetchone()[0]
    fill(path, max(missing, 0))


def bare_enqueue(path: Path | str, count: int, batch: int = 200) -> float:
    """Runs a second, `batch` to a commit."""
    began = time.perf_counter()
    fill(path, count, batch=batch)
    return count / (time.perf_counter() - began)


def bare_drain(path: Path | str, count: int, batch: int = 200) -> float:
    """Runs a second: claim a batch, do nothing, complete it; two commits to a batch.

    A file with too few pending runs is filled up first."""
    top_up(path, count)
    with database(path) as connection:
        began = time.perf_counter()
        done = 0
        while taken := bare_claim(connection, batch):
            bare_complete(connection, taken)
            done += len(taken)
        assert done == count
        return count / (time.perf_counter() - began)


def bare_claim(
    connection: sqlite3.Connection, batch: int
) -> list[tuple[str, int, int, int, object]]:
    connection.execute("BEGIN IMMEDIATE")
    now = us()
    rows = connection.execute(_DUE, (lane(HANDLER, 5), now, batch)).fetchall()
    connection.executemany(_TAKE, [("bare", now, now + 30_000_000, row[0]) for row in rows])
    connection.execute("COMMIT")
    return [
        (run_id, token + 1, attempt + 1, now, json.loads(payload))
        for _, run_id, token, attempt, payload in rows
    ]


def bare_complete(
    connection: sqlite3.Connection,
    taken: list[tuple[str, int, int, int, object]],
    details: Sequence[object] = (),
) -> None:
    now = us()
    rows = []
    for (run_id, token, attempt, started, payload), detail in zip_longest(taken, details):
        assert payload is not None
        record = json.dumps([[attempt, "bare", started, now, "succeeded", None, detail, []]])
        rows.append((now, json.dumps({"ok": True}), record, run_id, token))
    connection.execute("BEGIN IMMEDIATE")
    done = connection.executemany(_COMPLETE, rows).rowcount
    connection.execute("COMMIT")
    assert done == len(taken)
