"""Checks `[notify]` of a file, or the arguments of `install`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.contrib.notify.news import NEWS
from mainspring.contrib.notify.targets import Email, Slack, Target, Url
from mainspring.core.durations import duration
from mainspring.core.model import check_job_id
from mainspring.errors import InputErrors, InvalidInput, UnknownOption, refused

_KINDS: dict[str, Any] = {"slack": Slack, "url": Url, "email": Email}
_RULES = {
    "slack": "is a URL that begins with https:// or http://, without user:password@",
    "url": "is a URL that begins with https:// or http://; `headers` take a password, not the URL",
    "headers": "is a table of texts in ASCII",
    "email": "is an address such as ops@example.org, or a list of them",
    "from": "is an address such as jobs@example.org",
    "host": "is the name of a mail server; its port has a key of its own",
    "port": "is a number from 1 to 65535",
    "security": "is one of starttls, tls, none",
}
"""What is allowed. What was given is not shown: it may be a secret."""


class Settings(Struct, frozen=True):
    """The targets by name, what they are told of, and how often of one job."""

    targets: Mapping[str, Target]
    on: frozenset[str]
    throttle: timedelta


def read_settings(table: Any) -> Settings:
    """`InvalidInput` names each key that is wrong."""
    if not isinstance(table, Mapping):
        raise InvalidInput(f"notify is a table with the key targets, not {type(table).__name__}")
    errors, throttle = InputErrors(), timedelta()
    with errors:
        _check_keys(table, ("targets", "on", "throttle"))
    on = table.get("on", NEWS)
    is_list = isinstance(on, Iterable) and not isinstance(on, str | Mapping)
    chosen: list[Any] = list(on) if is_list else [on]
    if not chosen or not all(isinstance(kind, str) and kind in NEWS for kind in chosen):
        errors.add(refused("on", on, f"is one or more of {', '.join(NEWS)}", NEWS))
    with errors:
        throttle = duration(table.get("throttle", "15m"), what="throttle")
    if throttle > timedelta(days=30):
        errors.add(refused("throttle", throttle, "is at most 30 days"))
    given, targets = table.get("targets"), {}
    if not isinstance(given, Mapping) or not given:
        why = f"is a table for each target ([notify.targets.team]), not {type(given).__name__}"
        errors.add(InvalidInput(why, field="targets", subject="targets"))
        given = {}
    for name, target in given.items():
        try:
            targets[check_job_id(name, "the name of a target", "")] = _read_target(target)
        except InvalidInput as error:
            for wrong in error.each():
                wrong.field = ".".join(filter(None, ("targets", str(name), wrong.field)))
                errors.add(wrong)
    errors.check()
    return Settings(targets, frozenset(chosen), throttle)


def _read_target(given: Any) -> Target:
    if not isinstance(given, Mapping):
        raise InvalidInput("a target is a table with one of the keys slack, url and email")
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise InvalidInput(f"a target has one of the keys slack, url and email, not {len(kinds)}")
    kind = _KINDS[kinds[0]]
    keys = kind.__struct_encode_fields__
    _check_keys(given, keys)
    try:
        target: Target = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidInput):
            raise error.__cause__ from None
        wrong = next((key for key in keys if f"$.{key}" in str(error)), None)
        wrong = wrong or next(key for key in keys if f"`{key}`" in str(error))
        rule = _RULES.get(wrong, "is a text")
        missing = "" if wrong in given else ", and is missing"
        raise InvalidInput(f"{wrong} {rule}{missing}", field=wrong) from None
    return target


def _check_keys(given: Mapping[str, Any], allowed: Collection[str]) -> None:
    errors = InputErrors()
    for key in sorted(map(str, given.keys() - set(allowed))):
        errors.add(UnknownOption([key], allowed, "key"))
    errors.check()
