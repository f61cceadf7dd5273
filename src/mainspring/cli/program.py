"""The program with all its commands; turns their errors into exit codes."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from mainspring.cli import (
    apply,
    backfill,
    doctor,
    enqueue,
    errors,
    explain,
    forecast,
    import_command,
    job_changes,
    jobs,
    keys,
    runs,
    serve,
    store,
    worker,
)
from mainspring.cli.command import CHANGE, INSPECT, STORE, Call, command, example
from mainspring.cli.environment import read_env_file
from mainspring.cli.options import flag
from mainspring.cli.output import Output

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's error for a wrong command line. (It has no public name that all versions share.)"""


class Program(TyperGroup):
    """The outermost group: runs a command and turns its errors into a message and an exit code."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        given = options.get("args")
        words = list(sys.argv[1:] if given is None else given)
        if words[:1] == ["workers"] and _names_no_command(words[1:]):
            options["args"] = ["workers", "list", *words[1:]]
        elif not words or (len(words) == 1 and hasattr(self.commands.get(words[0]), "commands")):
            options["args"] = [*words, "--help"]  # a group without a command: show its commands
        as_json = "--json" in words
        try:
            answer = super().main(*arguments, **{**options, "standalone_mode": False})
            code = answer if isinstance(answer, int) else errors.OK
        except _UsageError as error:
            code = errors.print_error(_usage(error, words), as_json=as_json)
        except typer.Abort:
            code = errors.FAILED
        except Exception as error:
            code = errors.print_error(error, as_json=as_json)
        sys.exit(code)


def _names_no_command(words: list[str]) -> bool:
    """Whether options follow a group, and no command of it: it has only one, which is meant."""
    return not words or (words[0].startswith("-") and words[0] not in ("-h", "--help"))


def _usage(error: Any, words: list[str]) -> errors.CommandError:
    """The error for a wrong command line: one line, and the command that shows the help."""
    message = _out_of_range(error) or error.format_message().strip().rstrip(".")
    command = error.ctx.command_path if error.ctx is not None else "mainspring"
    return errors.CommandError(
        message[:1].lower() + message[1:],
        code=errors.BAD_INPUT,
        advice=_file_advice(error, command)
        or _schedule_advice(message, words)
        or f"`{command} --help` shows how it is used",
    )


def _file_advice(error: Any, command: str) -> str | None:
    """`worker`, `serve` and `forecast` take --file; `apply` takes the file itself."""
    if getattr(error, "option_name", None) != "--file" or error.ctx is None:
        return None
    takes_file = any(param.metavar == "FILE" for param in error.ctx.command.params)
    return f"give the file without --file: `{command} FILE`" if takes_file else None


def _schedule_advice(message: str, words: list[str]) -> str | None:
    """A schedule of several words without quotes leaves arguments over."""
    if "unexpected extra argument" not in message:
        return None
    if words[:1] == ["schedule"]:
        return "put the schedule in quotes, as in mainspring schedule '0 9 * * *'"
    if "--schedule" in words:
        return "put the schedule in quotes, as in --schedule '0 9 * * *'"
    return None


def _out_of_range(error: Any) -> str | None:
    """What was given for an option that takes a range of numbers, and the whole range. Typer tells
    only the bound that was missed."""
    param = getattr(error, "param", None)
    low, high = getattr(param, "min", None), getattr(param, "max", None)
    details = getattr(error.__cause__, "errors", None)
    if low is None or param is None or details is None:
        return None
    span = f"{low} or more" if high is None else f"{low} to {high}"
    return f"{param.opts[-1]} is {span}, not {details()[0]['input']!r}"


_MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None
"""Help in colour on a terminal. Elsewhere it is plain and twice as quick, because rich is not
imported."""

app = typer.Typer(
    cls=Program,
    rich_markup_mode=_MARKUP,
    help="Jobs that run on time, once, everywhere.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example(
        "mainspring serve",
        "mainspring worker app:scheduler",
        'mainspring enqueue send_email \'{"to": "a@example.org"}\' --wait',
        "mainspring runs list --state failed",
    ),
)


def _print_version(output: Output) -> None:
    from mainspring import __version__

    if output.as_json:
        output.document({"version": __version__})
    else:
        output.line(f"mainspring {__version__}")


def _version_asked(asked: bool) -> None:
    if asked:
        _print_version(Output())
        raise typer.Exit


@app.callback()
def mainspring(
    version: Annotated[
        bool,
        flag("--version", help="Print the version.", callback=_version_asked, is_eager=True),
    ] = False,
) -> None:
    """Jobs that run on time, once, everywhere."""
    read_env_file()


app.add_typer(serve.commands)
app.add_typer(worker.commands)
app.add_typer(enqueue.commands)
app.add_typer(backfill.commands)
app.add_typer(jobs.group, name="jobs", rich_help_panel=INSPECT)
app.add_typer(runs.group, name="runs", rich_help_panel=INSPECT)
app.add_typer(worker.group, name="workers", rich_help_panel=INSPECT)
app.add_typer(explain.commands)
app.add_typer(doctor.commands)
app.add_typer(job_changes.commands)
app.add_typer(apply.commands)
app.add_typer(import_command.group, name="import", rich_help_panel=CHANGE)
app.add_typer(forecast.commands)
app.add_typer(store.group, name="store", rich_help_panel=STORE)
app.add_typer(keys.group, name="keys", rich_help_panel=STORE)


about = typer.Typer()


@command(about, "version", "mainspring version --json", panel=INSPECT, uses_store=False)
def version(call: Call) -> None:
    """Print the version."""
    _print_version(call.output)


app.add_typer(about)  # last, so that the panels come in their order
