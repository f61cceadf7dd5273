from __future__ import annotations

import builtins
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Run

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
        assert sys.modules["imported_handlers"].echo() == "hello\n"
    finally:
        sys.modules.pop("imported_handlers", None)
    again = run("import", "crontab", "tab", "--out", "mainspring.toml")
    assert again.code == 2
    assert "is not overwritten" in again.err
    document = run("import", "crontab", "-", "--json", stdin=TAB).json
    assert [one["line"] for one in document["not_carried_over"]] == [3]


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
    assert "pip install 'mainspring[kubernetes]'" in refused.err
