import asyncio
import os
import sys

import procrastinate
from note import note

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_STORE"])
)
SETTINGS = "PostgreSQL, psycopg pool, 100 at once, LISTEN, jobs kept"
WORKER = [sys.executable, "procrastinate_app.py"]


@app.task(name="work")
async def work(sent: float) -> None:
    note(sent)


async def prepare() -> None:
    await app.open_async()
    await app.schema_manager.apply_schema_async()


async def send(sent: float) -> None:
    await work.defer_async(sent=sent)


async def main() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=100, listen_notify=True)


if __name__ == "__main__":
    asyncio.run(main())
