import os
import time
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from note import note

SETTINGS = "SQLAlchemy job store on SQLite, 20 threads, in the producer's process"
WORKER = None
app = BackgroundScheduler(
    jobstores={"default": SQLAlchemyJobStore(f"sqlite:///{os.environ['BENCH_FILE']}")},
    executors={"default": ThreadPoolExecutor(20)},
    job_defaults={"misfire_grace_time": 60, "max_instances": 5},
)


def start() -> None:
    app.start() if not app.running else app.resume()


def stop() -> None:
    app.pause()


def send(sent: float) -> None:
    app.add_job(note, args=[sent])


def tick() -> None:
    note(float(int(time.time())))


def schedule(jobs: int) -> None:
    for _ in range(jobs):
        app.add_job(tick, "cron", second="*", start_date=datetime.now(UTC))
