"""A FastAPI application whose processes run its jobs: `uvicorn fastapi_app:app --workers 2`.

Needs the extra `server`. `SHOP_DB` names the shop's own database, `SHOP_STORE` the jobs' store.
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException

from mainspring import RunContext, Scheduler, per_run
from mainspring.contrib.fastapi import Mainspring


def get_database() -> Iterator[sqlite3.Connection]:
    """A dependency of the routes, and a resource of the handlers: open for a request or a run."""
    database = sqlite3.connect(
        os.environ.get("SHOP_DB", "shop.db"), timeout=30, check_same_thread=False
    )
    try:
        yield database
        database.commit()
    finally:
        database.close()


scheduler = Scheduler(
    os.environ.get("SHOP_STORE", "sqlite:///shop-jobs.db"),
    resources={"database": per_run(get_database)},
)
mainspring = Mainspring(scheduler)


@scheduler.job(retries=3)
def ship(ctx: RunContext, number: int) -> None:
    add = "insert into shipped (number, run, process) values (?, ?, ?)"
    ctx.resources["database"].execute(add, (number, ctx.run_id, os.getpid()))


@scheduler.job("* * * * * *")
async def count_stock(ctx: RunContext) -> None:
    slot = ctx.scheduled_at.isoformat()
    ctx.resources["database"].execute("insert into counted (slot) values (?)", (slot,))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    for database in get_database():
        database.execute("pragma journal_mode = wal")
        database.execute("create table if not exists shipped (number, run, process)")
        database.execute("create table if not exists counted (slot)")
    yield


def require_admin(x_admin: Annotated[str, Header()] = "") -> None:
    """Stands for the application's own login."""
    if x_admin != os.environ.get("SHOP_ADMIN", "let-me-in"):
        raise HTTPException(403, "only for administrators")


app = FastAPI(lifespan=mainspring.lifespan(lifespan))
app.include_router(mainspring.router("/jobs", dependencies=[Depends(require_admin)]))


@app.post("/orders/{number}")
async def order(number: int, jobs: Annotated[Scheduler, Depends(mainspring)]) -> dict[str, str]:
    run = await jobs.enqueue("ship", {"number": number}, dedupe_key=f"order-{number}")
    return {"run": run.id}


@app.get("/orders")
def shipped(
    database: Annotated[sqlite3.Connection, Depends(get_database)],
) -> list[tuple[int, int]]:
    return database.execute("select number, process from shipped order by number").fetchall()
