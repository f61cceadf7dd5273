"""`mainspring import`: a crontab becomes a file of jobs."""

from __future__ import annotations

import contextlib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mainspring.cli.import_command import Imported, read_crontab
from tests.support.command_line import Run, Start, until

TAB = 'GREETING=hello\n0 9 * * 1-5 echo "$GREETING"\n61 * * * * never\n'


def test_crontab_is_printed_or_written_and_never_overwrites(run: Run, folder: Path) -> None:
    (folder / "tab").write_text(TAB)
    shown = run("import", "crontab", "tab", "--timezone", "Europe/Berlin")
    assert tomllib.loads(shown.out)["jobs"]["echo"]["schedule"] == "0 9 * * 1-5"
    assert "line 3: 61 * * * * never: the job was left out" in shown.err
    written = run("import", "crontab", "tab", "--out", "mainspring.toml")
    assert written.out.startswith("wrote 1 job to mainspring.toml")
    try:
        assert run("apply").code == 0
        assert sys.modules["mainspring_handlers"].echo() == "hello\n"
    finally:
        sys.modules.pop("mainspring_handlers", None)
    refused = run("import", "crontab", "tab", "--out", "mainspring.toml").refusal
    assert "is not overwritten" in refused
    document = run("import", "crontab", "-", "--json", stdin=TAB).json
    assert [one["line"] for one in document["not_carried_over"]] == [3]


def test_wrong_zone_and_files_without_a_job_write_nothing(run: Run, folder: Path) -> None:
    (folder / "tab").write_text(TAB)
    refused = run("import", "crontab", "tab", "--timezone", "Mars", "--out", "m.toml").refusal
    assert "Mars" in refused
    (folder / "empty").write_text("garbage\n")
    refused = run("import", "crontab", "empty", "--out", "m.toml").refusal
    assert "empty has no job that can be carried over; nothing was written" in refused
    assert "line 1: garbage: the job was left out: it has no hour, " in refused
    assert not list(folder.glob("m*"))


def test_job_that_is_deleted_from_an_imported_file_is_removed(run: Run, folder: Path) -> None:
    (folder / "tab").write_text("0 9 * * * echo a\n0 9 * * * cat b\n")
    assert run("import", "crontab", "tab", "--out", "m.toml").code == 0
    file = folder / "m.toml"
    name = tomllib.loads(file.read_text())["name"]
    assert name.startswith("m-")
    try:
        assert run("apply", "m.toml").code == 0
        file.write_text(file.read_text().partition("[jobs.cat]")[0])
        assert "- cat" in run("apply", "m.toml").out
    finally:
        sys.modules.pop("m_handlers", None)
    shown = run("import", "crontab", "tab", "--name", "mine", "--json").json
    assert tomllib.loads(shown["toml"])["name"] == "mine"


def test_imported_command_ends_with_its_timeout_and_may_print_any_bytes(
    run: Run, folder: Path, start: Start
) -> None:
    seconds = f"600.{os.getpid()}"  # no other process sleeps so long
    (folder / "tab").write_text(
        f"0 0 1 1 * printf '\\377'\n0 0 1 1 * sleep {seconds} && touch went-on\n"
    )
    run("import", "crontab", "tab", "--out", "tab.toml", "--timezone", "UTC")
    file = folder / "tab.toml"
    file.write_text(file.read_text().replace("[jobs.sleep]", '[jobs.sleep]\ntimeout = "1s"'))
    start("worker", "--file", "tab.toml", "--quiet")
    until(lambda: "sleep" in run("jobs", "list").out)
    slow, bytes_ = (run("jobs", "trigger", name).out.strip() for name in ("sleep", "printf"))
    until(lambda: run("runs", "show", slow, "--json").json["state"] == "failed")
    until(
        lambda: run("runs", "show", bytes_, "--json").json["result"] == "\N{REPLACEMENT CHARACTER}"
    )
    until(lambda: not _is_running(seconds))
    assert not (folder / "went-on").exists()


