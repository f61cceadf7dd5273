import os
import sys

from huey import SqliteHuey
from note import note

app = SqliteHuey("bench", filename=os.environ["BENCH_FILE"], results=False, fsync=True)
work = app.task()(note)
SETTINGS = "SQLite, fsync, 4 threads, polling at 10 to 50 ms"
WORKER = [
    *(sys.executable, "-m", "huey.bin.huey_consumer", "huey_app.app"),
    *("-w", "4", "-d", "0.01", "-m", "0.05", "-n", "-q"),
]


def send(sent: float) -> None:
    work(sent)
