import asyncio
import os
import sys

import asyncpg
import pgqueuer
from note import note

SETTINGS = "PostgreSQL, asyncpg, batches of 100, LISTEN, jobs moved to its log"
WORKER = [sys.executable, "pgqueuer_app.py"]
_queries: pgqueuer.Queries


async def prepare() -> None:
    global _queries
    connection = await asyncpg.connect(os.environ["BENCH_STORE"])
    _queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(connection))
    await _queries.install()


async def send(sent: float) -> None:
    await _queries.enqueue(["work"], [str(sent).encode()], [0])


async def main() -> None:
    connection = await asyncpg.connect(os.environ["BENCH_STORE"])
    app = pgqueuer.PgQueuer(pgqueuer.AsyncpgDriver(connection))

    @app.entrypoint("work")
    async def work(job: pgqueuer.models.Job) -> None:
        note(float(job.payload or b""))

    await app.run(batch_size=100)


if __name__ == "__main__":
    asyncio.run(main())
