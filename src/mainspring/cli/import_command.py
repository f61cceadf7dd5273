"""`mainspring import`: turns crontabs and CronJob manifests into a file of jobs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring.cli.command import Call, command
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.import_file import HANDLERS, Imported, Remark, free_name, module_beside
from mainspring.cli.options import flag, option
from mainspring.cli.output import Output
from mainspring.core import schedules
from mainspring.core.plurals import plural
from mainspring.errors import InvalidInput

group = typer.Typer(help="Turn a crontab or CronJob manifests into a file of jobs.")

_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\"[^\"]*\"|'[^']*')\s*=\s*(.*?)\s*$")
_CHANGES_FOLDER = re.compile(r"""\s*cd\s+('[^']*'|"[^"]*"|[^\s;&'"]+)\s*(&&|;)\s*(?=\S)""")
_ZONE = "CRON_TZ"  # TZ is a variable of the command, as any other
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_MAIL = ("MAILTO", "MAILFROM")
_AT_START = "@reboot"

SourceArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="The file to read; - is stdin.")
]
OutOption = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write the jobs to this file, and their functions beside it. Existing files are kept.",
        show_default=False,
    ),
]


NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="The name of the file of jobs, by which `mainspring apply` knows the jobs that came"
        " from it. Default: made from the files' names and this machine's.",
        show_default=False,
    ),
]


@command(
    group,
    "crontab",
    "crontab -l | mainspring import crontab - --out mainspring.toml",
    "mainspring import crontab /etc/crontab --system",
    uses_store=False,
)
def crontab(
    call: Call,
    source: SourceArgument,
    out: OutOption = None,
    name: NameOption = None,
    system: bool = flag("--system", "Lines name a user before the command, as in /etc/crontab."),
    timezone: str | None = option(
        "The zone of the crontab. Default: this machine's.", "ZONE", "--timezone", "--tz"
    ),
) -> None:
    """Make a job of each line of a crontab.

    Each job gets a function that runs the command of the line. What cannot be carried over is
    listed with its line. If no job is left, nothing is written.
    """
    if timezone is not None and (wrong := _wrong_zone(timezone)):
        raise CommandError(f"--timezone: {wrong}", code=BAD_INPUT)
    zone = timezone or local_timezone()
    if zone is not None and _wrong_zone(zone):
        zone = None
    is_system = system or source == "/etc/crontab" or Path(source).parent.name == "cron.d"
    imported = read_crontab(
        _read(source), source, system=is_system, timezone=zone or "UTC", module=_module(out)
    )
    if zone is None:
        imported.remarks.insert(
            0, Remark(1, "timezone", "this machine's is not known: UTC is assumed")
        )
    _finish(imported, out, name, call.output)


@command(
    group,
    "k8s",
    "mainspring import k8s cronjobs.yaml --out mainspring.toml",
    uses_store=False,
)
def k8s(call: Call, source: SourceArgument, out: OutOption = None, name: NameOption = None) -> None:
    """Make a job of each CronJob of a manifest.

    Each job gets a function that runs the command of the container. What cannot be carried over is
    listed with its line. If no job is left, nothing is written.
    """
    from mainspring.cli.kubernetes import read_manifests

    _finish(read_manifests(_read(source), source, _module(out)), out, name, call.output)


def _wrong_zone(name: str) -> str | None:
    """What is wrong with the name of a time zone, if anything."""
    from mainspring.core.schedules.zones import zone_named

    try:
        zone_named(name)
    except InvalidInput as error:
        return str(error)
    return None


def _name(source: str, out: str | None) -> str:
    """A name that only this import on this machine has, because `apply` removes jobs by it. The
    same import gets the same name again."""
    import socket
    from hashlib import sha256

    places = [socket.gethostname(), str(Path(source).absolute())]
    digest = sha256("\0".join(places).encode("utf-8", "replace")).hexdigest()
    stem = Path(out if out is not None else source).stem
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in stem)[:100]
    return f"{plain.strip('-') or 'imported'}-{digest[:6]}"


def _module(out: str | None) -> str:
    return HANDLERS if out is None else module_beside(out)


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
        output.note("--out FILE also writes the functions of the jobs, beside it")
    else:
        jobs = plural(len(imported.jobs), "job")
        output.line(f"wrote {jobs} to {out}, and their functions to {imported.module}.py beside it")
    if imported.remarks:
        output.note(f"not carried over from {imported.source}, or not as it was:")
    for remark in imported.remarks:
        output.note(f"  {remark}")


