"""What a worker prints when it starts: its jobs, those that run next first."""

from __future__ import annotations

import json

import pytest

from mainspring import Scheduler
from mainspring.cli.start_output import print_lines, print_start


def work() -> None: ...


def test_brackets_and_control_characters_are_printed_as_they_are_stored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_lines("Mainspring 1 on sqlite:///a[bold]b.db", "jobs in [red]x\x1b[2J", last="stop")
    assert capsys.readouterr().err.splitlines() == [
        "Mainspring 1 on sqlite:///a[bold]b.db",
        r"  jobs in [red]x\x1b[2J",
        "  stop",
    ]


async def test_jobs_that_run_next_come_first_in_even_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Scheduler("memory://", enabled=False) as scheduler:
        scheduler.add_handler("work", work)
        for number in range(20):
            await scheduler.add_job(f"a{number:02}", handler="work")
        await scheduler.add_job("z_the_longest_name", handler="work", schedule="1h")
        for number in range(1100):
            await scheduler.add_job(f"b{number:04}", handler="work")
        await print_start(scheduler, as_json=False)
        lines = capsys.readouterr().err.splitlines()
        first = next(at for at, line in enumerate(lines) if "z_the_longest_name" in line)
        assert lines[first].startswith("  z_the_longest_name  in ")
        assert lines[first + 1] == "  a00                 when enqueued"
        assert "  and 1,101 more: mainspring jobs list" in lines
        await print_start(scheduler, as_json=True)
        document = json.loads(capsys.readouterr().out)
        assert (document["job_count"], len(document["jobs"])) == (1121, 1000)
        assert document["jobs"][0]["id"] == "z_the_longest_name"
