"""`mainspring import`: turns crontabs and CronJob manifests into a file of jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.import_file import HANDLERS, Imported, Remark, module_beside
from mainspring.cli.options import JsonOption, example
from mainspring.cli.output import Output
from mainspring.core.plurals import plural

__all__ = ["group"]

group = typer.Typer(help="Turn a crontab or CronJob manifests into a file of jobs.")

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


@group.command(
    "crontab",
    epilog=example(
        "crontab -l | mainspring import crontab - --out mainspring.toml",
        "mainspring import crontab /etc/crontab --system",
    ),
)
def crontab(
    source: SourceArgument,
    out: OutOption = None,
    name: NameOption = None,
    system: Annotated[
        bool,
        typer.Option("--system", help="Lines name a user before the command, as in /etc/crontab."),
    ] = False,
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone",
            "--tz",
            metavar="ZONE",
            help="The zone of the crontab. Default: this machine's.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a job of each line of a crontab.

    Each job gets a function that runs the command of the line. What cannot be carried over is
    listed with its line. If no job is left, nothing is written.
    """
    from mainspring.cli.crontab import local_timezone, read_crontab

    if timezone is not None and (wrong := _wrong_zone(timezone)):
        raise CommandError(f"--timezone: {wrong}", code=BAD_INPUT)
    zone = timezone or local_timezone()
    if zone is not None and _wrong_zone(zone):
        zone = None
    is_system = system or source == "/etc/crontab" or Path(source).parent.name == "cron.d"
    made = read_crontab(
        _read(source), source, system=is_system, timezone=zone or "UTC", module=_module(out)
    )
    if zone is None:
        made.remarks.insert(0, Remark(1, "timezone", "this machine's is not known: UTC is assumed"))
    _finish(made, out, name, Output(as_json=json))


@group.command("k8s", epilog=example("mainspring import k8s cronjobs.yaml --out mainspring.toml"))
def k8s(
    source: SourceArgument,
    out: OutOption = None,
    name: NameOption = None,
    json: JsonOption = False,
) -> None:
    """Make a job of each CronJob of a manifest.

    Each job gets a function that runs the command of the container. What cannot be carried over is
    listed with its line. If no job is left, nothing is written.
    """
    from mainspring.cli.kubernetes import read_manifests

    _finish(read_manifests(_read(source), source, _module(out)), out, name, Output(as_json=json))


def _wrong_zone(name: str) -> str | None:
    """What is wrong with the name of a time zone, if anything."""
    from mainspring.core.schedules.zones import zone_named
    from mainspring.errors import InvalidInput

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
    plain = "".join(one if one.isalnum() or one in "._-" else "_" for one in stem)[:100]
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


def _finish(made: Imported, out: str | None, name: str | None, output: Output) -> None:
    made.name = name if name is not None else _name(made.source, out)
    if not made.jobs:
        raise CommandError(
            f"{made.source} has no job that can be carried over; nothing was written",
            code=BAD_INPUT,
            advice="\n  ".join(map(str, made.remarks)),
        )
    if out is not None:
        _write(made, Path(out))
    if output.as_json:
        output.document(
            {
                "toml": made.toml(),
                "handlers": made.handlers(),
                "jobs": list(made.jobs),
                "not_carried_over": [
                    {"line": one.line, "what": one.what, "why": one.why} for one in made.remarks
                ],
            }
        )
        return
    if out is None:
        output.line(made.toml().rstrip())
        output.note("--out FILE also writes the functions of the jobs, beside it")
    else:
        jobs = plural(len(made.jobs), "job")
        output.line(f"wrote {jobs} to {out}, and their functions to {made.module}.py beside it")
    if made.remarks:
        output.note(f"not carried over from {made.source}, or not as it was:")
    for remark in made.remarks:
        output.note(f"  {remark}")


def _write(made: Imported, path: Path) -> None:
    if not path.parent.is_dir():
        raise CommandError(
            f"there is no folder {path.parent}",
            code=BAD_INPUT,
            advice="make it, or name a file in another folder with --out",
        )
    code = path.with_name(f"{made.module}.py")
    for one in (path, code):
        if one.exists():
            raise CommandError(
                f"{one} exists, and is not overwritten",
                code=BAD_INPUT,
                advice="name another file with --out, or move it away",
            )
    try:
        code.write_text(made.handlers(), "utf-8")
        path.write_text(made.toml(), "utf-8")
    except OSError as error:
        raise CommandError(
            f"{error.filename} cannot be written: {error.strerror}",
            code=BAD_INPUT,
            advice="name a file in another folder with --out",
        ) from None
