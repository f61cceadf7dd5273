"""A real worker process whose handlers write in transactions, and that tests kill:
`python -m tests.support.effect_worker URL LOGS`.

Each effect names its run, token and process. Handlers sleep before, inside and after their
transactions, so that a kill hits every moment, the commit too.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from mainspring import Event, RunContext, Scheduler

LEASE = 2.0
_INSERT = "INSERT INTO effects VALUES (%(run)s, %(token)s, %(pid)s)"


def build(url: str, *, workers: int = 6) -> Scheduler:
    scheduler = Scheduler(url, lease=LEASE, poll="200ms", workers=workers)

    again: dict[str, Any] = {"retries": 9, "retry_delay": "100ms"}  # for blocks that last too long

    @scheduler.job(delivery="effect_once", **again)
    async def loop(ctx: RunContext) -> None:
        await asyncio.sleep(_moment())
        async with ctx.transaction() as session:
            await _write(session, ctx)
            await asyncio.sleep(_moment())
            ctx.result = {"token": ctx.token}
        await asyncio.sleep(_moment())

    @scheduler.job(delivery="effect_once", **again)
    def thread(ctx: RunContext) -> None:
        time.sleep(_moment())
        with ctx.transaction() as session:
            _write_plainly(session, ctx)
            time.sleep(_moment())
            ctx.result = {"token": ctx.token}
        time.sleep(_moment())

    return scheduler


def _moment() -> float:
    return random.choice((0.0, 0.0, 0.01, 0.04))


def _effect(ctx: RunContext) -> dict[str, Any]:
    return {"run": ctx.run_id, "token": ctx.token, "pid": os.getpid()}


async def _write(session: Any, ctx: RunContext) -> None:
    if hasattr(session, "client"):
        effects = session.client.get_default_database().effects
        await effects.insert_one(_effect(ctx), session=session)
    elif isinstance(session, sqlite3.Connection):
        _write_plainly(session, ctx)
    else:
        await session.execute(_INSERT, _effect(ctx))


def _write_plainly(session: Any, ctx: RunContext) -> None:
    if hasattr(session, "client"):
        session.client.get_default_database().effects.insert_one(_effect(ctx), session=session)
    elif isinstance(session, sqlite3.Connection):
        session.execute("INSERT INTO effects VALUES (:run, :token, :pid)", _effect(ctx))
    else:
        session.execute(_INSERT, _effect(ctx))


if __name__ == "__main__":
    log = Path(sys.argv[2]) / f"{os.getpid()}.log"
    scheduler = build(sys.argv[1])

    def note_begin(event: Event) -> None:
        log.write_text("a handler has begun\n")

    scheduler.on("run.started", note_begin)
    scheduler.run()
