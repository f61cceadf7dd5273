"""Webhook runs a second to an endpoint on loopback, beside two bare aiohttp loops.

    python -m bench webhooks [--json]
    python -m bench webhooks --scheduled [--rate 1000] [--seconds 30] [--json]

The endpoint is a process of its own that answers 200 with a small body. Both sides send the same
request from one process with the same number of calls in flight. Ours is everything else too: runs
claimed from SQLite at FULL, secrets decrypted, each request signed, the outcome, request and
response recorded with each attempt. One bare loop claims, signs and records as well, by the driver
alone and in batches; the other only calls. The garbage collector is set as in `mainspring serve`,
for all sides. Each round runs all one after another. CPU time is of the calling process with all
its threads: on a busy machine it says more than the rate.

With `--scheduled`, `mainspring serve` runs as a process of its own on SQLite, with as many jobs as
`--rate` says, which all call the endpoint every second. Beside the calls this is the firing of each
slot, a run recorded for each, and the service's own bookkeeping. It prints the slots that were lost
or skipped, how late the calls were, and the CPU time of the whole process for each call.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hmac
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from bench import bare_sqlite
from bench.measure import cpu_of, folder, milliseconds, ratio, rounded, rounds, say, spread
from mainspring import Event, Run, Scheduler, State
from mainspring.cli.processes import tune_garbage_collector
from mainspring.core.model import replace
from mainspring.stores import open_store
from mainspring.stores.protocol import RunQuery
from mainspring.webhooks import PreparedRequest, WebhookSettings

ROUNDS = 7
CALLS = 8_000
IN_FLIGHT = 100
BATCH = 200
KEY = b"a key of thirty-two random bytes"
BODY = {"event": "tick", "at": "{{timestamp}}", "run": "{{executionId}}"}
SETTINGS = WebhookSettings(allow=["127.0.0.1"], per_host=IN_FLIGHT)

ENDPOINT = """
import asyncio

class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.seen = transport, b""
    def data_received(self, data):
        self.seen += data
        head, end, rest = self.seen.partition(b"\\r\\n\\r\\n")
        if end:
            at = head.lower().index(b"content-length: ") + 16
            size = int(head[at:].split(b"\\r\\n", 1)[0])
            if len(rest) >= size:
                self.seen = rest[size:]
                self.transport.write(
                    b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n'
                    b'Content-Length: 11\\r\\n\\r\\n{"ok":true}')

