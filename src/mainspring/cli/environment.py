"""Reads `.env` in the current folder into environment variables that are not set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from mainspring.cli.errors import BAD_INPUT, CommandError

FILE = ".env"
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
_QUOTED = re.compile(r"""(?:'([^']*)'|"([^"\\]*)")\s*(?:#.*)?""")
_BARE = re.compile(r"""((?:[^'"#\s].*?)?)(?:\s+#.*)?""")


def read_env_file() -> None:
    """Put MAINSPRING_… and MONGODB_URI of the file into the environment, where the commands, an
    app's own scheduler and child processes find them. (The service itself reads its own variables,
    such as PORT.)"""
    if not os.path.isfile(FILE):
        return
    try:
        found = _read_values()
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{os.path.abspath(FILE)} cannot be read: {error}",
            code=BAD_INPUT,
            advice="it must be UTF-8 text with NAME=value lines; use another folder if the file"
            " is for another program",
        ) from error
    for name, value in found.items():
        if value and _is_ours(name):
            os.environ.setdefault(name.upper(), value)


def _is_ours(name: str) -> bool:
    known = name.upper()  # the service ignores case too
    return known.startswith("MAINSPRING_") or known == "MONGODB_URI"


def _read_values() -> Mapping[str, str | None]:
    """The file as python-dotenv reads it, which the extra `server` installs; without that, simple
    lines. What they would read differently is refused."""
    try:
        from dotenv import dotenv_values
    except ImportError:
        return _read_simple_lines(Path(FILE).read_text("utf-8"))
    return dotenv_values(FILE)


def _read_simple_lines(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        assigned = _ASSIGNMENT.fullmatch(line)
        if assigned is None or not _is_ours(assigned[1]):
            continue
        name, given = assigned.groups()
        found = _QUOTED.fullmatch(given) or _BARE.fullmatch(given)
        if found is None or "${" in given:
            raise CommandError(
                f"line {number} of {os.path.abspath(FILE)} cannot be read: {name} is no simple"
                " value",
                code=BAD_INPUT,
                advice="write it in one line, without escapes and ${…}; or install python-dotenv,"
                " which reads all of that",
            )
        values[name] = next((part for part in found.groups() if part is not None), "")
    return values
