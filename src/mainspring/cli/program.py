"""The program with all its commands; turns their errors into exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import typer
import typer.main

from mainspring.cli import (
    apply,
    doctor,
    enqueue,
    errors,
    explain,
    forecast,
    import_command,
    jobs,
    keys,
    runs,
    serve,
    store,
    worker,
)
from mainspring.cli.command import CHANGE, INSPECT, STORE, example, flag
from mainspring.cli.output import Output
from mainspring.cli.store_access import read_env_file

_MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None
"""Help in colour on a terminal. Elsewhere it is plain and twice as quick, because rich is not
imported."""

app = typer.Typer(
    rich_markup_mode=_MARKUP,
    help="Jobs that run on time, once, everywhere.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example(
        "mainspring serve",
        "mainspring worker app:scheduler",
        'mainspring enqueue send_email \'{"to": "a@example.org"}\' --wait',
        "mainspring runs list --state failed",
    ),
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, and turn its errors into a message and an exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    program: Any = typer.main.get_command(app)
    if _MARKUP:
        _hide_types_of_flags(program)
    try:
        result = program.main(
            _complete(words, program.commands), "mainspring", standalone_mode=False
        )
        code = result if isinstance(result, int) else errors.OK
    except typer.Abort:
        code = errors.FAILED
    except Exception as error:
        shown = _describe_usage(error, words) if isinstance(error, _UsageError) else error
        code = errors.print_error(shown, as_json="--json" in words)
    sys.exit(code)


def _hide_types_of_flags(command: Any) -> None:
    """Leave `<bool>` out of the help of options without a value, those of Typer too."""
    for option in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for part in getattr(command, "commands", {}).values():
        _hide_types_of_flags(part)


_UsageError: Any = typer.BadParameter.__base__
"""Typer's error for a wrong command line. (It has no public name that all versions share.)"""


def _complete(words: list[str], commands: dict[str, Any]) -> list[str]:
    """The words with what they leave out: a group alone shows its commands, and `workers` has only
    one command."""
    if words[:1] == ["workers"] and (len(words) == 1 or words[1].startswith("--")):
        return words if words[1:] == ["--help"] else ["workers", "list", *words[1:]]
    if not words or (len(words) == 1 and hasattr(commands.get(words[0]), "commands")):
        return [*words, "--help"]
    return words


def _describe_usage(error: Any, words: list[str]) -> errors.CommandError:
    """The error for a wrong command line: one line, and what to do."""
    message = error.format_message().strip().rstrip(".")
    path = error.ctx.command_path if error.ctx is not None else "mainspring"
    advice = f"`{path} --help` shows how it is used"
    if words[:1] == ["apply"] and "--file" in words:
        advice = "give the file without --file: `mainspring apply FILE`"
    elif "unexpected extra argument" in message:
        for place in ("mainspring schedule", "--schedule"):
            if place.split()[-1] in words:
                advice = f"put the schedule in quotes, as in {place} '0 9 * * *'"
    return errors.CommandError(
        message[:1].lower() + message[1:], code=errors.BAD_INPUT, advice=advice
    )


def _print_version(asked: bool) -> None:
    if asked:
        from mainspring import __version__

        Output().line(f"mainspring {__version__}")
        raise typer.Exit


@app.callback()
def mainspring(
    version: bool = flag("--version", "Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """Jobs that run on time, once, everywhere."""
    read_env_file()


app.add_typer(serve.commands)
app.add_typer(worker.commands)
app.add_typer(enqueue.commands)
app.add_typer(jobs.group, name="jobs", rich_help_panel=INSPECT)
app.add_typer(runs.group, name="runs", rich_help_panel=INSPECT)
app.add_typer(worker.group, name="workers", rich_help_panel=INSPECT)
app.add_typer(explain.commands)
app.add_typer(doctor.commands)
app.add_typer(jobs.commands)
app.add_typer(apply.commands)
app.add_typer(import_command.group, name="import", rich_help_panel=CHANGE)
app.add_typer(forecast.commands)
app.add_typer(store.group, name="store", rich_help_panel=STORE)
app.add_typer(keys.group, name="keys", rich_help_panel=STORE)
