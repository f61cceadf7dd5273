"""`python drive.py APP`: measure one peer, and print its figures as JSON.

An app has `send(sent)`, which enqueues a task that notes the time at which it begins, and `WORKER`,
the command of its worker; one without it works in this process, and has `start` and `stop`. If its
database needs tables before the worker starts, `prepare` makes them. Each app runs in an
environment with its packages. Nothing here needs more than the standard library.
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
MOST_SECONDS = 12
"""Enqueueing ends then, and draining after twice as long: the rates are of what was done."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Worker:
    """The processes of a worker; of an app that works here, this process."""

    def __init__(self, app):
        self._app = app
        self._process = None

    async def start(self):
        if self._app.WORKER is None:
            await call(self._app.start)
            return
        self._spawn()

    def _spawn(self):
        begin = getattr(self._app, "begin", None)  # a worker that waits for a word
        pipe = subprocess.PIPE
        with open(f"{os.environ['BENCH_NOTES']}.log", "a") as log:
            self._process = subprocess.Popen(
                self._app.WORKER,
                cwd=getattr(self._app, "FOLDER", None),
                stdin=pipe if begin else None,
                stdout=pipe if begin else log,
                stderr=log,
                start_new_session=True,
            )
        if begin:
            begin(self._process)

    async def stop(self):
        if self._process is None:
            await call(self._app.stop)
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


async def wait_for(count, seconds):
    """Wait for so many notes; return how many are missing when the time is over."""
    ends = time.monotonic() + seconds
    while note.count() < count and time.monotonic() < ends:
        await asyncio.sleep(0.005)
    return count - note.count()


def quantile(values, part):
    return round(sorted(values)[min(len(values) - 1, int(part * len(values)))] * 1000, 1)


async def measure(app):
    figures = {"settings": app.SETTINGS}
    worker = Worker(app)
    if hasattr(app, "prepare"):
        await call(app.prepare)
    await worker.start()
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
        await wait_for(1 + SAMPLES, 20)
        waits = [began - sent for sent, began in note.read()[1:]]
        figures["start_p50_ms"], figures["start_p99_ms"] = (
            quantile(waits, 0.5),
            quantile(waits, 0.99),
        )
    finally:
        await worker.stop()

    began, sent = time.perf_counter(), 0
    while sent < RUNS and time.perf_counter() - began < MOST_SECONDS:
        await call(app.send, 0.0)
        sent += 1
    figures["enqueue_a_second"] = round(sent / (time.perf_counter() - began))
    before = note.count()
    await worker.start()
    try:
        await wait_for(before + sent, 2 * MOST_SECONDS)
        starts = sorted(began for _, began in note.read()[before:])
        figures["drain_a_second"] = round((len(starts) - 1) / (starts[-1] - starts[0]))
        if hasattr(app, "schedule"):
            await call(app.schedule, TICKS)
            await asyncio.sleep(2)
            before = note.count()
            await asyncio.sleep(TICK_SECONDS)
            late = [began - slot for slot, began in note.read()[before:] if slot]
            figures["late_p50_ms"], figures["late_p99_ms"] = (
                quantile(late, 0.5),
                quantile(late, 0.99),
            )
    finally:
        await worker.stop()
    return figures


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the worker ends, too
    print(json.dumps(asyncio.run(measure(importlib.import_module(sys.argv[1])))), flush=True)
    os._exit(0)  # some peers leave threads behind
