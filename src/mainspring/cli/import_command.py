"""`mainspring import`: turns a crontab into a file of jobs."""

from __future__ import annotations

import json
import keyword
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any

import typer

from mainspring.cli.command import Call, argument, command, flag, option
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.output import Output
from mainspring.core import schedules
from mainspring.core.plurals import plural
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidInput

HANDLERS = "imported_handlers"
"""The module that holds the functions, where no file is named that it could stand beside."""

group = typer.Typer(help="Turn a crontab into a file of jobs.")

_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\"[^\"]*\"|'[^']*')\s*=\s*(.*?)\s*$")
_CHANGES_FOLDER = re.compile(r"""\s*cd\s+('[^']*'|"[^"]*"|[^\s;&'"]+)\s*(&&|;)\s*(?=\S)""")
_ZONE = "CRON_TZ"  # TZ is a variable of the command, as any other
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_NO_MAIL = "no mail is sent: the output is the run's result; listen to run.failed"
_NO_VARIABLES = {
    "MAILTO": _NO_MAIL,
    "MAILFROM": _NO_MAIL,
    "RANDOM_DELAY": 'no job is delayed: jitter = "{}m" of a job does the same',
}
"""What is said of settings of cron that are no variables of the commands."""
_AT_START = "@reboot"


@command(
    group,
    "crontab",
    "crontab -l | mainspring import crontab - --out mainspring.toml",
    "mainspring import crontab /etc/crontab --system",
    uses_store=False,
)
def crontab(
    call: Call,
    source: str = argument("The file to read; - is stdin.", "FILE"),
    out: str | None = option(
        "Write the jobs to this file, and their functions next to it. Existing files are kept.",
        "FILE",
    ),
    name: str | None = option(
        "The name of the file of jobs, by which `mainspring apply` knows the jobs that came from"
        " it. Default: made from the files' names and this machine's.",
        "NAME",
    ),
    system: bool = flag("--system", "Lines name a user before the command, as in /etc/crontab."),
    timezone: str | None = option(
        "The zone of the crontab. Default: this machine's.", "ZONE", "--timezone", "--tz"
    ),
) -> None:
    """Make a job of each line of a crontab.

    Each job gets a function that runs the command of the line. What cannot be carried over is
    listed with its line. If no job is left, nothing is written.
    """
    zone = timezone or local_timezone()
    if timezone is not None:
        zone_named(timezone)
    is_system = system or source == "/etc/crontab" or Path(source).parent.name == "cron.d"
    imported = read_crontab(
        _read(source), source, system=is_system, timezone=zone or "UTC", module=_module(out)
    )
    if zone is None:
        imported.remark(1, "timezone", "this machine's is not known: UTC is assumed")
    _finish(imported, out, name, call.output)


def _name(source: str, out: str | None) -> str:
    """A name that only this import on this machine has, because `apply` removes jobs by it. The
    same import gets the same name again."""
    places = [socket.gethostname(), str(Path(source).absolute())]
    digest = sha256("\0".join(places).encode("utf-8", "replace")).hexdigest()
    stem = Path(out if out is not None else source).stem
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in stem)[:100]
    return f"{plain.strip('-') or 'imported'}-{digest[:6]}"


def _module(out: str | None) -> str:
    """The module for the functions of a file: each file of a folder has its own."""
    if out is None:
        return HANDLERS
    plain = re.sub(r"\W", "_", Path(out).stem)
    return f"{'_' if plain[:1].isdigit() else ''}{plain}_handlers"


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text("utf-8")
    except OSError as error:
        raise CommandError(f"{source} cannot be read: {error.strerror}", code=BAD_INPUT) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{source} is not UTF-8 text: {error}", code=BAD_INPUT) from None


def _finish(imported: Imported, out: str | None, name: str | None, output: Output) -> None:
    imported.name = name if name is not None else _name(imported.source, out)
    if not imported.jobs:
        raise CommandError(
            f"{imported.source} has no job that can be carried over; nothing was written",
            code=BAD_INPUT,
            advice="\n  ".join(map(str, imported.remarks)),
        )
    if out is not None:
        _write(imported, Path(out))
    output.document(
        {
            "toml": imported.toml(),
            "handlers": imported.handlers(),
            "jobs": list(imported.jobs),
            "not_carried_over": [asdict(remark) for remark in imported.remarks],
        }
    )
    if out is None:
        output.line(imported.toml().rstrip())
        output.note("--out FILE also writes the functions of the jobs, next to it")
    else:
        jobs = plural(len(imported.jobs), "job")
        output.line(
            f"wrote {jobs} to {out}, and their functions to {imported.module}.py next to it"
        )
    if imported.remarks:
        output.note(f"not carried over from {imported.source}, or not as it was:")
    for remark in imported.remarks:
        output.note(f"  {remark}")


def _write(imported: Imported, path: Path) -> None:
    code = path.with_name(f"{imported.module}.py")
    advice = "name another file with --out, or move it away"
    for file in (path, code):
        if file.exists():
            message = f"{file} exists, and is not overwritten"
            raise CommandError(message, code=BAD_INPUT, advice=advice)
    try:
        code.write_text(imported.handlers(), "utf-8")
        path.write_text(imported.toml(), "utf-8")
    except OSError as error:
        message = f"{error.filename} cannot be written: {error.strerror}"
        advice = "name a file in another folder with --out"
        raise CommandError(message, code=BAD_INPUT, advice=advice) from None


# Reading a crontab


