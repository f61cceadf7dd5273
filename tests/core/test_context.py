"""`RunContext`: the facts, the log and the progress of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.core.context import MAX_LOG_BYTES, RunContext, UpstreamResults, UpstreamRun
from mainspring.core.model import Run, State

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def ctx() -> RunContext:
    run = Run(
        id="r1",
        job_id="mail",
        handler="send",
        created_at=NOW,
        scheduled_at=NOW,
        run_at=NOW,
        started_at=NOW + timedelta(seconds=1),
        attempt=3,
        token=5,
        payload={"to": "a"},
    )
    return RunContext(run)


@pytest.fixture
def program() -> Iterator[logging.Logger]:
    """The program's own logging of runs, put back afterwards."""
    logger = logging.getLogger("mainspring.run")
    level = logger.level
    yield logger
    logger.setLevel(level)


def bodies(ctx: RunContext) -> list[str]:
    return [line.split(" ", 1)[1] for line in ctx.log_lines]


def test_info_is_kept_though_the_program_shows_only_warnings(
    ctx: RunContext, program: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    program.setLevel(logging.WARNING)
    ctx.log.debug("no")
    ctx.log.info("kept")
    ctx.log.warning("shown")
    assert bodies(ctx) == ["INFO kept", "WARNING shown"]
    assert [record.message for record in caplog.records] == ["shown"]


def test_an_exception_is_kept_with_its_traceback(ctx: RunContext) -> None:
    try:
        raise KeyError("gone")
    except KeyError:
        ctx.log.exception("failed")
    [line] = ctx.log_lines
    assert "ERROR failed\nTraceback" in line
    assert line.endswith("KeyError: 'gone'")


@pytest.mark.parametrize("text", ["x" * 100, "☃" * 100], ids=["ascii", "wide"])
def test_the_newest_lines_are_kept_within_bounds(ctx: RunContext, text: str) -> None:
    for n in range(2000):
        ctx.log.info("%d %s", n, text)
    dropped, *kept = ctx.log_lines
    size = sum(len(line.encode()) + 1 for line in kept)
    assert MAX_LOG_BYTES - 1000 < size <= MAX_LOG_BYTES
    assert kept[-1].endswith(f"1999 {text}")
    assert dropped == f"… {2000 - len(kept)} earlier lines dropped"


@pytest.mark.parametrize("text", ["x", "☃", "\ud800"], ids=["ascii", "wide", "surrogate"])
@pytest.mark.parametrize("count", [MAX_LOG_BYTES, MAX_LOG_BYTES * 3])
def test_one_huge_line_is_cut_not_lost(ctx: RunContext, text: str, count: int) -> None:
    ctx.log.info("begin " + text * count)
    [line] = ctx.log_lines
    assert "INFO begin " in line
    assert MAX_LOG_BYTES - 5 < len(line.encode(errors="replace")) + 1 <= MAX_LOG_BYTES


# What `ctx.results` says about the runs that a run came after


SUCCEEDED = UpstreamRun(run_id="a-1", job_id="extract", state=State.SUCCEEDED, result=3)
FAILED = UpstreamRun(run_id="b-1", job_id="load", state=State.FAILED, error="OSError: disk full")
RESULTS = UpstreamResults([SUCCEEDED, FAILED])


def test_results_hold_what_succeeded_and_failed_holds_the_rest() -> None:
    assert RESULTS == {"extract": 3}
    assert dict(RESULTS.failed) == {"load": FAILED}
    assert RESULTS.runs == (SUCCEEDED, FAILED)


def test_the_result_of_a_failed_job_is_an_error_that_says_what_happened() -> None:
    with pytest.raises(KeyError, match=r"'load' has no result: its run b-1 was failed .*disk full"):
        RESULTS["load"]


def test_a_job_that_the_run_does_not_come_after_is_named_with_those_it_does() -> None:
    with pytest.raises(KeyError, match=r"does not come after a job 'lode'.*extract, load"):
        RESULTS["lode"]
    assert RESULTS.get("lode") is None
