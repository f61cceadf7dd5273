"""Claims and commits on PostgreSQL while another session holds a snapshot, and among many runs.

A held snapshot keeps vacuum from removing dead rows. Runs pass at a steady rate before, while and
after it is held. Then the cost of a claim and of a commit, and their plans, with few runs and with
many pending and finished ones. The issue's full length: `--seconds 1200 --rate 850 --pending
1000000 --finished 10000000`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from datetime import timedelta
from statistics import median
from typing import Any

import psycopg

from bench.measure import rounded, say
from mainspring.core import transitions
from mainspring.core.model import Run, new_run_id
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import Claim
from tests.support.records import a_run
from tests.support.servers.postgresql import Postgres

BATCH = 100
_RNG = random.Random()
CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=BATCH, lease=timedelta(minutes=5))
RELATIONS = """
SELECT c.relname, pg_relation_size(c.oid) FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'mainspring' AND c.relkind IN ('r', 'i') AND pg_relation_size(c.oid) > 1048576
ORDER BY 2 DESC
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=int, default=100, help="how long the snapshot is held")
    parser.add_argument("--rate", type=int, default=500, help="runs a second")
    parser.add_argument("--pending", type=int, default=200_000)
    parser.add_argument("--finished", type=int, default=1_000_000)


def run(options: argparse.Namespace) -> dict[str, Any]:
    with Postgres() as server:
        return asyncio.run(_run(server.url, options))


async def _run(url: str, options: argparse.Namespace) -> dict[str, Any]:
    store = PostgresStore(url)
    await store.open()
    before = await _pass(store, options.rate, min(20, options.seconds))
    say(f"a snapshot is held for {options.seconds} s")
    with psycopg.connect(url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM mainspring.meta")
        parts = [await _pass(store, options.rate, options.seconds / 5) for _ in range(5)]
        held_sizes = _sizes(url)
    say("it is released; autovacuum has 90 s")
    after = await _pass(store, options.rate, 90)
    last = await _pass(store, options.rate, 10)
    report = {
        "steady": {
            "runs": sum(part["runs"] for part in (before, *parts, after, last)),
            "before": before,
            **{f"held_{at + 1}_of_5": part for at, part in enumerate(parts)},
            "90_s_after": last,
            "claim_at_the_end_of_before": rounded(parts[-1]["claim_us"] / before["claim_us"]),
            "commit_at_the_end_of_before": rounded(parts[-1]["commit_us"] / before["commit_us"]),
            "claim_after_of_before": rounded(last["claim_us"] / before["claim_us"]),
            "mb_held": held_sizes,
            "mb_after": _sizes(url),
        }
    }
    report["many"] = await _among_many(store, url, options)
    await store.close()
    return report


async def _pass(store: PostgresStore, rate: int, seconds: float) -> dict[str, float]:
    """Runs that are enqueued, claimed and ended at a steady rate; what each costs in the median."""
    add, claim, commit = [], [], []
    ends = time.monotonic() + seconds
    turn = time.monotonic()
    runs = 0
    while time.monotonic() < ends:
        now = await store.now()
        batch = [a_run(now, new_run_id(now, _RNG)) for _ in range(BATCH)]
        add.append(await _timed(store.add(batch)))
        began = time.perf_counter()
        held: list[Run] = (await store.claim(CLAIM)).runs
        claim.append(time.perf_counter() - began)
        changes = [transitions.succeeded(one, now, None) for one in held]
        commit.append(await _timed(store.commit(changes)))
        runs += len(held)
        if len(add) % 50 == 0:
            await store.maintain(None, 100)
        turn += BATCH / rate
        await asyncio.sleep(max(0, turn - time.monotonic()))
    per_run = 1e6 / BATCH
    return {
        "runs": runs,
        "add_us": rounded(median(add) * per_run),
        "claim_us": rounded(median(claim) * per_run),
        "commit_us": rounded(median(commit) * per_run),
    }


async def _timed(call: Any) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def _sizes(url: str) -> dict[str, float]:
    with psycopg.connect(url) as connection:
        return {name: round(size / 2**20) for name, size in connection.execute(RELATIONS)}


# -- many runs ------------------------------------------------------------------------------

_COPY = """
INSERT INTO mainspring.runs (done, id, job_id, handler, queue, priority, source, state, attempt,
    failures, lapses, token, cancel_requested, after_any, created_at, scheduled_at, run_at,
    finished_at)
SELECT %(done)s, %(name)s || n, 'job', 'work', 'default', 5, 'enqueue', %(state)s, 0, 0, 0, 0,
    false, false, %(now)s + n, %(now)s + n, %(now)s + n, %(finished)s::bigint
FROM generate_series(1, %(count)s) AS n
"""


async def _among_many(
    store: PostgresStore, url: str, options: argparse.Namespace
) -> dict[str, Any]:
    report: dict[str, Any] = {}
    now = int((await store.now()).timestamp() * 1e6)
    steps = ((1000, 0), (options.pending, 0), (0, options.finished))
    for at, (pending, finished) in enumerate(steps):
        say(f"{pending} pending and {finished} finished runs are added")
        with psycopg.connect(url, autocommit=True) as connection:
            old = {"now": now - 3_600_000_000}
            for name, done, state, count in (
                (f"p{at}-", False, "pending", pending),
                (f"f{at}-", True, "succeeded", finished),
            ):
                given = {"name": name, "done": done, "state": state, "count": count, **old}
                ended = {"finished": now - 3_600_000_000 if done else None}
                connection.execute(_COPY, {**given, **ended})
            connection.execute("ANALYZE mainspring.runs_live, mainspring.runs_done")
            [(live, done_runs)] = connection.execute(
                "SELECT count(*) FILTER (WHERE NOT done), count(*) FILTER (WHERE done)"
                " FROM mainspring.runs"
            ).fetchall()
        cost = await _pass(store, 10**6, 5)
        report[f"{live} live, {done_runs} done"] = {**cost, **await _plans(store)}
    return report


async def _plans(store: PostgresStore) -> dict[str, str]:
    """The nodes of the plans of a claim and of a commit."""
    sent: list[tuple[str, Any]] = []
    rows = Transaction.rows

    async def noting(tx: Transaction, sql: str, parameters: Any = ()) -> Any:
        answer = await rows(tx, sql, parameters)
        if "FOR UPDATE" in sql or "UPDATE mainspring.runs" in sql:
            plan = await rows(tx, f"EXPLAIN (COSTS off) {sql}", parameters)
            nodes = [line for (line,) in plan if "->" in line or not line.startswith(" ")]
            sent.append((sql, " < ".join(node.strip(" ->") for node in nodes)))
        return answer

    Transaction.rows = noting  # type: ignore[assignment,method-assign]
    try:
        held = (await store.claim(CLAIM)).runs
        now = await store.now()
        await store.commit([transitions.succeeded(one, now, None) for one in held])
    finally:
        Transaction.rows = rows  # type: ignore[method-assign]
    return {f"plan_{at}": plan for at, (_, plan) in enumerate(sent)}
