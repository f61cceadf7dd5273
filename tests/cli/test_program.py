"""What holds for every command: help, exit codes, errors, and which store it uses."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring import __version__
from tests.support.command_line import Run, command_words, until

StoredRuns = dict[str, str]

COMMANDS = command_words()
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example(run: Run, words: tuple[str, ...]) -> None:
    answer = run(*words, "--help")
    assert answer.code == 0
    examples = answer.out.partition("Example")[2]
    assert f"mainspring {' '.join(words)}" in examples
    assert "--json" in answer.out


def test_without_a_command_help_is_shown(run: Run) -> None:
    assert run().out == run("--help").out
    assert "mainspring worker app:scheduler" in run().out
    assert run("jobs").out == run("jobs", "--help").out


def test_version_is_printed(run: Run) -> None:
    assert run("--version").out == f"mainspring {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("jobs", "lst"), "Did you mean 'list'?"),
        (("frobnicate",), "no such command 'frobnicate'"),
        (("jobs", "list", "--colour"), "no such option"),
        (("jobs", "list", "--limit", "0"), "--limit"),
        (("jobs", "show"), "missing argument 'JOB'"),
        (("jobs", "list", "--store", "sqlite:///a", "--app", "b:c"), "--store or --app, not both"),
        (("jobs", "list", "--store", "redis://x"), "there is no store for redis://"),
        (("jobs", "list", "--store", "mainspring.db"), "named by a URL"),
        (("jobs", "list", "--store", "memory://"), "this command cannot open it"),
        (("enqueue", "x", "--app", "app:forgetful"), "this command cannot open it"),
        (("jobs", "list", "--store", ""), "--store is empty"),
        (("runs", "list", "--state", "done"), "--state is one of waiting, pending, running"),
        (("chain", "x", "--after-failure", "maybe"), "--after-failure is skip or run, not 'maybe'"),
        (("import", "crontab", "missing"), "missing cannot be read: No such file or directory"),
        (("keys", "create"), "missing argument 'NAME'"),
        (("serve", "--demo", "--store", "memory://"), "leave out --store"),
    ],
)
def test_wrong_words_are_refused_with_what_is_allowed(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    answer = run(*words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("error: ")
    told = run(*words, "--json")
    assert (told.code, told.out) == (2, "")
    assert message.lower() in json.loads(told.err)["error"].lower()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("schedule", "0", "9", "*", "*", "*"), "mainspring schedule '0 9 * * *'"),
        (("jobs", "add", "x", "--schedule", "0", "9", "*", "*", "*"), "--schedule '0 9 * * *'"),
    ],
)
def test_a_schedule_without_quotes_is_told_to_get_some(
    run: Run, words: tuple[str, ...], advice: str
) -> None:
    assert f"put the schedule in quotes, as in {advice}\n" in run(*words).refusal


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "list"),
        ("jobs", "pause", "x"),
        ("runs", "list"),
        ("runs", "show", "x"),
        ("enqueue", "x"),
        ("enqueue", "x", "--app", "app:scheduler"),
    ],
)
def test_a_missing_database_is_told_and_not_made(
    run: Run, folder: Path, words: tuple[str, ...]
) -> None:
    answer = run(*words).refusal
    assert f"there is no database {folder / 'mainspring.db'}" in answer
    assert "mainspring worker" in answer
    assert not list(folder.glob("*.db*"))


def test_a_store_that_cannot_be_opened(run: Run, folder: Path) -> None:
    (folder / "mainspring.db").write_text("this is no database at all " * 100)
    answer = run("jobs", "list")
    assert (answer.code, answer.out) == (3, "")
    assert "mainspring.db" in answer.err
    assert "Traceback" not in answer.err
    assert run("jobs", "list", "--json").code == 3


def moved_away(folder: Path) -> Path:
    """The database elsewhere, with its log: two connections that close at once may leave one."""
    for file in folder.glob("mainspring.db*"):
        file.rename(folder / file.name.replace("mainspring", "elsewhere"))
    return folder / "elsewhere.db"


def test_where_the_store_is(
    run: Run, stored_runs: StoredRuns, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = moved_away(folder)
    url = f"sqlite:///{moved}"
    assert len(run("jobs", "list", "--store", url, "--json").json["items"]) == 5
    monkeypatch.setenv("MAINSPRING_STORE", url)
    assert len(run("jobs", "list", "--json").json["items"]) == 5
    assert run("jobs", "list", "--app", "app:scheduler").code == 2
    monkeypatch.setenv("MAINSPRING_APP", "app:scheduler")
    assert run("jobs", "list").code == 2
    assert run("jobs", "list", "--store", url).code == 0


@pytest.mark.parametrize("words", [("jobs", "list"), ("runs", "list"), ("doctor",)], ids=" ".join)
def test_every_command_finds_the_services_store(
    run: Run,
    stored_runs: StoredRuns,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    """What `serve` takes from MONGODB_URI and `.env`, the commands about its store do too."""
    moved = moved_away(folder)
    assert run(*words).code != 0
    (folder / ".env").write_text(f"MONGODB_URI=sqlite:///{moved}\nPORT=no matter here\n")
    assert run(*words).code == 0
    monkeypatch.setenv("MONGODB_URI", "sqlite:///nowhere.db")
    assert run(*words).code != 0
    monkeypatch.setenv("MAINSPRING_STORE", f"sqlite:///{moved}")
    assert run(*words).code == 0


def test_an_empty_store_says_how_to_go_on(run: Run, stored_runs: StoredRuns) -> None:
    for job in run("jobs", "list", "--json").json["items"]:
        run("jobs", "remove", job["id"], "--force")
    answer = run("jobs", "list")
    assert (answer.code, answer.out) == (0, "")
    assert "no jobs yet: decorate a function with @scheduler.job()" in answer.err


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DEBUG", "1")
    assert "Traceback" in run("schedule", "nonsense").refusal


def test_completion_offers_job_ids_and_states(stored_runs: StoredRuns, folder: Path) -> None:
    def offered(line: str) -> str:
        words = [sys.executable, "-c", "from mainspring.cli import main; main()"]
        environment = {
            **os.environ,
            "PYTHONPATH": SOURCE,
            "_MAINSPRING_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        return done.stdout

    # A store that takes longer than a second is given up, so a busy machine needs more tries.
    until(lambda: offered("mainspring jobs show send").split() == ["send_email"])
    until(lambda: stored_runs["good"] in offered("mainspring runs show "))
    assert offered("mainspring runs list --state su").split() == ["succeeded"]
    (folder / "trap.py").write_text("open('sprung', 'w').close()")
    (folder / ".env").write_text("MAINSPRING_APP=trap:scheduler\n")
    until(lambda: offered("mainspring jobs show send").split() == ["send_email"])
    assert not (folder / "sprung").exists()  # a key that was pressed runs no code of a folder
    (folder / "mainspring.db").unlink()
    assert offered("mainspring jobs show send").strip() == ""
    assert not (folder / "mainspring.db").exists()


def on_terminal(folder: Path, *words: str, **environment: str) -> str:
    """What the command writes to a terminal of 160 columns."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "mainspring", *words],
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
            "PYTHONPATH": SOURCE,
            "TERM": "xterm-256color",
            "COLUMNS": "160",
            **environment,
        },
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert done.wait(60) == 0
    return written.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colour_and_words(folder: Path, stored_runs: StoredRuns) -> None:
    text = on_terminal(folder, "runs", "list")
    assert "\033[32msucceeded" in text
    assert re.search(r"(ago|now)", text)
    assert stored_runs["good"] in text
    assert "in " in on_terminal(folder, "jobs", "list")
    assert "\033[" in on_terminal(folder, "--help")


def test_no_color_is_respected(folder: Path, stored_runs: StoredRuns) -> None:
    for words in (("runs", "list"), ("jobs", "show", "send_email"), ("doctor",)):
        text = on_terminal(folder, *words, NO_COLOR="1")
        assert not re.search(r"\033\[[0-9;]*3[0-9]m", text)
