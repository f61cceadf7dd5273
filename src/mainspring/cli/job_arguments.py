"""Options of `mainspring jobs add` and `jobs update`: flags, and `--set key=value` for the rest."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.errors import InvalidInput, UnknownOption

__all__ = [
    "DescriptionOption",
    "HandlerOption",
    "PayloadOption",
    "ScheduleOption",
    "SetOption",
    "TagOption",
    "TimezoneOption",
    "UrlOption",
    "name_fields",
    "options_of",
]

_UNSET: dict[str, Any] = {
    "schedule": None,
    "payload": None,
    "description": "",
    "tags": [],
    "metadata": {},
}
"""What `none` means for options that are no policy."""

ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule", help="A cron text, an interval such as 5m, a date-time, an RRULE; or none."
    ),
]
TimezoneOption = Annotated[
    str | None, typer.Option("--timezone", help="The zone of the schedule, as in Europe/Berlin.")
]
HandlerOption = Annotated[
    str | None, typer.Option("--handler", help="The name of a handler that workers have.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Instead of a handler: the URL to call.")
]
PayloadOption = Annotated[
    str | None, typer.Option("--payload", metavar="JSON", help="The handler's arguments.")
]
DescriptionOption = Annotated[str | None, typer.Option("--description", help="Text for people.")]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", help="A tag; may be given several times.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other option, as in --set retries=3 --set timeout=5m --set webhook.method=GET;"
        " `none` unsets one. May be given several times.",
    ),
]


def options_of(
    flags: dict[str, Any], payload: str | None, settings: list[str] | None
) -> dict[str, Any]:
    """The options of `add_job` and `update_job` that were given."""
    from mainspring.scheduler.job_file import JOB_KEYS, read_value

    options = {name: value for name, value in flags.items() if value is not None}
    if options.get("schedule") == "none":
        options["schedule"] = None
    if payload is not None:
        options["payload"] = _json(payload, "--payload")
    for text in settings or ():
        key, is_there, value = text.partition("=")
        first, *rest = key.split(".")
        if not is_there or first not in JOB_KEYS:
            raise CommandError(
                f"--set {text} is not KEY=VALUE with a known key",
                code=BAD_INPUT,
                advice=f"keys are {', '.join(sorted(JOB_KEYS))}",
            )
        read = _value(value) if rest or first in _UNSET else read_value(first, _value(value))
        if not rest and first in _UNSET and value == "none":
            read = _UNSET[first]
        _put(options, [first, *rest], read, text)
    if "url" in options:
        url = options.pop("url")
        webhook = options.setdefault("webhook", {})
        if not isinstance(webhook, dict) or "url" in webhook:
            raise CommandError("give the url once", code=BAD_INPUT)
        webhook["url"] = url
    return options


def _put(options: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    held = options
    for part in path[:-1]:
        held = held.setdefault(part, {})
        if not isinstance(held, dict):
            raise CommandError(f"--set {text}: {part} has a value already", code=BAD_INPUT)
    if path[-1] in held:
        raise CommandError(f"--set {text}: {'.'.join(path)} is given twice", code=BAD_INPUT)
    held[path[-1]] = value


def name_fields(error: InvalidInput) -> InvalidInput:
    """The error with the option at fault in each message that does not name it."""
    for one in error.each():
        if one.field and one.subject is None and not isinstance(one, UnknownOption):
            one.args = (f"{one.field}: {one}",)
    error.__notes__ = []  # each is shown by itself
    return error


def _value(text: str) -> Any:
    """A JSON value, or the text itself: 3 is a number, 5m a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(
            f"{option} is not JSON: {error}",
            code=BAD_INPUT,
            advice=f'write {option} \'{{"to": "a@example.org"}}\'',
        ) from None
