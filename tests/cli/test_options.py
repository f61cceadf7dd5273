"""Values of options: how they are read, and how wrong ones are refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring.cli.options import read_duration
from mainspring.errors import InvalidInput
from tests.support.command_line import Run

A_DURATION = "a duration such as 90s, 5m or 1h30m (a bare number is seconds)"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("PT5M", 300), ("1", 1), ("0.5", 0.5)]
)
def test_a_duration_has_a_unit_or_is_seconds(text: str, seconds: float) -> None:
    assert read_duration(text, "--x") == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["-5", "-5s", "soon", "nan", "inf", "1e400", "", "5 parsecs"])
def test_a_wrong_duration_is_refused_with_the_option_and_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_duration(text, "--x")
    assert str(refused.value) == f"--x is {A_DURATION}, not {text!r}"
    assert (refused.value.field, refused.value.given) == ("--x", text)


WORKER = ("worker", "--file", "jobs.toml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*WORKER, "--drain-timeout", "-5"), f"--drain-timeout is {A_DURATION}, not '-5'"),
        ((*WORKER, "--prune-every", "2d"), "--prune-every is 1 second to 1 day, not '2d'"),
        ((*WORKER, "--memory-limit", "lots"), "--memory-limit is a size such as 512MiB or 2GB"),
        (("serve", "--drain-timeout", "5d"), "--drain-timeout is at most 1 hour, not '5d'"),
        (("serve", "--prune-every", "0"), "--prune-every is 1 second to 1 day, not '0'"),
        (("serve", "--memory-limit", "lots"), "--memory-limit is a size such as 512MiB or 2GB"),
        (("serve", "--port", "99999"), "invalid value for '--port'"),
        (("keys", "create", "ci", "--expires", "soon"), f"--expires is {A_DURATION}, not 'soon'"),
        (("enqueue", "x", "--delay", "soon"), f"--delay is {A_DURATION}, not 'soon'"),
        (("enqueue", "x", "--dedupe-for", "-1s"), f"--dedupe-for is {A_DURATION}, not '-1s'"),
        (("enqueue", "x", "--wait", "--timeout", "-1"), f"--timeout is {A_DURATION}, not '-1'"),
        (("jobs", "rotate-secret", "x", "--old-valid-for", "?"), "--old-valid-for is a duration"),
    ],
)
def test_every_command_names_the_option_as_it_is_typed(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    assert message in run(*words).refusal
