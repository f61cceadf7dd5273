"""What an import gives: jobs for `mainspring.toml`, functions for their handlers, and remarks."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

HANDLERS = "imported_handlers"
"""The module that holds the functions, where no file is named that it could stand beside."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that was not carried over, or not as it was."""

    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}: {self.why}"


@dataclass(slots=True)
class Imported:
    """The jobs by id, the text of the functions, and what was not carried over."""

    source: str
    module: str = HANDLERS
    """The module of the functions."""
    timezone: str | None = None
    name: str | None = None
    """The name of the file of jobs: `mainspring apply` removes only jobs of a file with a name."""
    defaults: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def add(self, name: str, options: Mapping[str, Any], function: str) -> None:
        """Add a job. It runs in a process of its own, so that its timeout also ends the command:
        in a thread the command would go on beside the retry."""
        handler = {"handler": f"{self.module}:{name}", "isolation": "process"}
        self.jobs[name] = {**options, **handler}
        self.functions.append(function)

    def toml(self) -> str:
        lines = [f"# Made by `mainspring import` from {self.source}."]
        if self.name is not None:
            lines.append(f"name = {_value(self.name)}")
        if self.timezone is not None:
            lines.append(f"timezone = {_value(self.timezone)}")
        if self.defaults:
            lines += ["", "[defaults]", *_lines(self.defaults)]
        for job_id, options in self.jobs.items():
            lines += ["", f"[jobs.{_key(job_id)}]", *_lines(options)]
        return "\n".join(lines) + "\n"

    def handlers(self) -> str:
        return "\n\n".join([_HEAD.format(source=self.source).strip() + "\n", *self.functions])


_HEAD = '''
"""Runs the commands of {source}. Made by `mainspring import`: change it as you like."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: str | None = None,
    folder: str | None = None,
) -> str:
    """Run a command; its output is the run's result. An exit code other than 0 is a failure."""
    done = subprocess.run(
        command,
        env={{**os.environ, **environment}},
        input=stdin,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        said = [f"exit code {{done.returncode}}: {{done.stderr.strip()[-3000:]}}"]
        if output := done.stdout.strip()[-3000:]:
            said.append(f"output: {{output}}")
        raise RuntimeError("\\n".join(said))
    return done.stdout[-20_000:]
'''


def module_beside(file: str) -> str:
    """The module for the functions of a file: each file of a folder has its own."""
    plain = re.sub(r"\W", "_", Path(file).stem)
    return f"{'_' if plain[:1].isdigit() else ''}{plain}_handlers"


def free_name(text: str, taken: Container[str]) -> str:
    """A name for a job and its function, made from a text and not taken yet."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60] or "job"
    if plain[0].isdigit() or keyword.iskeyword(plain) or plain in ("run", "os", "subprocess"):
        plain = f"job_{plain}"
    names = chain([plain], (f"{plain}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items()]


def _key(name: str) -> str:
    return name if _PLAIN_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        # A text of JSON is one of TOML, but for the escapes of DEL and of pairs of surrogates.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