def read_crontab(
    text: str,
    source: str,
    *,
    system: bool = False,
    timezone: str = "UTC",
    module: str = HANDLERS,
) -> Imported:
    """The jobs of a crontab. `system`: its lines name a user before the command, as those of
    /etc/crontab do. `timezone` is the zone of lines before a CRON_TZ."""
    # As cron does: runs of one line may overlap, and missed slots do not run later.
    defaults = {"overlap": "allow", "misfire": "skip"}
    imported = Imported(source, module, timezone=timezone, defaults=defaults)
    environment: dict[str, str] = {}
    zone, comments = timezone, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped:
            comments = []
        elif stripped.startswith("#"):
            comments.append(stripped.lstrip("#").strip())
        elif assigned := _VARIABLE.match(line):
            name, value = assigned[1].strip("\"'"), assigned[2].strip("\"'")
            if name == _ZONE:
                zone = value
            elif name in _NO_VARIABLES:
                imported.remark(number, stripped, _NO_VARIABLES[name].format(value))
            else:
                environment[name] = value
            comments = []
        else:
            _add(imported, number, stripped, comments, zone, environment, system=system)
            comments = []
    return imported


def _add(
    imported: Imported,
    number: int,
    line: str,
    comments: list[str],
    zone: str,
    environment: dict[str, str],
    *,
    system: bool,
) -> None:
    fields = ("schedule",) if line.startswith("@") else _FIELDS
    count = len(fields)
    parts = line.split(None, count + system)
    if len(parts) <= count + system:
        wanted = (*fields, *(["user"] if system else []), "command")
        imported.leave_out(number, line, f"it has no {', '.join(wanted[len(parts) :])}")
        return
    schedule, command = " ".join(parts[:count]), parts[-1]
    options: dict[str, Any] = {"schedule": schedule}
    if schedule == _AT_START:
        options = {"run_on_start": True}
    elif zone != imported.timezone:
        options["timezone"] = zone
    shell_command, stdin = _split_stdin(command)
    options["description"] = " ".join(comments) or shell_command
    try:
        schedules.parse(options.get("schedule", "@daily"), timezone=zone)
    except InvalidInput as error:
        imported.leave_out(number, line, str(error))
        return
    shell, home = environment.get("SHELL", "/bin/sh"), environment.get("HOME")
    arguments = [repr([shell, "-c", shell_command]), repr(environment)]
    arguments += [] if stdin is None else [f"stdin={stdin!r}"]
    folder = 'os.path.expanduser("~")' if home is None else repr(home)
    arguments.append(f"folder={folder}")
    imported.add(_program(shell_command), options, f"Line {number}.", arguments)
    if schedule == _AT_START:
        why = "it runs when a worker starts, not when the machine does"
        imported.remark(number, schedule, why)
    if system:
        why = f"the command runs as the worker's user, not as {parts[count]!r}"
        imported.remark(number, parts[count], why)


def _program(command: str) -> str:
    """The name of the program that a command runs: in `cd /srv/app && ./manage.py cleanup` it is
    `manage`."""
    while change := _CHANGES_FOLDER.match(command):
        command = command[change.end() :]
    words = [word for word in command.split() if not word.startswith("-")]
    return Path(words[0]).stem if words else "job"


def _split_stdin(command: str) -> tuple[str, str | None]:
    r"""The command, and what follows the first `%`: the input, with a new line for each further
    `%`. `\%` is the character itself."""
    parts = [part.replace(r"\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return parts[0].strip(), "\n".join(parts[1:]) if len(parts) > 1 else None


def local_timezone() -> str | None:
    """The zone of this machine, which its cron uses; None if it cannot be found out."""
    linked = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")[2]
    zone = os.environ.get("TZ", "").removeprefix(":") or linked
    try:
        zone_named(zone)
    except InvalidInput:
        return None
    return zone


# What an import gives: jobs for `mainspring.toml`, functions for their handlers, and remarks


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
    timezone: str = "UTC"
    name: str = ""
    """The name of the file of jobs: `mainspring apply` removes only jobs of a file with a name."""
    defaults: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def remark(self, line: int, what: str, why: str) -> None:
        self.remarks.append(Remark(line, what, why))

    def leave_out(self, line: int, what: str, why: str) -> None:
        self.remark(line, what, f"the job was left out: {why}")

    def add(
        self, program: str, options: dict[str, Any], about: str, arguments: Sequence[str]
    ) -> None:
        """Add a job, named after its program, whose function calls `run` with these arguments.

        It runs in a process of its own, so that its timeout also ends the command: in a thread the
        command would go on beside the retry."""
        name = _free_name(program, self.jobs)
        handler = {"handler": f"{self.module}:{name}", "isolation": "process"}
        self.jobs[name] = {**options, **handler}
        call = "".join(f"        {argument},\n" for argument in arguments)
        self.functions.append(
            f"def {name}() -> str:\n    {about!r}\n    return run(\n{call}    )\n"
        )

    def toml(self) -> str:
        lines = [f"# Made by `mainspring import` from {self.source}."]
        lines += _lines({"name": self.name, "timezone": self.timezone})
        if self.defaults:
            lines += ["", "[defaults]", *_lines(self.defaults)]
        for job_id, options in self.jobs.items():
            lines += ["", f"[jobs.{job_id}]", *_lines(options)]
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


def _free_name(text: str, taken: Mapping[str, Any]) -> str:
    """A name for a job and its function, made from a text and not taken yet."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60] or "job"
    if plain[0].isdigit() or keyword.iskeyword(plain) or plain in ("run", "os", "subprocess"):
        plain = f"job_{plain}"
    names = chain([plain], (f"{plain}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def _lines(table: Mapping[str, Any]) -> list[str]:
    """Options as lines of TOML. JSON spells truth and text as TOML does, but for the escape of
    DEL."""
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in table.items()}
    return [f"{name} = {value}".replace("\x7f", "\\u007f") for name, value in values.items()]
