"""`mainspring apply`: makes the stored jobs equal to a file, and shows what that changes."""

from __future__ import annotations

import json as jsonlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer

from mainspring.cli.command import CHANGE, Call, argument, command, flag
from mainspring.cli.output import Output, plain_json
from mainspring.cli.store_access import check_shared, find_store
from mainspring.core.durations import humanize
from mainspring.core.plurals import list_some
from mainspring.errors import StoreMissing

if TYPE_CHECKING:
    from mainspring.scheduler.definitions import AppliedJobs

_DURATIONS = ("timeout", "start_deadline", "retention")


commands = typer.Typer()


@command(
    commands,
    "apply",
    "mainspring apply --dry-run",
    "mainspring apply shop.toml --store URL",
    panel=CHANGE,
)
async def apply(
    call: Call,
    file: str = argument("The file that lists the jobs.", "FILE", default="mainspring.toml"),
    dry_run: bool = flag("--dry-run", "Show the difference, and change nothing."),
    take_over: bool = flag(
        "--take-over", "Also replace jobs of these ids that code, the API or another file defines."
    ),
    without_code: bool = flag(
        "--without-code", "Do not import the handlers: for a machine that does not have their code."
    ),
) -> None:
    """Make the stored jobs of a file equal to what the file says now.

    Everything is checked first, then written in one step. Jobs that the file no longer lists are
    removed, if they came from a file of the same name and this file states its `name`.
    """
    from mainspring.scheduler import Client

    options = {"dry_run": dry_run, "take_over": take_over, "with_handlers": not without_code}
    located = find_store(call.choice)
    check_shared(located)
    applied, is_missing = None, False
    try:
        await located.store.open(create=False)  # the client finds it open
    except StoreMissing:
        is_missing = True
    if is_missing:
        # Checked against an empty store first: what is wrong, or a dry run, makes no store.
        async with Client("memory://", inline=True) as client:
            applied = await client.apply_jobs(file, **{**options, "dry_run": True})
    if applied is None or not dry_run:
        async with Client(located.store, inline=True, wait_for_store=0) as client:
            applied = await client.apply_jobs(file, **options)
    call.output.document(_document(applied))
    _show(call.output, applied)


def _document(applied: AppliedJobs) -> dict[str, Any]:
    return {
        "file": applied.name,
        "dry_run": applied.dry_run,
        "added": [job.id for job in applied.added],
        "changed": {
            change.job.id: {
                value.field: {"old": plain_json(value.old), "new": plain_json(value.new)}
                for value in change.differences
            }
            for change in applied.changed
        },
        "removed": [job.id for job in applied.removed],
        "unchanged": [job.id for job in applied.unchanged],
        "kept": [job.id for job in applied.kept],
    }


def _show(output: Output, applied: AppliedJobs) -> None:
    for job in applied.added:
        output.line(f"+ {job.id}", style="green")
    for change in applied.changed:
        output.line(f"~ {change.job.id}", style="yellow")
        for value in change.differences:
            old, new = (_describe_value(value.field, side) for side in (value.old, value.new))
            output.line(f"    {value.field}: {old} → {new}")
    for job in applied.removed:
        output.line(f"- {job.id}", style="red")
    counts: dict[str, list[Any]] = {
        "added": applied.added,
        "changed": applied.changed,
        "removed": applied.removed,
        "unchanged": applied.unchanged,
    }
    summary = ", ".join(f"{len(jobs)} {word}" for word, jobs in counts.items())
    output.line(f"{applied.name}: {summary}")
    if applied.kept:
        kept = list_some([job.id for job in applied.kept], 10)
        output.note(
            f"nothing was removed, though this file does not list {kept}: give the"
            ' file a name = "…" so that apply may remove jobs that it no longer lists'
        )
    if applied.dry_run:
        output.note("a dry run: nothing was changed")


def _describe_value(field: str, value: Any) -> str:
    """A value for people: times in words, all else as JSON."""
    if field in _DURATIONS and isinstance(value, int | float):
        return humanize(timedelta(seconds=value))
    return jsonlib.dumps(plain_json(value), ensure_ascii=False)
