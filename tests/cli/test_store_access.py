"""The variables of `.env`, by which commands find the store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command_line import Run


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("MAINSPRING_STORE=sqlite:///mainspring.db", "sqlite:///mainspring.db"),
        ("export MAINSPRING_STORE = sqlite:///mainspring.db  # ours", "sqlite:///mainspring.db"),
        ("MAINSPRING_STORE='sqlite:///$HOME.db' # ours", "sqlite:///$HOME.db"),
        ('mainspring_store="sqlite:///a b.db" # ours', "sqlite:///a b.db"),
        ("MAINSPRING_STORE=s3://bucket/prefix#1", "s3://bucket/prefix#1"),
        ("MAINSPRING_STORE=", None),
        ("# MAINSPRING_STORE=sqlite:///other.db", None),
    ],
)
def test_the_store_of_the_env_file_is_used(
    folder: Path, run: Run, line: str, value: str | None
) -> None:
    (folder / ".env").write_text(f"PORT=80\n\n{line}\nOTHER='several\nlines'\n")
    run("schedule", "@daily")
    assert os.environ.get("MAINSPRING_STORE") == value


def test_a_variable_that_is_set_wins_over_the_env_file(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", "sqlite:///set.db")
    (folder / ".env").write_text("MAINSPRING_STORE=sqlite:///file.db\n")
    run("schedule", "@daily")
    assert os.environ["MAINSPRING_STORE"] == "sqlite:///set.db"


def test_an_env_file_that_is_no_text_is_refused(folder: Path, run: Run) -> None:
    (folder / ".env").write_bytes(b"\xff\xfe")
    assert f"{folder / '.env'} cannot be read" in run("schedule", "@daily").refusal
