"""Finds the run that a person means by the beginning of its id."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.errors import RunNotFound

if TYPE_CHECKING:
    from mainspring.scheduler import Client

__all__ = ["find_run_id"]

SHORTEST = 6
"""Characters of an id that must be given."""

MOST_SEARCHED = 1000
MOST_NAMED = 10

_WHOLE = re.compile(r"[0-9a-f]{32}|[^@]+@[0-9]{8}T[0-9]{6}(\.[0-9]+)?Z")
_TIME = re.compile(r"[0-9a-f]{8,31}")
_TIME_DIGITS = 12
_CLOCK_ERROR = timedelta(minutes=1)
"""How far the time in an id may be from the time at which the store says the run was made."""


async def find_run_id(client: Client, given: str) -> str:
    """The whole id of the one run whose id is given or begins so; `RunNotFound` if there is none.
    Only the newest runs that can match are searched, at most MOST_SEARCHED."""
    if _WHOLE.fullmatch(given):
        return given
    try:
        return (await client.get_run(given)).id
    except RunNotFound as unknown:
        if len(given) < SHORTEST:
            wanted = f"give the id, or its first {SHORTEST} characters or more"
            unknown.args = (f"there is no run {given!r}: {wanted}",)
            raise
    page = await client.list_runs(brief=True, limit=MOST_SEARCHED, **_filter(given))
    found = [run for run in page.items if run.id.startswith(given)]
    if not found:
        missing = RunNotFound(given)
        searched = f"none of the newest {MOST_SEARCHED:,} runs has" if page.cursor else "no run has"
        missing.args = (f"{missing}, and {searched} an id that begins so",)
        raise missing
    if len(found) > 1:
        named = [f"{run.id}  {run.job_id}, {run.state}" for run in found[:MOST_NAMED]]
        more = len(found) - MOST_NAMED
        raise CommandError(
            f"the ids of {len(found)} runs begin with {given!r}: give more of the one you mean",
            code=BAD_INPUT,
            advice="\n  ".join([*named, f"and {more:,} more"] if more > 0 else named),
        )
    return found[0].id


def _filter(given: str) -> dict[str, Any]:
    """What is known of a run by the beginning of its id: the job of a slot's run, or about when
    another one was made. So a run is found among millions of newer ones."""
    job, at, _ = given.partition("@")
    if at:
        return {"job": job}
    if not _TIME.fullmatch(given):
        return {}
    digits = given[:_TIME_DIGITS]
    try:
        since, until = (
            datetime.fromtimestamp(int(digits.ljust(_TIME_DIGITS, fill), 16) / 1000, UTC)
            for fill in "0f"
        )
    except (ValueError, OverflowError, OSError):  # no time of this epoch: a job may be named so
        return {}
    return {"since": since - _CLOCK_ERROR, "until": until + _CLOCK_ERROR}
