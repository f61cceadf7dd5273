"""`mainspring import`: crontabs and manifests become a file of jobs."""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

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
    again = run("import", "crontab", "tab", "--out", "mainspring.toml")
    assert again.code == 2
    assert "is not overwritten" in again.err
    document = run("import", "crontab", "-", "--json", stdin=TAB).json
    assert [one["line"] for one in document["not_carried_over"]] == [3]


def test_wrong_zone_and_files_without_a_job_write_nothing(run: Run, folder: Path) -> None:
    (folder / "tab").write_text(TAB)
    refused = run("import", "crontab", "tab", "--timezone", "Mars", "--out", "m.toml")
    assert (refused.code, "error: --timezone: " in refused.err) == (2, True)
    (folder / "empty").write_text("garbage\n")
    (folder / "service.yaml").write_text("kind: Service\n")
    for kind, name, why in (
        ("crontab", "empty", "line 1: garbage: the job was left out: it has no hour, "),
        ("k8s", "service.yaml", "line 1: Service: only CronJobs are carried over"),
    ):
        refused = run("import", kind, name, "--out", "m.toml")
        assert refused.code == 2
        assert f"{name} has no job that can be carried over; nothing was written" in refused.err
        assert why in refused.err
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


def test_two_imports_fit_in_one_folder_and_a_missing_folder_is_told(run: Run, folder: Path) -> None:
    (folder / "tab").write_text(TAB)
    for name in ("one", "two-b"):
        assert run("import", "crontab", "tab", "--out", f"{name}.toml").code == 0
    jobs = tomllib.loads((folder / "two-b.toml").read_text())["jobs"]
    assert jobs["echo"]["handler"] == "two_b_handlers:echo"
    assert (folder / "one_handlers.py").exists()
    assert (folder / "two_b_handlers.py").exists()
    refused = run("import", "crontab", "tab", "--out", "nowhere/jobs.toml")
    assert (refused.code, "there is no folder nowhere" in refused.err) == (2, True)


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


def test_manifests_need_yaml(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "jobs.yaml").write_text("kind: CronJob\nspec: {schedule: '@daily'}\n")
    assert run("import", "k8s", "jobs.yaml", "--json").json["jobs"] == ["job"]
    (folder / "bad.yaml").write_text("a: [")
    assert "bad.yaml is not valid YAML" in run("import", "k8s", "bad.yaml").err
    real = builtins.__import__

    def without_yaml(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    refused = run("import", "k8s", "jobs.yaml")
    assert refused.code == 2
    assert "pip install '/path/to/mainspring[kubernetes]'" in refused.err


def test_an_output_file_that_cannot_be_written_is_named(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (folder / "crontab").write_text("0 9 * * * true\n")
    monkeypatch.setattr(Path, "write_text", refuse)
    answer = run("import", "crontab", "crontab", "--out", "jobs.toml")
    assert answer.code == 2
    assert "jobs_handlers.py cannot be written: Permission denied" in answer.err
