import os
import sys

from celery import Celery
from note import note

app = Celery("bench", broker=os.environ["BENCH_STORE"])
app.conf.update(
    task_ignore_result=True, worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True
)
work = app.task(name="work")(note)
SETTINGS = "Redis, prefork of 2, prefetch 64, acknowledged early"
WORKER = [
    *(sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "2"),
    *("--without-gossip", "--without-mingle", "-l", "ERROR"),
]


def send(sent: float) -> None:
    work.delay(sent)
