"""What `ctx.results` says about the runs that a run came after."""

from __future__ import annotations

import pytest

from mainspring.core.model import State
from mainspring.core.upstream_results import UpstreamResults, UpstreamRun

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