def _is_running(argument: str) -> bool:
    """Whether a process has this text in its command line."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in line.read_bytes():
                return True
    return False


def imported(text: str, **options: Any) -> Imported:
    return read_crontab(text, "tab", **options)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("*/5 1-3 * jan sat,sun job", {"schedule": "*/5 1-3 * jan sat,sun"}),
        ("@daily job", {"schedule": "@daily"}),
        ("@reboot job", {"run_on_start": True}),
    ],
)
def test_schedules_are_carried_over(line: str, options: dict[str, Any]) -> None:
    made = imported(line).jobs["job"]
    assert {name: made.get(name) for name in options} == options


def test_comments_zones_and_variables() -> None:
    zones = "CRON_TZ=Asia/Tokyo\nTZ=Europe/Berlin\n"
    made = imported(f"# a\n# b\n0 1 * * * one\n\n# lost\n\n{zones}A='x y'\n0 2 * * * two\n")
    assert made.jobs["one"]["description"] == "a b"
    assert "timezone" not in made.jobs["one"]
    assert (made.jobs["two"]["description"], made.jobs["two"]["timezone"]) == ("two", "Asia/Tokyo")
    assert made.defaults == {"overlap": "allow", "misfire": "skip"}
    assert "{'TZ': 'Europe/Berlin', 'A': 'x y'}" in made.functions[1]
    assert "{}" in made.functions[0]
    assert made.remarks == []


def test_percent_separates_the_input() -> None:
    [function] = imported(r"0 0 * * * mail \%x%one%two").functions
    assert "'mail %x'" in function
    assert r"stdin='one\ntwo'" in function


def test_system_lines_have_a_user() -> None:
    made = imported("0 0 * * * root /opt/clean.sh -v", system=True)
    assert made.jobs["clean"]["handler"] == "imported_handlers:clean"
    assert [str(one) for one in made.remarks] == [
        "line 1: root: the command runs as the worker's user, not as 'root'"
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("61 * * * * x", "minute '61' cannot be used"),
        ("0~59 * * * * x", "minute '0~59' cannot be used"),
        ("0 0 * *", "the job was left out: it has no day of week, command"),
        ("@daily", "the job was left out: it has no command"),
        ("RANDOM_DELAY=30", 'jitter = "30m" of a job does the same'),
        ("MAILFROM=a@example.org", "no mail is sent"),
        ("MAILTO=a@example.org", "no mail is sent"),
        ("@sometimes x", "the job was left out"),
    ],
)
def test_what_cannot_be_carried_over_is_named_with_its_line(line: str, why: str) -> None:
    made = imported(f"# first\n\n{line}\n0 0 * * * fine\n")
    assert list(made.jobs) == ["fine"]
    assert "{}" in made.functions[0]  # no such setting is a variable of the command
    [remark] = made.remarks
    assert remark.line == 3
    assert why in str(remark)


def test_names_are_free_and_are_names_of_functions() -> None:
    made = imported("\n".join(["0 0 * * * " + word for word in ("x", "x", "class", "7z", "run")]))
    assert list(made.jobs) == ["x", "x_2", "job_class", "job_7z", "job_run"]
    compile(made.handlers(), "handlers.py", "exec")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("cd /srv/app && ./manage.py cleanup", "manage"),
        ("cd '/srv/my app'; cd web && /usr/bin/backup.sh --all", "backup"),
        ("cd /srv/app", "cd"),
        ("/usr/bin/backup.sh --all", "backup"),
    ],
)
def test_a_job_is_named_after_the_program_and_not_after_cd(command: str, name: str) -> None:
    assert [*read_crontab(f"0 4 * * * {command}", "crontab").jobs] == [name]


def test_a_failing_command_keeps_its_output() -> None:
    made = imported("0 0 * * * echo row 7; echo bad row >&2; exit 3")
    [name] = made.jobs
    handlers: dict[str, Any] = {}
    exec(made.handlers(), handlers)
    with pytest.raises(RuntimeError) as failed:
        handlers[name]()
    assert str(failed.value) == "exit code 3: bad row\noutput: row 7"
