"""Reads `.env` in the current folder into environment variables that are not set."""

from __future__ import annotations

import os

from mainspring.cli.errors import BAD_INPUT, CommandError

__all__ = ["read_env_file"]

FILE = ".env"


def read_env_file() -> None:
    """Put MAINSPRING_… and MONGODB_URI of the file into the environment, where the commands, an
    app's own scheduler and child processes find them. (The service itself reads its own variables,
    such as PORT.) Does nothing without python-dotenv, which the extra `server` installs."""
    if not os.path.isfile(FILE):
        return
    try:
        from dotenv import dotenv_values
    except ImportError:
        return
    try:
        found = dotenv_values(FILE)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{os.path.abspath(FILE)} cannot be read: {error}",
            code=BAD_INPUT,
            advice="it must be UTF-8 text with NAME=value lines; use another folder if the file"
            " is for another program",
        ) from error
    for name, value in found.items():
        known = name.upper()  # the service ignores case too
        if value and (known.startswith("MAINSPRING_") or known == "MONGODB_URI"):
            os.environ.setdefault(known, value)
