"""Fixtures for tests of the service: an application in this process, or `mainspring serve` as a
real process where sockets and signals matter."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.routing import Match

from mainspring import RunContext, Scheduler
from mainspring.core.clock import Clock
from mainspring.dashboard.app import create_app
from mainspring.service import compat, server
from mainspring.service.api import events, health, jobs, keys, runs, schedules
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks import WebhookSettings

LONG = 30.0
ROUTES: list[Any] = jobs.firing.routes + [
    route
    for part in (jobs, runs, schedules, events, health, keys, compat)
    for route in part.router.routes
]


class Api(httpx.AsyncClient):
    """A client of one application, and the application itself."""

    app: Any
    scheduler: Scheduler

    async def ok(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of an answer that has to be a good one."""
        answer = await self.request(method, path, **options)
        assert answer.is_success, answer.text
        self.check_described(answer)
        return answer.json() if answer.content else None

    def check_described(self, answer: httpx.Response) -> None:
        """Every answer is as the API's description says: no field more, none less."""
        asked = answer.request
        scope = {"type": "http", "method": asked.method, "path": asked.url.path}
        route = next(one for one in ROUTES if one.matches(scope)[0] is Match.FULL)
        if route.documents:
            is_usual = answer.status_code == (route.status_code or 200)
            kind = route.documents[0 if is_usual else -1]
            msgspec.json.decode(answer.content, type=kind, dec_hook=lambda kind, text: kind(text))


def sample_scheduler(store: Any = "memory://", **options: Any) -> Scheduler:
    webhooks = options.pop("webhooks", WebhookSettings(allow=["127.0.0.1"]))
    scheduler = Scheduler(store, webhooks=webhooks, poll="50ms", **options)

    @scheduler.job("0 9 * * *", description="Owned by code")
    async def report() -> dict[str, int]:
        return {"rows": 3}

    @scheduler.job()
    async def greet(ctx: RunContext, name: str = "you") -> str:
        ctx.log.info("greeting %s", name)
        if name == "nobody":
            raise ValueError("there is nobody")
        return f"hello {name}"

    @scheduler.job()
    async def forever() -> None:
        await asyncio.Event().wait()

    return scheduler


Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """`await make(workers=0)`: a started application and a client on loopback."""
    async with AsyncExitStack() as stack:

        async def made(
            scheduler: Scheduler | None = None,
            *,
            settings: dict[str, Any] | None = None,
            loopback: bool = True,
            without_keys: bool = False,
            service_clock: Clock | None = None,
            **options: Any,
        ) -> Api:
            scheduler = scheduler or sample_scheduler(**options)
            if not scheduler.started:
                await stack.enter_async_context(scheduler)
            read = ServiceSettings.read(**(settings or {}))
            app = create_app(
                scheduler, read, loopback=loopback, without_keys=without_keys, clock=service_clock
            )
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            client = Api(transport=transport, base_url="http://127.0.0.1:3000")
            client.app, client.scheduler = app, scheduler
            return await stack.enter_async_context(client)

        yield made


@pytest.fixture
async def api(make: Make) -> Api:
    made: Api = await make(workers=0)
    return made


@pytest.fixture
async def working(make: Make) -> Api:
    made: Api = await make(workers=4)
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Scheduler]:
    """The schedulers that `mainspring serve` has started in this process. It does everything but
    serve requests: it listens, opens the store and looks for a key."""
    schedulers: list[Scheduler] = []

    async def record(scheduler: Scheduler, *_: Any) -> bool:
        schedulers.append(scheduler)
        return False

    monkeypatch.setattr(server, "_run_until_signal", record)
    return schedulers


WEBHOOK = {
    "schedule": "0 */5 * * * *",
    "endpoint": "https://api.example.com/webhook",
    "method": "POST",
    "headers": {"Authorization": "Bearer YOUR_TOKEN", "Content-Type": "application/json"},
    "body": {"event": "scheduled_task", "timestamp": "{{timestamp}}"},
}


async def until(condition: Callable[[], Any]) -> Any:
    """Poll for what no event tells."""
    ends = time.monotonic() + LONG
    while True:
        found = await condition()
        if found:
            return found
        assert time.monotonic() < ends, "it did not come true in time"
        await asyncio.sleep(0.02)


class ServiceProcess:
    """`mainspring serve` as a process; its URL is known once it says so."""

    def __init__(self, folder: Path, *words: str, **environ: str) -> None:
        source = Path(__file__).parents[2] / "src"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "serve", "--json", *words],
            cwd=folder,
            env={**clean, "PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.err: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.told: dict[str, Any] = {}

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.err.append(line)

    def wait_ready(self) -> ServiceProcess:
        assert self.popen.stdout is not None
        text = ""
        for line in self.popen.stdout:
            text += line
            if line.startswith("}"):
                break
        assert text, f"it ended with {self.popen.wait()}: {''.join(self.err)}"
        self.told = json.loads(text)
        return self

    @property
    def url(self) -> str:
        return str(self.told["url"])

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=LONG, **options)

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.popen.pid, number)

    def ends(self) -> int:
        code = self.popen.wait(LONG)
        self._reader.join(LONG)
        return code


Serve = Callable[..., ServiceProcess]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve()` starts `mainspring serve` on a free port in the test's folder."""
    started: list[ServiceProcess] = []

    def begin(*words: str, ready: bool = True, **environ: str) -> ServiceProcess:
        given = words if "--port" in words else (*words, "--port", "0")
        started.append(ServiceProcess(tmp_path, *given, **environ))
        return started[-1].wait_ready() if ready else started[-1]

    yield begin
    for one in started:
        one.popen.kill()
        one.popen.wait()
