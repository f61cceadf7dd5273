"""What the library logs about runs."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import RunContext
from tests.support.engine import ended, run_once
from tests.support.scheduler_fixtures import Make


@pytest.fixture
def info(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "mainspring"):
        yield caplog


def on(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name == "mainspring.run" and r.levelno == level]


async def test_a_failed_attempt_warns_and_the_last_one_is_an_error(
    make: Make, info: pytest.LogCaptureFixture
) -> None:

    async def report() -> None:
        raise ValueError("no figures")

    run = await run_once(make(), report, retries=1, backoff="fixed", retry_delay="50ms")
    [warning], [error] = on(info, logging.WARNING), on(info, logging.ERROR)
    assert "job report: attempt 1 failed, next attempt in " in warning.getMessage()
    assert "job report: attempt 2 failed, no attempt follows" in error.getMessage()
    for attempt, record in enumerate((warning, error), 1):
        assert f"ValueError: no figures (run {run.id})" in record.getMessage()
        facts = record.__dict__
        assert (facts["job_id"], facts["run_id"], facts["attempt"]) == ("report", run.id, attempt)
        shown = logging.Formatter().format(record)
        assert 'raise ValueError("no figures")' in shown
        assert "engine/executors/loop.py" not in shown  # the traceback begins in the handler


@pytest.mark.parametrize("log_each_run", [True, False])
async def test_success_is_logged_at_info_unless_the_operator_says_otherwise(
    make: Make, info: pytest.LogCaptureFixture, log_each_run: bool
) -> None:
    scheduler = make().configure(log_each_run=log_each_run)

    @scheduler.job()
    async def report(ctx: RunContext) -> None:
        ctx.log.info("a line of the handler")

    async with scheduler:
        run = await ended(scheduler, await report.enqueue())
    told = [record.getMessage() for record in on(info, logging.INFO)]
    assert any(f"(run {run.id})" in line for line in told) is log_each_run
    assert "a line of the handler" in info.text


async def test_a_start_that_came_too_late_warns(
    make: Make, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer, worker = make(file, workers=0), make(file)
    for scheduler in (producer, worker):

        @scheduler.job(start_deadline="1ms", id="late")
        async def late() -> None: ...

    async with producer:
        run = await producer.enqueue("late")
        await asyncio.sleep(0.01)
        async with worker:
            await ended(worker, run)
    assert f"its start deadline had passed (run {run.id})" in caplog.text


async def test_start_and_stop_are_logged_once(make: Make, info: pytest.LogCaptureFixture) -> None:
    async with make():
        pass
    lines = [r.getMessage() for r in info.records if r.name == "mainspring"]
    assert [line.split()[-1] for line in lines if line.startswith("worker ")] == [
        "started",
        "stopped",
    ]


PROGRAM = """
    from mainspring import Scheduler

    scheduler = Scheduler("sqlite:///jobs.db")

    @scheduler.job()
    def report(figures):
        raise ValueError(f"no figures in {figures}")

    scheduler.blocking.start()
    run = report.blocking.enqueue([1, 2])
    scheduler.blocking.wait(run.id, 60)
    scheduler.blocking.stop()
"""


def test_without_any_logging_set_up_a_failure_reaches_stderr(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, rest = done.stderr.split("\n", 1)
    assert first.startswith("Mainspring runs report from sqlite:///jobs.db, at most 10 at once")
    assert rest.count("job report: attempt 1 failed, no attempt follows") == 1
    assert rest.count("Traceback (most recent call last)") == 1
    assert 'raise ValueError(f"no figures in {figures}")' in rest
    assert done.stdout == ""