async def main():
    server = await asyncio.get_running_loop().create_server(Answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scheduled", action="store_true", help="measure `mainspring serve`")
    parser.add_argument("--rate", type=int, default=1000, help="scheduled calls a second")
    parser.add_argument("--seconds", type=int, default=30, help="how long to measure")


def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.scheduled:
        return measure_scheduled(options.rate, options.seconds)
    return measure_enqueued()


def measure_enqueued() -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    tune_garbage_collector()
    with endpoint() as url:
        for _ in rounds(ROUNDS, "webhooks"):
            with folder() as path:
                ours, cost, request = asyncio.run(webhooks(path, url))
                measured = {
                    "webhook runs": (ours, cost),
                    "bare runs": asyncio.run(bare_runs(path / "bare.db", request)),
                    "bare calls": asyncio.run(bare_calls(request)),
                }
            for name, (rate, used) in measured.items():
                rates.setdefault(name, []).append(rounded(rate))
                cpu.setdefault(name, []).append(rounded(used))
    return {
        "per_second": {name: spread(values) for name, values in rates.items()},
        "of_bare_loop": ratio(rates["webhook runs"], rates["bare runs"]),
        "of_bare_calls": ratio(rates["webhook runs"], rates["bare calls"]),
        "cpu_us_a_call": {name: spread(values) for name, values in cpu.items()},
        "calls_per_round": CALLS,
        "in_flight": IN_FLIGHT,
    }


@contextmanager
def endpoint() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", ENDPOINT], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/hook"
    finally:
        process.kill()
        process.wait()


async def webhooks(path: Path, url: str) -> tuple[float, float, PreparedRequest]:
    """Runs a second from the first claim to the last record, their CPU time in µs, and the request
    that was sent."""
    store = f"sqlite:///{path}/jobs.db"
    async with Scheduler(store, workers=0, webhooks=SETTINGS) as producer:
        webhook = {"url": url, "body": BODY, "headers": {"Authorization": "Bearer bench-token"}}
        job = await producer.add_job("call", webhook=webhook)
        await producer.enqueue_many("call", [None] * CALLS)
        request = producer.webhooks.preview(job, datetime.now(UTC), run_id="0" * 32)
    done, all_done = 0, asyncio.Event()

    def succeeded(event: Event) -> None:
        nonlocal done
        done += 1
        if done == CALLS:
            all_done.set()

    worker = Scheduler(store, workers=IN_FLIGHT, webhooks=SETTINGS)
    worker.on("run.succeeded", succeeded)
    began, worked = time.perf_counter(), time.process_time()
    async with worker:
        await all_done.wait()
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        run = (await worker.list_runs(limit=1)).items[0]
        assert run.attempts[0].detail["response"]["body"] == '{"ok":true}'
    return CALLS / seconds, worked / CALLS * 1e6, request


async def bare_calls(request: PreparedRequest) -> tuple[float, float]:
    """Calls a second, and their CPU time in µs: nothing is claimed, signed or recorded."""
    async with bare_session() as session:
        began, worked = time.perf_counter(), time.process_time()
        await call_all(session, [request] * CALLS)
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        return CALLS / seconds, worked / CALLS * 1e6


async def bare_runs(path: Path, request: PreparedRequest) -> tuple[float, float]:
    """The same of runs that are claimed from SQLite, signed and recorded, 200 to a commit."""
    bare_sqlite.fill(path, CALLS)
    async with bare_session() as session:
        with bare_sqlite.database(path) as connection:
            began, worked = time.perf_counter(), time.process_time()
            while taken := bare_sqlite.bare_claim(connection, BATCH):
                answers = await call_all(session, [sign(request, run[0]) for run in taken])
                details = [
                    {"request": [request.url, {**request.headers}], "response": answer}
                    for answer in answers
                ]
                bare_sqlite.bare_complete(connection, taken, details)
            seconds, worked = time.perf_counter() - began, time.process_time() - worked
    return CALLS / seconds, worked / CALLS * 1e6


def sign(request: PreparedRequest, run_id: str) -> PreparedRequest:
    at = str(int(time.time()))
    digest = hmac.digest(KEY, f"{run_id}.{at}.".encode() + request.body, "sha256")
    signature = f"v1,{base64.b64encode(digest).decode()}"
    signed = {"webhook-id": run_id, "webhook-timestamp": at, "webhook-signature": signature}
    return replace(request, headers={**request.headers, **signed})


def bare_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def call_all(
    session: aiohttp.ClientSession, requests: Sequence[PreparedRequest]
) -> list[list[Any]]:
    """Status, headers and body of each answer."""
    answers: list[list[Any]] = []
    left = iter(requests)

    async def caller() -> None:
        for request in left:
            async with session.request(
                request.method, request.url, headers=request.headers, data=request.body
            ) as answer:
                body = await answer.read()
            answers.append([answer.status, [*answer.headers.items()], body.decode()])

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return answers


# -- scheduled ------------------------------------------------------------------------------


def measure_scheduled(rate: int, seconds: int) -> dict[str, Any]:
    load = [round(value, 2) for value in os.getloadavg()]
    with endpoint() as url, folder() as path:
        store = f"sqlite:///{path}/jobs.db"
        asyncio.run(define(store, url, rate))
        with serve(path, store) as process:
            first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
            time.sleep((first - datetime.now(UTC)).total_seconds())
            used = cpu_of(process)
            say(f"measuring for {seconds} seconds")
            time.sleep(seconds)
            used = cpu_of(process) - used
            time.sleep(3)  # for calls that are late
        runs = asyncio.run(runs_between(store, first, first + timedelta(seconds=seconds)))
    called = [run for run in runs if run.state is State.SUCCEEDED]
    late = [(run.attempts[0].started_at - run.scheduled_at).total_seconds() for run in called]
    skipped = sum(
        run.result["count"] if run.reason == "misfire" else 1
        for run in runs
        if run.state is State.SKIPPED
    )
    return {
        "slots": rate * seconds,
        "called": len(called),
        "skipped": skipped,
        "lost": rate * seconds - len(runs) - skipped + sum(r.state is State.SKIPPED for r in runs),
        "calls_a_second": rounded(len(called) / seconds),
        "cpu_us_a_call": rounded(used / max(1, len(called)) * 1e6),
        "cores_used": round(used / seconds, 2),
        "lateness": milliseconds(late) if late else {},
        "load_before": load,
        "cores": os.cpu_count(),
    }


async def define(store: str, url: str, rate: int) -> None:
    async with Scheduler(store, workers=0, webhooks=SETTINGS) as producer:
        webhook = {"url": url, "body": BODY, "headers": {"Authorization": "Bearer bench-token"}}
        for n in range(rate):
            await producer.add_job(f"call-{n}", webhook=webhook, schedule="* * * * * *")


@contextmanager
def serve(path: Path, store: str) -> Iterator[int]:
    """`mainspring serve` on this store, once it is ready; the id of its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mainspring", "serve", "--quiet", "--store", store]
    command += ["--port", str(port), "--workers", str(IN_FLIGHT), "--allow-private", "127.0.0.1"]
    told = {**os.environ, "MAINSPRING_PER_HOST": str(IN_FLIGHT)}
    with (path / "serve.log").open("w") as log:
        process = subprocess.Popen(command, cwd=path, env=told, stdout=log, stderr=log)
    try:
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/livez"):
                break
            assert process.poll() is None, (path / "serve.log").read_text()
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


async def runs_between(url: str, first: datetime, last: datetime) -> list[Run]:
    """The runs of the slots between two moments."""
    store = open_store(url)
    await store.open()
    found: list[Run] = []
    cursor = None
    while True:
        query = RunQuery(since=first - timedelta(seconds=1), limit=1000, cursor=cursor)
        page = await store.find(query)
        found += [run for run in page.items if first <= run.scheduled_at < last]
        if (cursor := page.cursor) is None:
            await store.close()
            return found
