import os
import sys

from note import note
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=os.environ["BENCH_STORE"])
SETTINGS = "Redis streams, 1 process, 100 at once, acknowledged late"
WORKER = [
    *(sys.executable, "-m", "taskiq", "worker", "taskiq_app:broker"),
    *("--workers", "1", "--max-async-tasks", "100", "--log-level", "ERROR"),
]
_started = False


@broker.task(task_name="work")
async def work(sent: float) -> None:
    note(sent)


async def send(sent: float) -> None:
    global _started
    if not _started:
        await broker.startup()
        _started = True
    await work.kiq(sent)
