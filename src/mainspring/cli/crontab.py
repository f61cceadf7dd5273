"""Reads a crontab into jobs: one for each line, with a function that runs its command."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from mainspring.cli.import_file import HANDLERS, Imported, Remark, free_name
from mainspring.core import schedules
from mainspring.errors import InvalidInput

__all__ = ["local_timezone", "read_crontab"]

_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\"[^\"]*\"|'[^']*')\s*=\s*(.*?)\s*$")
_CHANGES_FOLDER = re.compile(r"""\s*cd\s+('[^']*'|"[^"]*"|[^\s;&'"]+)\s*(&&|;)\s*(?=\S)""")
_ZONE = "CRON_TZ"  # TZ is a variable of the command, as any other
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_MAIL = ("MAILTO", "MAILFROM")
_AT_START = "@reboot"


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
    made = Imported(source, module, timezone=timezone, defaults=defaults)
    environment: dict[str, str] = {}
    zone, comments = timezone, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped:
            comments = []
        elif stripped.startswith("#"):
            comments.append(stripped.lstrip("#").strip())
        elif found := _VARIABLE.match(line):
            name, value = found[1].strip("\"'"), found[2].strip("\"'")
            if name == _ZONE:
                zone = value
            elif name == "RANDOM_DELAY":
                why = f'no job is delayed: jitter = "{value}m" of a job does the same'
                made.remarks.append(Remark(number, stripped, why))
            elif name in _MAIL:
                why = "no mail is sent: the output is the run's result; listen to run.failed"
                made.remarks.append(Remark(number, stripped, why))
            else:
                environment[name] = value
            comments = []
        else:
            _add(made, number, stripped, comments, zone, environment, system=system)
            comments = []
    return made


def _add(
    made: Imported,
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
        made.remarks.append(Remark(number, line, why))
        return
    schedule, command = " ".join(parts[:count]), parts[-1]
    options: dict[str, Any] = {}
    if schedule == _AT_START:
        options["run_on_start"] = True
        why = "it runs when a worker starts, not when the machine does"
        made.remarks.append(Remark(number, schedule, why))
    else:
        try:
            schedules.parse(schedule, timezone=zone)
        except InvalidInput as error:
            made.remarks.append(Remark(number, line, f"the job was left out: {error}"))
            return
        options["schedule"] = schedule
    if zone != made.timezone and schedule != _AT_START:
        options["timezone"] = zone
    if system:
        why = f"the command runs as the worker's user, not as {parts[count]!r}"
        made.remarks.append(Remark(number, parts[count], why))
    elif _is_user(first := command.split()[0]):
        why = f"{first!r} is a user here and no program: if the line names a user, add --system"
        made.remarks.append(Remark(number, first, why))
    shell_command, stdin = _split_stdin(command)
    name = free_name(_program(shell_command), made.jobs)
    options["description"] = " ".join(comments) or shell_command
    made.add(name, options, _function(name, number, shell_command, stdin, environment))


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
    _, found, zone = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")
    return zone if found else None
