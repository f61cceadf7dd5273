"""The line that `run()` prints at the start."""

from __future__ import annotations

import pytest

from mainspring.scheduler.start_message import MOST_NAMED, summary


@pytest.mark.parametrize(("more", "words"), [(1, " and 1 more job from"), (2, " and 2 more jobs")])
def test_the_jobs_that_are_not_named_are_counted(more: int, words: str) -> None:
    jobs = [f"job-{n}" for n in range(MOST_NAMED + more)]
    assert words in summary(jobs, "memory://", 10, None)


def test_the_line_shows_no_password() -> None:
    line = summary(["a"], "mongodb://me:secret@host/db", 1, frozenset({"mail"}))
    assert "secret" not in line
    assert "of the queues mail" in line
