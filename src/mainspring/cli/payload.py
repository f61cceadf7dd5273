"""Reads a payload from the command line or from stdin."""

from __future__ import annotations

import json
import sys
from typing import Any

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.core import codec

__all__ = ["parse_json", "read_payload"]


def read_payload(text: str, option: str) -> Any:
    """The payload that `option` gives as JSON; `-` reads it from stdin."""
    try:
        return parse_json(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        where = f"{option}, read from stdin," if text == "-" else option
        raise CommandError(
            f"{where} is not JSON: {error}",
            code=BAD_INPUT,
            advice='in a shell, put it in single quotes: \'{"to": "a@example.org"}\'',
        ) from None


def parse_json(text: str) -> Any:
    """A payload as `--json` and the HTTP API write it: `{"$date": "2026-11-17"}` is a date, and
    `{"$$date": …}` the object `{"$date": …}`. Raises ValueError for what is not such JSON."""
    try:
        return codec.untag(json.loads(text, parse_constant=_refuse_constant))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
