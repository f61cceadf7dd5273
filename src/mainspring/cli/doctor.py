"""`mainspring doctor`: shows what keeps jobs from running, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from mainspring.cli.command import INSPECT, Call, command
from mainspring.cli.errors import FAILED
from mainspring.cli.output import STYLES, Output
from mainspring.core.plurals import plural

if TYPE_CHECKING:
    from mainspring.cli.doctor_checks import Check


commands = typer.Typer()


@command(
    commands,
    "doctor",
    "mainspring doctor --store sqlite:///jobs.db",
    "mainspring doctor --json",
    panel=INSPECT,
)
async def doctor(call: Call) -> None:
    """Check the store, the clock, the workers and the jobs. Exit code 1 if a check fails."""
    from mainspring.cli.doctor_checks import run_checks

    checks = await run_checks(call.choice)
    if call.output.as_json:
        call.output.document(
            {"ok": _all_passed(checks), "checks": [check.document() for check in checks]}
        )
    else:
        _print(call.output, checks)
    if not _all_passed(checks):
        raise typer.Exit(FAILED)


def _all_passed(checks: list[Check]) -> bool:
    return all(check.status != "fail" for check in checks)


def _print(output: Output, checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        output.line(
            f"{check.status:4}  {check.name:{width}}  {check.detail}",
            style="" if check.status == "ok" else STYLES[check.status],
        )
        if check.advice:
            output.line(f"      {'':{width}}  → {check.advice}")
    failed = sum(check.status == "fail" for check in checks)
    warned = sum(check.status == "warn" for check in checks)
    output.line()
    if failed or warned:
        output.line(f"{plural(failed, 'fault')}, {plural(warned, 'warning')}")
    else:
        output.line("all checks passed")
