"""`.enqueue` is checked by type, and the decorated function keeps its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
import asyncio
from datetime import datetime
from mainspring import Client, Enqueue, Job, Page, Run, RunContext, Scheduler

scheduler = Scheduler("memory://")
client: Client = scheduler


@scheduler.job
def bare(path: str) -> bytes:
    return path.encode()


@scheduler.job
async def bare_with_context(ctx: RunContext, to: str) -> int:
    return 1


@scheduler.job(retries=3)
async def send(ctx: RunContext, to: str, copies: int = 1) -> int:
    return copies


@scheduler.job("5m", retries=3, overlap="queue", retry_on=[OSError, "x.Y"], after=bare, tags="a")
def scheduled() -> None: ...


async def right(ctx: RunContext) -> None:
    run: Run = await bare.enqueue("x")
    data: bytes = bare("x")
    run = await bare_with_context.enqueue(to="a")
    number: int = await bare_with_context(ctx, "a")
    number = await send(ctx, to="a")
    run = await send.options(delay="5m", dedupe_key="k").enqueue("a", copies=2)
    runs: list[Run] = await send.enqueue_many([{"to": "a"}])
    number = scheduler.blocking.wait(send.blocking.enqueue(to="a")).result
    data = (await scheduler.get_run(await bare.enqueue(path="x"))).result
    anything: str = (await scheduler.wait("id")).result
    job: Job = await scheduler.add_job("a", handler=bare, payload={"path": "x"}, replace=True)
    job = await scheduler.update_job("a", schedule="5m", priority=3, enabled=False)
    run = await scheduler.enqueue("a", {"path": "x"}, delay="5m", dedupe_key="k")
    run = await scheduler.trigger("a", at=datetime(2030, 1, 1))
    runs = await scheduler.enqueue_many([Enqueue(bare, {"path": "x"}, delay="5m")])
    run = await scheduler.enqueue("a", after=[run, runs[0].id])
    done: bool = await scheduler.cancel(run)
    data = (await scheduler.wait(await bare.enqueue("x"))).result
    await scheduler.cancel_runs(job="a", state="pending")
    async with Client("memory://") as opened:
        run = await opened.enqueue("a", {"path": "x"}, delay="5m")


def plain() -> None:
    with scheduler.blocking as blocking:
        job: Job = blocking.add_job("a", handler=bare, retries=3)
        run: Run = blocking.enqueue("a", {"path": "x"}, delay="5m")
        runs: list[Run] = blocking.enqueue_many("a", [{"path": "x"}])
        page: Page[Run] = blocking.list_runs(job="a")
        done: bool = blocking.cancel(run.id)
        run = bare.blocking.options(delay="5m").enqueue("x")
    with client.blocking as opened:
        run = opened.enqueue("a", delay="5m")
    scheduler.blocking.stop(timeout="5s")
    scheduler.run(drain_timeout="5m")


async def wrong(ctx: RunContext) -> None:
    await send.enqueue()  # missing
    await send.enqueue(to=5)  # type
    await send.options(delay="5m").enqueue(copies="x", to="a")  # type
    await send(to="a")  # no context
    text: str = await send(ctx, to="a")  # result
    bare(5)  # type
    scheduler.job(retires=3)  # unknown
    scheduler.job(retries="3")  # type
    scheduler.job(overlap="skp")  # no choice
    await bare.enqueue(pathh="x")  # unknown
    await bare.options(delya="5m").enqueue("x")  # unknown
    await scheduler.add_job("a", handler=bare, retires=3)  # unknown
    await scheduler.update_job("a", priorty=3)  # unknown
    await scheduler.enqueue("a", delya="5m")  # unknown
    await scheduler.cancel_runs(jobs="a")  # unknown
    scheduler.blocking.nonexistent()  # unknown
    scheduler.blocking.add_job("a", retires=3)  # unknown
    scheduler.blocking.enqueue("a", delya="5m")  # unknown
    scheduler.blocking.get_run(5)  # type
    text = scheduler.blocking.enqueue("a")  # result
    bare.blocking.options(delya="5m")  # unknown
    await client.enqueue("a", delya="5m")  # unknown
    Enqueue("a", delya="5m")  # unknown
    text = (await scheduler.wait(await bare.enqueue("x"))).result  # result
    client.blocking.get_run(5)  # type
    client.job("5m")  # unknown
    client.blocking.drain()  # unknown
    bare.blocking.enqueue(path=b"x")  # type
"""


def marked(text: str) -> set[int]:
    return {at for at, line in enumerate(text.splitlines(), 1) if "  # " in line}


@pytest.mark.thorough
def test_wrong_calls_are_found_by_mypy(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    cache = f"--cache-dir={tmp_path}/cache"
    out, err, _ = api.run(["--strict", "--no-error-summary", cache, str(file)])
    told = [line.split(":")[1] for line in out.splitlines() if ": error:" in line]
    assert {int(number) for number in told} == marked(CALLS), out + err


@pytest.mark.thorough
def test_wrong_calls_are_found_by_pyright(tmp_path: Path) -> None:
    """By basedpyright: it is pyright, packaged with the Node.js that it needs."""
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    checker = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path)]
    command = [*checker, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    reports = json.loads(done.stdout)["generalDiagnostics"]
    lines = {
        report["range"]["start"]["line"] + 1 for report in reports if report["severity"] == "error"
    }
    assert lines == marked(CALLS), done.stdout
