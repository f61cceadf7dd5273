"""What can be an id at all: no store has to look at anything else."""

from __future__ import annotations

import re

from mainspring.errors import InvalidInput

__all__ = ["can_be_job", "can_be_run", "check_run_id"]

_JOB_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_RUN_ID = re.compile(r"[\x21-\x7e]{1,400}")
"""A job's id, and when: longer than that."""


def can_be_job(text: str) -> bool:
    return _JOB_ID.fullmatch(text) is not None


def can_be_run(text: str) -> bool:
    return _RUN_ID.fullmatch(text) is not None


def check_run_id(text: str) -> None:
    if not can_be_run(text):
        raise InvalidInput(
            f"a run id is 1 to 400 printable ASCII characters without spaces, not {text!r}"
        )
