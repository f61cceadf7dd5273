"""Reads `.env` in the current folder into environment variables that are not set."""

from __future__ import annotations

import os

from mainspring.cli.errors import BAD_INPUT, CommandError

__all__ = ["read_env_file"]

FILE = ".env"


def read_env_file() -> None:
    """Put the file's MAINSPRING_… and MONGODB_URI into the environment, where all commands, an
    app's own scheduler and processes that are started look for them. (The service reads what is
    its own, such as PORT, by itself.) The reader comes with the extra `server`."""
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
            advice="it is UTF-8 text with NAME=value lines; run this elsewhere if it is not ours",
        ) from error
    for name, value in found.items():
        known = name.upper()  # as the service takes them
        if value and (known.startswith("MAINSPRING_") or known == "MONGODB_URI"):
            os.environ.setdefault(known, value)
