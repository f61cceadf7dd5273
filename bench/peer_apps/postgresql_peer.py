"""`python postgresql_peer.py PEER URL RUNS SAMPLES`: one peer on PostgreSQL, in one process with
its worker. Prints its figures as JSON. It runs in an environment with its packages.
"""

import asyncio
import contextlib
import json
import random
import sys
import time

peer, url, runs, samples = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
BATCH = 100
started = []
reached = asyncio.Event()
wanted = 0


def note(sent):
    started.append(time.time() - sent)
    if len(started) >= wanted:
        reached.set()


class Procrastinate:
    settings = "psycopg pool, concurrency 100, LISTEN, jobs kept"

    async def open(self):
        import procrastinate

        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

        @self.app.task(name="work")
        async def work(sent):
            note(sent)

        self.work = work
        await self.app.open_async()
        await self.app.schema_manager.apply_schema_async()

    async def send(self, sents):
        if len(sents) == 1:
            await self.work.defer_async(sent=sents[0])
        else:
            await self.work.batch_defer_async(*({"sent": sent} for sent in sents))

    async def run(self):
        await self.app.run_worker_async(
            concurrency=100, install_signal_handlers=False, listen_notify=True
        )


class PgQueuer:
    settings = "asyncpg, batches of 100, LISTEN, jobs moved to its log"

    async def open(self):
        import asyncpg
        import pgqueuer

        self.sending = await asyncpg.connect(url)
        self.queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(self.sending))
        await self.queries.install()
        driver = pgqueuer.AsyncpgDriver(await asyncpg.connect(url))
        self.app = pgqueuer.PgQueuer(driver)

        @self.app.entrypoint("work")
        async def work(job):
            note(float(job.payload))

    async def send(self, sents):
        payloads = [str(sent).encode() for sent in sents]
        await self.queries.enqueue(["work"] * len(sents), payloads, [0] * len(sents))

    async def run(self):
        await self.app.run(batch_size=100)


class Mainspring:
    settings = "100 at once, hints, history kept"

    async def open(self):
        from mainspring import Scheduler

        self.app = Scheduler(url, workers=100)

        @self.app.job()
        async def work(sent: float) -> None:
            note(sent)

        self.producer = Scheduler(url, workers=0)
        self.producer.job(id="work")(work)
        await self.producer.start()

    async def send(self, sents):
        await self.producer.enqueue_many("work", [{"sent": sent} for sent in sents])

    async def run(self):
        async with self.app:
            await asyncio.Event().wait()


async def working(app, count):
    """Let the worker work until so many tasks have begun; the seconds that it took."""
    global wanted
    wanted = len(started) + count
    reached.clear()
    began = time.perf_counter()
    task = asyncio.create_task(app.run())
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait({task, waiting}, timeout=90, return_when=asyncio.FIRST_COMPLETED)
    took = time.perf_counter() - began
    if task.done():
        task.result()
    return took, len(started) - (wanted - count)


async def main():
    global wanted
    app = {"procrastinate": Procrastinate, "pgqueuer": PgQueuer, "mainspring": Mainspring}[peer]()
    await app.open()
    figures = {"settings": app.settings}
    began = time.perf_counter()
    for _ in range(300):
        await app.send([0.0])
    figures["enqueue_one_by_one"] = round(300 / (time.perf_counter() - began))
    began = time.perf_counter()
    for _ in range(runs // BATCH):
        await app.send([0.0] * BATCH)
    figures["enqueue_batches"] = round(runs / (time.perf_counter() - began))
    took, done = await working(app, 300 + runs)
    figures["drain"] = round(done / took)
    await asyncio.sleep(1)
    started.clear()
    wanted = samples
    reached.clear()
    for _ in range(samples):
        await asyncio.sleep(random.uniform(0.03, 0.08))
        await app.send([time.time()])
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(reached.wait(), 30)
    ordered = sorted(started)
    for part in (0.5, 0.99):
        at = min(len(ordered) - 1, int(part * len(ordered)))
        figures[f"start_p{part * 100:.0f}_ms"] = round(ordered[at] * 1000, 1)
    print(json.dumps(figures), flush=True)
    import os

    os._exit(0)  # workers take their time to stop


asyncio.run(main())
