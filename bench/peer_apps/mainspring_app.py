import os
import sys

from note import note

from mainspring import RunContext, Scheduler

STORE = os.environ["BENCH_STORE"]
DURABILITY = {
    "sqlite": "SQLite, every commit synced",
    "mongodb": "MongoDB, majority writes",
    "postgresql": "PostgreSQL, hints",
}
SETTINGS = f"{DURABILITY[STORE.partition(':')[0]]}, 1 process, 100 at once, lease and retry"
WORKER = [sys.executable, "-m", "mainspring", "worker", "mainspring_app:app", "--workers", "100"]
app = Scheduler(STORE)
producer = Scheduler(STORE, workers=0)
_started = False


async def work(sent: float) -> None:
    note(sent)


async def tick(ctx: RunContext) -> None:
    note(ctx.scheduled_at.timestamp())


for scheduler in (app, producer):
    scheduler.job(id="work")(work)
    scheduler.job(id="tick")(tick)


async def send(sent: float) -> None:
    global _started
    if not _started:
        await producer.__aenter__()
        _started = True
    await producer.enqueue("work", {"sent": sent})


async def schedule(jobs: int) -> None:
    for n in range(jobs):
        await producer.add_job(f"tick-{n}", handler="tick", schedule="* * * * * *")
