"""`python drive.py APP`: measure one peer, and print its figures as JSON.

An app has `send(sent)`, which enqueues a task that notes the time at which it begins, and `WORKER`,
the command of its worker; one without it works in this process, and has `start` and `stop`. Each
runs in an environment with its packages. Nothing here needs more than the standard library.
"""

import asyncio
import importlib
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import note

RUNS = int(os.environ["BENCH_RUNS"])
SAMPLES = int(os.environ["BENCH_SAMPLES"])
IDLE_SECONDS = float(os.environ["BENCH_IDLE"])
TICKS = int(os.environ["BENCH_TICKS"])
TICK_SECONDS = int(os.environ["BENCH_TICK_SECONDS"])
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Worker:
    """The processes of a worker; of an app that works here, this process."""

    def __init__(self, app):
        self._app = app
        self._process = None

    def start(self):
        if self._app.WORKER is None:
            self._app.start()
            return
        with open(f"{os.environ['BENCH_NOTES']}.log", "a") as log:
            self._process = subprocess.Popen(
                self._app.WORKER, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self):
        if self._process is None:
            self._app.stop()
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(8)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ids(self):
        if self._process is None:
            return [os.getpid()]
        session = self._process.pid
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if sid(path) == session]

    def cpu(self):
        return sum(sum(map(int, stat(i)[11:13])) for i in self._ids()) / TICKS_PER_SECOND

    def megabytes(self):
        """The memory that belongs to these processes alone, and their share of the rest."""
        total = 0
        for i in self._ids():
            lines = Path(f"/proc/{i}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return round(total / 1024)


def stat(process):
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def sid(path):
    try:
        return int(stat(path.name)[3])
    except OSError:
        return None


async def call(function, *arguments):
    result = function(*arguments)
    if inspect.isawaitable(result):
        await result


async def wait_for(count, seconds=120):
    """Wait for so many notes; return how many are missing when none has come for a while."""
    ends, seen = time.monotonic() + seconds, 0
    while note.count() < count and time.monotonic() < ends:
        if note.count() > seen:
            seen, ends = note.count(), time.monotonic() + min(seconds, 15)
        await asyncio.sleep(0.005)
    return count - note.count()


def quantile(values, part):
    return round(sorted(values)[min(len(values) - 1, int(part * len(values)))] * 1000, 1)


async def measure(app):
    figures = {"settings": app.SETTINGS}
    worker = Worker(app)
    worker.start()
    try:
        await call(app.send, time.time())
        if await wait_for(1, 60):
            sys.exit("its worker runs nothing")
        await asyncio.sleep(2)
        used = worker.cpu()
        await asyncio.sleep(IDLE_SECONDS)
        figures["idle_percent_of_a_core"] = round((worker.cpu() - used) / IDLE_SECONDS * 100, 1)
        figures["worker_megabytes"] = worker.megabytes()

        for _ in range(SAMPLES):
            await asyncio.sleep(random.uniform(0.03, 0.08))
            await call(app.send, time.time())
        await wait_for(1 + SAMPLES)
        waits = [began - sent for sent, began in note.read()[1:]]
        figures["start_p50_ms"], figures["start_p99_ms"] = (
            quantile(waits, 0.5),
            quantile(waits, 0.99),
        )
    finally:
        worker.stop()

    began = time.perf_counter()
    for _ in range(RUNS):
        await call(app.send, 0.0)
    figures["enqueue_a_second"] = round(RUNS / (time.perf_counter() - began))
    before = note.count()
    worker.start()
    try:
        if lost := await wait_for(before + RUNS):
            figures["not_run"] = lost
        starts = sorted(began for _, began in note.read()[before:])
        figures["drain_a_second"] = round((len(starts) - 1) / (starts[-1] - starts[0]))
        if hasattr(app, "schedule"):
            await call(app.schedule, TICKS)
            await asyncio.sleep(2)
            before = note.count()
            await asyncio.sleep(TICK_SECONDS)
            late = [began - slot for slot, began in note.read()[before:]]
            figures["late_p50_ms"], figures["late_p99_ms"] = (
                quantile(late, 0.5),
                quantile(late, 0.99),
            )
    finally:
        worker.stop()
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(importlib.import_module(sys.argv[1])))), flush=True)
    os._exit(0)  # some peers leave threads behind
