"""The line that says what a program runs."""

from __future__ import annotations

import pytest

from mainspring import Scheduler
from mainspring.scheduler.start_message import MOST_NAMED, summary


@pytest.mark.parametrize(("more", "words"), [(1, " and 1 more job from"), (2, " and 2 more jobs")])
def test_the_jobs_that_are_not_named_are_counted(more: int, words: str) -> None:
    scheduler = Scheduler("memory://")
    for n in range(MOST_NAMED + more):
        scheduler.job(id=f"job-{n}")(_nothing)
    assert words in summary(scheduler)


def _nothing() -> None: ...