def _write(imported: Imported, path: Path) -> None:
    if not path.parent.is_dir():
        raise CommandError(
            f"there is no folder {path.parent}",
            code=BAD_INPUT,
            advice="make it, or name a file in another folder with --out",
        )
    code = path.with_name(f"{imported.module}.py")
    for file in (path, code):
        if file.exists():
            raise CommandError(
                f"{file} exists, and is not overwritten",
                code=BAD_INPUT,
                advice="name another file with --out, or move it away",
            )
    try:
        code.write_text(imported.handlers(), "utf-8")
        path.write_text(imported.toml(), "utf-8")
    except OSError as error:
        raise CommandError(
            f"{error.filename} cannot be written: {error.strerror}",
            code=BAD_INPUT,
            advice="name a file in another folder with --out",
        ) from None


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
            elif name == "RANDOM_DELAY":
                why = f'no job is delayed: jitter = "{value}m" of a job does the same'
                imported.remarks.append(Remark(number, stripped, why))
            elif name in _MAIL:
                why = "no mail is sent: the output is the run's result; listen to run.failed"
                imported.remarks.append(Remark(number, stripped, why))
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
        why = f"the job was left out: it has no {', '.join(wanted[len(parts) :])}"
        imported.remarks.append(Remark(number, line, why))
        return
    schedule, command = " ".join(parts[:count]), parts[-1]
    options: dict[str, Any] = {}
    if schedule == _AT_START:
        options["run_on_start"] = True
        why = "it runs when a worker starts, not when the machine does"
        imported.remarks.append(Remark(number, schedule, why))
    else:
        try:
            schedules.parse(schedule, timezone=zone)
        except InvalidInput as error:
            imported.remarks.append(Remark(number, line, f"the job was left out: {error}"))
            return
        options["schedule"] = schedule
    if zone != imported.timezone and schedule != _AT_START:
        options["timezone"] = zone
    if system:
        why = f"the command runs as the worker's user, not as {parts[count]!r}"
        imported.remarks.append(Remark(number, parts[count], why))
    elif _is_user(first := command.split()[0]):
        why = f"{first!r} is a user here and no program: if the line names a user, add --system"
        imported.remarks.append(Remark(number, first, why))
    shell_command, stdin = _split_stdin(command)
    name = free_name(_program(shell_command), imported.jobs)
    options["description"] = " ".join(comments) or shell_command
    imported.add(name, options, _function(name, number, shell_command, stdin, environment))


def _program(command: str) -> str:
    """The name of the program that a command runs: in `cd /srv/app && ./manage.py cleanup` it is
    `manage`."""
    while change := _CHANGES_FOLDER.match(command):
        command = command[change.end() :]
    words = [word for word in command.split() if not word.startswith("-")]
    return Path(words[0]).stem if words else "job"


def _is_user(word: str) -> bool:
    """Whether a word is a user of this machine, and no program that a shell would find."""
    try:
        import pwd  # Windows has none
    except ImportError:
        return False
    try:
        pwd.getpwnam(word)
    except KeyError:
        return False
    return shutil.which(word) is None


def _split_stdin(command: str) -> tuple[str, str | None]:
    r"""The command, and what follows the first `%`: the input, with a new line for each further
    `%`. `\%` is the character itself."""
    parts = [part.replace(r"\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return parts[0].strip(), "\n".join(parts[1:]) if len(parts) > 1 else None


def _function(
    name: str, number: int, command: str, stdin: str | None, environment: dict[str, str]
) -> str:
    shell = environment.get("SHELL", "/bin/sh")
    home = environment.get("HOME")
    folder = repr(home) if home is not None else 'os.path.expanduser("~")'
    given = "" if stdin is None else f"\n        stdin={stdin!r},"
    return (
        f"def {name}() -> str:\n"
        f'    """Line {number}."""\n'
        f"    return run(\n"
        f'        [{shell!r}, "-c", {command!r}],\n'
        f"        {environment!r},{given}\n"
        f"        folder={folder},\n"
        f"    )\n"
    )


def local_timezone() -> str | None:
    """The zone of this machine, which its cron uses; None if it cannot be found out."""
    if zone := os.environ.get("TZ", "").removeprefix(":"):
        return zone
    file = Path("/etc/timezone")
    if file.is_file() and (text := file.read_text("utf-8", errors="replace").strip()):
        return text
    _, is_zone, zone = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")
    return zone if is_zone else None
