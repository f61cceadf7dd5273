"""What commands print: stored text cannot control the terminal."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Row:
    id: str
    job: str
    why: str


ROWS = [
    Row("01a1e9c51aa7e2a2f47e51af8edeef83", "send_email", "ValueError: row 4821 has no price"),
    Row("01a1e9c51aa7f3d8451e87767388b6d8", "send_email", ""),
    Row("nightly@20261116T033000Z", "nightly", "upstream failed"),
]
NARROWING: list[Column[Row]] = [
    Column("id", lambda row: row.id, whole=True, by_prefix=True),
    Column("job", lambda row: row.job, whole=True, hide=1),
    Column("due", lambda row: "", lambda row: "09:30 (now)", short=lambda row: "09:30", whole=True),
    Column("why", lambda row: row.why, least=8),
]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (100, f"{ROWS[0].id}  send_email  09:30 (now)  ValueError: row 4821 has no price"),
        (90, f"{ROWS[0].id}  send_email  09:30  ValueError: row 4821 has no price"),
        (70, f"{ROWS[0].id}  send_email  09:30  ValueError: row …"),
        (50, "01a1e9c51aa7e…  send_email  09:30  ValueError: ro…"),
        (40, "01a1e9c51aa7e…  09:30  ValueError: row …"),
    ],
)
def test_a_row_of_a_narrow_table_stays_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, shown: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    output = Output()
    output.pretty = True
    output.table(NARROWING, ROWS)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert lines[2].rstrip() == shown
    hidden = "left out of this narrow table: job. A wider terminal or --json has them\n"
    assert printed.err == (hidden if columns == 40 else "")
