"""The examples of notifications do what their page says, at a server of the test."""

import asyncio
import gzip
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring import Scheduler
from tests.support.doc_examples import DOCS, blocks
from tests.support.webhook_endpoint import endpoint

PAGE = DOCS / "how-to" / "send-notifications.md"


def write(folder: Path, title: str) -> Path:
    [text] = [block.text for block in blocks(PAGE) if block.title == title]
    (folder / title).write_text(text)
    return folder / title


def test_the_file_is_one_that_a_scheduler_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_URL", "https://hooks.example.org/x")
    monkeypatch.setenv("SMTP_PASSWORD", "s3cret")
    assert Scheduler("memory://", jobs=write(tmp_path, "mainspring.toml")).code_jobs == []


async def test_sentry_gets_a_failed_run_with_its_exception(tmp_path: Path) -> None:
    script = write(tmp_path, "with_sentry.py")
    async with endpoint() as server:
        dsn = f"http://key@127.0.0.1:{server.port}/1"
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, script), cwd=tmp_path, env={**os.environ, "SENTRY_DSN": dsn}
        )
        assert await asyncio.wait_for(program.wait(), 60) == 0
    events: list[Any] = []
    for request in server.requests:
        zipped = request.headers.get("content-encoding") == "gzip"
        body = gzip.decompress(request.body) if zipped else request.body
        events += [json.loads(line) for line in body.splitlines() if b'"exception"' in line]
    [event] = events  # the first attempt failed too, and is none
    assert event["exception"]["values"][-1]["value"] == "no money"
    assert (event["extra"]["job_id"], event["extra"]["attempt"]) == ("charge", 2)


async def test_a_monitor_is_pinged_after_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("with_pings", write(tmp_path, "with_pings.py"))
    assert spec is not None
    assert spec.loader is not None
    page: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)

    async def broken() -> None:
        raise ValueError("no")

    hooks = {"on_success": page.succeeded, "on_error": page.failed}
    page.scheduler.job(retries=1, retry_delay="10ms", **hooks)(broken)

    async with endpoint() as server:
        monkeypatch.setenv("PING_URL", server.url)
        async with page.scheduler as scheduler:
            for job in ("back_up", "broken"):
                await scheduler.wait((await scheduler.trigger(job)).id, 60)
            async with asyncio.timeout(60):
                while len(server.requests) < 2:
                    await asyncio.sleep(0.02)
    assert [request.target for request in server.requests] == ["/hook", "/hook/fail"]
