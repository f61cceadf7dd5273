"""Values of options: how they are read, and how wrong ones are refused."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.support.command_line import Run

StoredRuns = dict[str, str]

A_DURATION = "is not a duration such as 90s, 5m or 1h30m (a bare number is seconds)"
A_SIZE = "'lots' is not a size such as 512MiB or 2GB, or a number of bytes"


@pytest.mark.parametrize("text", ["90s", "1m30s", "PT1M30S", "90", "90.0"])
def test_a_duration_has_a_unit_or_is_seconds(run: Run, stored_runs: StoredRuns, text: str) -> None:
    queued = run("enqueue", "daily_report", "--delay", text, "--json").json
    made, due = (datetime.fromisoformat(queued[name]) for name in ("created_at", "run_at"))
    assert 89 < (due - made).total_seconds() < 91


@pytest.mark.parametrize("text", ["-5", "-5s", "soon", "nan", "inf", "1e400", "", "5 parsecs"])
def test_a_wrong_duration_is_refused_with_the_option_and_what_is_allowed(
    run: Run, text: str
) -> None:
    refusal = run("enqueue", "x", "--delay", text).refusal
    assert f"invalid value for '--delay': {text!r} {A_DURATION}" in refusal


WORKER = ("worker", "--file", "jobs.toml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*WORKER, "--drain-timeout", "-5"), f"'--drain-timeout': '-5' {A_DURATION}"),
        ((*WORKER, "--prune-every", "2d"), "'--prune-every': '2d' is not 1 second to 1 day"),
        ((*WORKER, "--memory-limit", "lots"), A_SIZE),
        (("serve", "--drain-timeout", "5d"), "'5d' is not a duration of at most 1 hour"),
        (("serve", "--prune-every", "0"), "'--prune-every': '0' is not 1 second to 1 day"),
        (("serve", "--memory-limit", "lots"), A_SIZE),
        (("serve", "--port", "99999"), "invalid value for '--port'"),
        (("keys", "create", "ci", "--expires", "soon"), f"'--expires': 'soon' {A_DURATION}"),
        (("enqueue", "x", "--delay", "soon"), f"'--delay': 'soon' {A_DURATION}"),
        (("enqueue", "x", "--dedupe-for", "-1s"), f"'--dedupe-for': '-1s' {A_DURATION}"),
        (("enqueue", "x", "--wait", "--timeout", "-1"), f"'--timeout': '-1' {A_DURATION}"),
        (
            ("jobs", "rotate-secret", "x", "--old-valid-for", "?"),
            "'--old-valid-for': '?' is not",
        ),
    ],
)
def test_every_command_names_the_option_as_it_is_typed(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    assert message in run(*words).refusal
