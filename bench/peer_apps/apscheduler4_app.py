import os
import time

from apscheduler import AsyncScheduler
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.triggers.cron import CronTrigger
from note import note
from sqlalchemy.ext.asyncio import create_async_engine

SETTINGS = "SQLAlchemy store on SQLite, 100 at once, in the producer's process"
WORKER = None
engine = create_async_engine(f"sqlite+aiosqlite:///{os.environ['BENCH_FILE']}")
app = AsyncScheduler(SQLAlchemyDataStore(engine), max_concurrent_jobs=100)
_opened = False


async def work(sent: float) -> None:
    note(sent)


async def tick() -> None:
    note(float(int(time.time())))


async def open_app() -> None:
    global _opened
    if not _opened:
        _opened = True
        await app.__aenter__()
        for function in (work, tick):
            await app.configure_task(function.__name__, func=function, max_running_jobs=None)


async def start() -> None:
    await open_app()
    await app.start_in_background()


async def stop() -> None:
    await app.stop()


async def send(sent: float) -> None:
    await open_app()
    await app.add_job("work", args=[sent], result_expiration_time=0)


async def schedule(jobs: int) -> None:
    for n in range(jobs):
        await app.add_schedule("tick", CronTrigger(second="*"), id=f"tick-{n}")
