"""Options of `mainspring jobs add` and `jobs update`: flags, and `--set key=value` for the rest."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.payload import read_payload
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
        "--schedule",
        help="A cron text, an interval such as 5m, '5m after end', a date-time, an RRULE; or none.",
    ),
]
TimezoneOption = Annotated[
    str | None,
    typer.Option(
        "--timezone", "--tz", metavar="ZONE", help="The zone of the schedule, as in Europe/Berlin."
    ),
]
HandlerOption = Annotated[
    str | None, typer.Option("--handler", help="The name of a handler that workers have.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Instead of a handler: the URL to call.")
]
PayloadOption = Annotated[
    str | None,
    typer.Option(
        "--payload", metavar="JSON", help="The handler's arguments; - reads them from stdin."
    ),
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
        " `none` empties one that may be empty, as in --set timeout=none. May be given several"
        " times.",
    ),
]


def options_of(*, payload: str | None, settings: list[str] | None, **flags: Any) -> dict[str, Any]:
    """The options of `add_job` and `update_job` that were given."""
    options = {name: value for name, value in flags.items() if value is not None}
    if options.get("schedule") == "none":
        options["schedule"] = None
    if payload is not None:
        options["payload"] = read_payload(payload, "--payload")
    for text in settings or ():
        path, value = _read_setting(text)
        _put(options, path, value, text)
    if "url" in options:
        url = options.pop("url")
        webhook = options.setdefault("webhook", {})
        if not isinstance(webhook, dict) or "url" in webhook:
            raise CommandError("give the url once", code=BAD_INPUT)
        webhook["url"] = url
    return options


def _read_setting(text: str) -> tuple[list[str], Any]:
    """The path and the value of one `--set`: `webhook.method=GET`."""
    from mainspring.scheduler.job_file import JOB_KEYS, read_value

    key, equals, value = text.partition("=")
    if not equals:
        raise CommandError(
            f"--set {text} gives no value",
            code=BAD_INPUT,
            advice=f"write KEY=VALUE, as in --set {key}=3",
        )
    path = key.split(".")
    if path[0] not in JOB_KEYS:
        raise UnknownOption([path[0]], JOB_KEYS, "key")
    if value != "none":
        return path, _value(value)
    if len(path) > 1:
        return path, None
    if key in _UNSET:
        return path, _UNSET[key]
    if read_value(key, value) is not None:
        raise CommandError(
            f"--set {text}: {key} always has a value", code=BAD_INPUT, advice=_default_advice(key)
        )
    return path, None


def _default_advice(key: str) -> str:
    from mainspring.core.policy import Policy

    built_in = Policy().to_dict(complete=True)
    return (
        f"--set {key}={json.dumps(built_in[key])} is the built-in value" if key in built_in else ""
    )


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
