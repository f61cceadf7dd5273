import os
import sys

from note import note
from redis import Redis
from rq import Queue

queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_STORE"]))
SETTINGS = "Redis, SimpleWorker (no fork for each job), no results kept"
WORKER = [
    *(sys.executable, "-m", "rq.cli", "worker", "bench", "--url", os.environ["BENCH_STORE"]),
    *("-w", "rq.worker.SimpleWorker", "--quiet"),
]


def send(sent: float) -> None:
    queue.enqueue(note, sent, result_ttl=0)
