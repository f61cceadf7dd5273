"""Turns errors into one line for people, one object for programs, and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from mainspring.cli.output import json_text, printable
from mainspring.errors import (
    InvalidInput,
    JobNotFound,
    JobOwnedByCode,
    MainspringError,
    NotFound,
    RunNotFound,
    StoreError,
)

OK = 0
FAILED = 1
BAD_INPUT = 2
UNREACHABLE = 3


class CommandError(Exception):
    """A command failed: the message, the exit code, and what the user can do."""

    def __init__(self, message: str, *, code: int = FAILED, advice: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice


class Stopped(SystemExit):
    """A signal came before any work had started."""


def exit_code(error: BaseException) -> int:
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, InvalidInput | NotFound):
        return BAD_INPUT
    if isinstance(error, StoreError):
        return UNREACHABLE
    return FAILED


def print_error(error: BaseException, *, as_json: bool) -> int:
    """Print the error on stderr, and return its exit code."""
    if os.environ.get("MAINSPRING_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    message, advice, code = _message(error), _advice(error), exit_code(error)
    others: list[str] = []
    if isinstance(error, InvalidInput) and error.others:  # its notes say the same in one line
        message, others = str(error), [str(other) for other in error.others]
    if as_json:
        document: dict[str, Any] = {"error": message, "code": code}
        if advice:
            document["advice"] = advice
        if others:
            document["errors"] = [message, *others]
        if isinstance(error, InvalidInput):
            document["fields"] = [
                {"field": fault.field, "file": fault.file, "error": str(fault)}
                for fault in error.each()
            ]
        _write(json_text(document, indent=None))
    else:
        for line in (message, *others):
            _write(_coloured("error:", "1;31") + f" {printable(line)}")
        if advice:
            _write(f"  {printable(advice)}")
    return code


def _message(error: BaseException) -> str:
    return "; ".join([_describe(error), *getattr(error, "__notes__", ())])


def _describe(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, MainspringError | CommandError | TimeoutError) and text:
        return text
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"unexpected {words}"


def _advice(error: BaseException) -> str:
    if isinstance(error, CommandError):
        return error.advice
    if isinstance(error, JobNotFound):
        return "`mainspring jobs list` lists the jobs"
    if isinstance(error, RunNotFound):
        return "`mainspring runs list` lists the runs"
    if isinstance(error, JobOwnedByCode):
        return "if its code is gone, `mainspring jobs remove --force` removes the job"
    if isinstance(error, StoreError):
        return "`mainspring doctor` checks the store"
    if isinstance(error, MainspringError | TimeoutError):
        return ""
    return "MAINSPRING_DEBUG=1 shows the traceback"


def _coloured(text: str, style: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stderr.isatty() else f"\033[{style}m{text}\033[0m"


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")
