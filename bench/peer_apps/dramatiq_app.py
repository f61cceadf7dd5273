import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from note import note

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_STORE"]))
work = dramatiq.actor(note, actor_name="work")
SETTINGS = "Redis, 2 processes of 8 threads, acknowledged late"
WORKER = [sys.executable, "-m", "dramatiq", "dramatiq_app", "-p", "2", "-t", "8"]


def send(sent: float) -> None:
    work.send(sent)
