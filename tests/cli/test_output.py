"""What commands print: stored text cannot control the terminal."""

from __future__ import annotations

import json
import logging

import pytest

from mainspring.cli import log_format
from mainspring.cli.output import Column, Output, printable
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
    handler = log_format._handler(as_json=False)
    assert handler.format(record).endswith(r"failed: \x1b[2J")
    document = json.loads(log_format._handler(as_json=True).format(record))
    assert document["message"] == "failed: \x1b[2J"
