"""What becomes of each kind of line of a crontab."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.cli.crontab import read_crontab
from mainspring.cli.import_file import Imported


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


def test_a_user_in_the_place_of_the_command_gets_the_hint_to_add_system() -> None:
    made = imported("*/5 * * * * root /usr/bin/thing\n0 0 * * * /usr/bin/thing\n0 1 * * * sh -c x")
    assert [str(one) for one in made.remarks] == [
        "line 1: root: 'root' is a user here and no program: if the line names a user, add --system"
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
    [remark] = made.remarks
    assert remark.line == 3
    assert why in str(remark)


def test_random_delay_is_no_variable_of_the_command() -> None:
    assert "RANDOM_DELAY" not in imported("RANDOM_DELAY=30\n0 0 * * * fine\n").functions[0]


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
