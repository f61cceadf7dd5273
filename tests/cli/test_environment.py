from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Run

StoredRuns = dict[str, str]


@pytest.fixture(params=["with dotenv", "without dotenv"])
def dotenv(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `server` there is no python-dotenv."""
    if request.param == "without dotenv":
        monkeypatch.setitem(sys.modules, "dotenv", None)


@pytest.mark.usefixtures("dotenv")
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
    run("version")
    assert os.environ.get("MAINSPRING_STORE") == value


@pytest.mark.usefixtures("dotenv")
def test_a_variable_that_is_set_wins_over_the_env_file(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", "sqlite:///set.db")
    (folder / ".env").write_text("MAINSPRING_STORE=sqlite:///file.db\n")
    run("version")
    assert os.environ["MAINSPRING_STORE"] == "sqlite:///set.db"


@pytest.mark.parametrize("value", ['"one\\ttwo"', "'sqlite:///${HOME}/jobs.db'", '"unclosed'])
def test_what_only_dotenv_reads_is_refused_without_it(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setitem(sys.modules, "dotenv", None)
    (folder / ".env").write_text(f"PORT=80\nMAINSPRING_STORE={value}\n")
    refused = run("version")
    assert refused.code == 2
    assert "line 2 of " in refused.err
    assert "install python-dotenv" in refused.err
