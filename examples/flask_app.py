"""A Flask application and its workers. Needs Flask, and a server such as gunicorn.

    gunicorn --workers 2 "flask_app:create_app()"
    flask --app flask_app mainspring worker
    flask --app flask_app mainspring runs list

`SHOP_DB` names the shop's own database, `MAINSPRING_STORE` the jobs' store.
"""

import os
import sqlite3

from flask import Flask, current_app

from mainspring import RunContext
from mainspring.contrib.flask import Mainspring

mainspring = Mainspring()


def database() -> sqlite3.Connection:
    connection = sqlite3.connect(current_app.config["SHOP_DB"], timeout=30)
    connection.execute("create table if not exists shipped (number, run, process)")
    connection.execute("create table if not exists counted (slot)")
    return connection


@mainspring.job(retries=3)
def ship(ctx: RunContext, number: int) -> None:
    with database() as shop:  # the handler runs inside the application's context
        add = "insert into shipped values (?, ?, ?)"
        shop.execute(add, (number, ctx.run_id, os.getpid()))


@mainspring.job("* * * * * *")
async def count_stock(ctx: RunContext) -> None:
    with database() as shop:
        shop.execute("insert into counted values (?)", (ctx.scheduled_at.isoformat(),))


@mainspring.job(isolation="process")
def audit(ctx: RunContext) -> str:
    return str(current_app.config["SHOP_DB"])


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SHOP_DB"] = os.environ.get("SHOP_DB", "shop.db")
    mainspring.init_app(app)

    @app.post("/orders/<int:number>")
    def order(number: int) -> dict[str, str]:
        run = ship.blocking.options(dedupe_key=f"order-{number}").enqueue(number=number)
        return {"run": run.id}

    @app.get("/orders")
    def shipped() -> list[tuple[int, int]]:
        query = "select number, process from shipped order by number"
        return database().execute(query).fetchall()

    return app
