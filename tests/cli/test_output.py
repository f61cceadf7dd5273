"""What commands print: stored text cannot control the terminal."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.cli import processes
from mainspring.cli.output import Column, Output, local, printable, relative, span
from tests.support.command_line import Run

HOSTILE = "\x1b]0;owned\x07 \x1b[2J \x9b31m \x7f \x00 \r end"
ESCAPED = r"\x1b]0;owned\x07 \x1b[2J \x9b31m \x7f \x00 \x0d end"


def test_control_characters_are_escaped_but_new_lines_and_tabs_stay() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable("one\n\ttwo: ünïcödé ✓") == "one\n\ttwo: ünïcödé ✓"
    assert printable("lone \ud800") == r"lone \ud800"


@pytest.mark.parametrize("pretty", [False, True])
def test_stored_text_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str], pretty: bool
) -> None:
    output = Output()
    output.pretty = pretty
    columns: list[Column[str]] = [Column("text", str)]
    output.line(HOSTILE)
    output.fields([("description", HOSTILE)])
    output.table(columns, [HOSTILE])
    output.note(HOSTILE)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert not set(text) & set("\x1b\x07\x9b\x7f\x00\r")
        assert r"\x1b]0;owned\x07" in text


def test_json_holds_the_same_text_in_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).document({"text": HOSTILE})
    written = capsys.readouterr().out
    assert json.loads(written) == {"text": HOSTILE}
    assert not set(written) & set("\x1b\x07\x9b\x7f\x00\r")


def test_a_description_and_an_error_are_printed_escaped(run: Run, folder: object) -> None:
    store = ("--store", "sqlite:///mainspring.db")
    run("keys", "create", "first")  # makes the store
    run("jobs", "add", "ping", "--handler", "x", "--description", "a\x1b[2Jb", *store)
    assert r"a\x1b[2Jb" in run("jobs", "show", "ping").out
    refused = run("jobs", "show", "\x1b[2J")
    assert "\x1b" not in refused.err
    assert refused.code == 2


def test_log_lines_are_escaped() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "failed: %s", ("\x1b[2J",), None)
    handler = processes._log_handler(as_json=False)
    assert handler.format(record).endswith(r"failed: \x1b[2J")
    document = json.loads(processes._log_handler(as_json=True).format(record))
    assert document["message"] == "failed: \x1b[2J"


NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (0.4, "now"),
        (1, "in 1 second"),
        (-59, "59 seconds ago"),
        (59.7, "in 1 minute"),
        (300, "in 5 minutes"),
        (3599, "in 1 hour"),
        (-7200, "2 hours ago"),
        (86_399, "in 1 day"),
        (10 * 86_400, "in 10 days"),
    ],
)
def test_a_relative_time_has_one_unit(seconds: float, words: str) -> None:
    assert relative(NOW + timedelta(seconds=seconds), NOW) == words


def test_local_times_are_no_longer_than_needed() -> None:
    assert local(NOW + timedelta(hours=1), NOW, UTC) == "13:00:00"
    assert local(NOW + timedelta(days=1), NOW, UTC) == "Mon 16 Nov 12:00:00"
    assert local(NOW + timedelta(days=365), NOW, UTC) == "Mon 15 Nov 2027 12:00"


def test_a_span_has_at_most_two_units() -> None:
    assert [span(s) for s in (0.004, 9.99, 12, 185, 7800)] == [
        "0.00s",
        "9.99s",
        "12s",
        "3m05s",
        "2h10m",
    ]
