"""Makes runs: `mainspring enqueue` one, or one for each line of a file; `mainspring chain` several,
one after another; `mainspring backfill` those of past slots."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import structs

from mainspring.cli.command import (
    JOB_ARGUMENT,
    RUN,
    Call,
    argument,
    command,
    complete_job,
    duration_option,
    flag,
    option,
)
from mainspring.cli.errors import BAD_INPUT, FAILED, CommandError
from mainspring.cli.output import Output, iso, progress_bar, run_document, when
from mainspring.cli.runs import print_run
from mainspring.core import codec
from mainspring.core.plurals import plural
from mainspring.core.schedules.base import moment

if TYPE_CHECKING:
    from mainspring.core.model import Run
    from mainspring.engine.backfill import Backfill
    from mainspring.scheduler import Client

commands = typer.Typer()

CHUNK = 1000
"""Runs in one commit: enough to make it cheap, few enough to show progress."""


@command(
    commands,
    "enqueue",
    'mainspring enqueue send_email \'{"to": "a@example.org"}\' --delay 5m',
    "mainspring enqueue resize - --wait --timeout 1m < payload.json",
    "mainspring enqueue send_email --many addresses.jsonl",
    panel=RUN,
)
async def enqueue(
    call: Call,
    job: str = JOB_ARGUMENT,
    payload: str | None = argument(
        "JSON; - reads it from stdin. Default: the job's own payload.", "PAYLOAD", default=None
    ),
    delay: timedelta | None = duration_option("Run it after this long, as in 5m or 1h30m."),
    at: str | None = option("Run it at this time: ISO 8601; UTC if it has no offset.", "TIME"),
    priority: int | None = option("0 to 9; higher runs first.", "NUMBER"),
    queue: str | None = option("Use this queue instead of the job's.", "QUEUE"),
    dedupe_key: str | None = option("Add no run while an unfinished run has this key.", "KEY"),
    dedupe_for: timedelta | None = duration_option("Keep the key at least this long."),
    wait: bool = flag("--wait", "Wait until the run ends; exit code 1 unless it succeeds."),
    timeout: timedelta | None = duration_option("With --wait: stop waiting after this long."),
    many: str | None = option(
        "Queue a run for each line of JSON in this file; - is stdin.", "FILE"
    ),
) -> None:
    """Queue a run of a job. With --app the handler's arguments are checked first."""
    given: dict[str, Any] = {
        "delay": delay,
        "at": None if at is None else moment(at, "UTC", "--at"),
        "priority": priority,
        "queue": queue,
        "dedupe_key": dedupe_key,
        "dedupe_for": dedupe_for,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if timeout is not None and not wait:
        raise CommandError("--timeout needs --wait: it says how long to wait", code=BAD_INPUT)
    if many is not None:
        if payload is not None or wait or dedupe_key is not None:
            raise CommandError(
                "--many takes its payloads from the file: it cannot be used with PAYLOAD, --wait or"
                " --dedupe-key",
                code=BAD_INPUT,
            )
        await _enqueue_many(call, job, many, options)
        return
    content = None if payload is None else read_payload(payload, "PAYLOAD")
    async with call.client(with_code=True) as client:
        run = await client.enqueue(job, content, **options)
        if wait:
            with call.output.waiting(f"waiting for run {run.id} of {job}"):
                run = await _wait_for_end(client, run, timeout)
    if not wait:
        _print_queued(call.output, run)
        return
    print_run(call.output, run)
    if run.state != "succeeded":
        raise typer.Exit(FAILED)


async def _wait_for_end(client: Client, run: Run, timeout: timedelta | None) -> Run:
    try:
        return await client.wait(run.id, timeout)
    except asyncio.CancelledError:  # Ctrl+C
        raise CommandError(
            f"stopped waiting; run {run.id} goes on: `mainspring runs show {run.id}`"
        ) from None
    except TimeoutError:
        from mainspring.core.durations import humanize

        assert timeout is not None
        now = await client.get_run(run.id)
        if now.finished:
            return now
        raise CommandError(
            f"run {run.id} did not end within {humanize(timeout)}: it is {now.state}",
            advice=f"it goes on: `mainspring runs show {run.id}` shows its state"
            if now.state == "running"
            else "`mainspring doctor` checks whether a running worker has its handler",
        ) from None


def _print_queued(output: Output, run: Run) -> None:
    output.document(run_document(run))
    if not output.pretty:
        output.line(run.id)
    elif run.duplicate:
        output.line(f"not enqueued: run {run.id} has this dedupe key and is {run.state}")
    else:
        output.line(f"enqueued {run.job_id}: run {run.id}, due {when(run.run_at)}")


async def _enqueue_many(call: Call, job_id: str, name: str, options: dict[str, Any]) -> None:
    async with call.client(with_code=True) as client:
        await client.get_job(job_id)
        count = await _enqueue_lines(client, job_id, name, options, quiet=call.output.as_json)
    call.output.document({"job_id": job_id, "enqueued": count})
    if count:
        call.output.line(f"enqueued {plural(count, 'run')} of {job_id}")
    else:
        call.output.line("the file has no lines: nothing was enqueued")


async def _enqueue_lines(
    client: Client, job_id: str, name: str, options: dict[str, Any], *, quiet: bool
) -> int:
    """Enqueue a run for each line of a file (`-` is stdin). Returns how many. All lines are read
    first, so that an invalid one is found before anything is queued. Each chunk is queued
    completely or not at all."""
    payloads, done = _read_lines(name), 0
    with progress_bar(quiet=quiet) as move:
        while chunk := payloads[done : done + CHUNK]:
            try:
                await client.enqueue_many(job_id, chunk, **options)
            except Exception as error:
                if done:
                    error.add_note(f"enqueued before that: {plural(done, 'line')}")
                raise
            done += len(chunk)
            move(done, len(payloads))
    return done


def _read_lines(name: str) -> list[Any]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}", code=BAD_INPUT) from None
    payloads = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            payloads.append(parse_json(line))
        except ValueError as error:
            raise CommandError(
                f"{'stdin' if name == '-' else name}, line {number} is not JSON: {error}",
                code=BAD_INPUT,
                advice="write one JSON payload on each line",
            ) from None
        codec.encode(payloads[-1], what=f"payload of line {number}")
    return payloads


@command(
    commands,
    "chain",
    "mainspring chain extract load report",
    'mainspring chain extract \'load={"table": "orders"}\' --after-failure run',
    panel=RUN,
)
async def chain(
    call: Call,
    links: list[str] = argument(
        "Jobs in order; JSON after = is the payload of that run.",
        "JOB[=PAYLOAD]",
        autocompletion=complete_job,
    ),
    after_failure: str | None = option(
        "What becomes of a run if the one before it did not succeed. Default: what its job says.",
        "skip|run",
    ),
) -> None:
    """Queue a run of each job, each after the one before it. All are queued, or none."""
    if after_failure not in (None, "skip", "run"):
        raise CommandError(f"--after-failure is skip or run, not {after_failure!r}", code=BAD_INPUT)
    pairs = [_link(text) for text in links]
    how: Any = after_failure
    async with call.client(with_code=True) as client:
        runs = await client.chain(*pairs, after_failure=how)
    call.output.document([run_document(run) for run in runs])
    if not call.output.pretty:
        for run in runs:
            call.output.line(run.id)
    else:
        call.output.line(f"enqueued {' → '.join(run.job_id for run in runs)}")
        call.output.line(f"`mainspring workflow {runs[0].id}` shows how far it is")


def _link(text: str) -> tuple[str, Any]:
    name, equals, payload = text.partition("=")
    return name, read_payload(payload, f"the payload of {name}") if equals else None


@command(
    commands,
    "backfill",
    "mainspring backfill daily_report --from 2026-11-01 --to 2026-11-08 --dry-run",
    "mainspring backfill import_hour --from 2026-01-01 --limit 5000",
    panel=RUN,
)
async def backfill(
    call: Call,
    job: str = JOB_ARGUMENT,
    start: str = option(
        "The first slot: ISO 8601; without an offset, in the job's time zone.",
        "TIME",
        "--from",
        default=...,
    ),
    end: str | None = option("Slots before this time. Default: now.", "TIME", "--to"),
    limit: int | None = option(
        "Add at most this many, earliest slot first. Needed above 1,000 slots.", "NUMBER", min=1
    ),
    priority: int = option("0 to 9; higher runs first.", "NUMBER", default=0),
    dry_run: bool = flag("--dry-run", "Only say what would be run."),
) -> None:
    """Run the slots of a job that have not run. Slots that have a run are left alone."""
    async with call.client() as client:
        first, last = await _backfill_range(client, job, start, end)
        done = 0
        with progress_bar(quiet=call.output.as_json) as move:

            def count(slots: int, total: int) -> None:
                nonlocal done
                done = slots
                move(slots, total)

            try:
                result = await client.backfill(
                    job,
                    first,
                    last,
                    limit=limit,
                    priority=priority,
                    dry_run=dry_run,
                    progress=count,
                )
            except asyncio.CancelledError:
                raise CommandError(
                    f"stopped after {plural(done, 'slot')}",
                    code=FAILED,
                    advice="the same command goes on: slots that have a run are left alone",
                ) from None
    output = call.output
    output.document({"job_id": job, "dry_run": dry_run, **structs.asdict(result)})
    _print_backfill(output, result, dry_run=dry_run)


async def _backfill_range(
    client: Client, job_id: str, start: str, end: str | None
) -> tuple[datetime, datetime]:
    job = await client.get_job(job_id)
    zone = job.schedule.timezone if job.schedule is not None else "UTC"
    first = moment(start, zone, "--from")
    return first, await client.now() if end is None else moment(end, zone, "--to")


def _print_backfill(output: Output, result: Backfill, *, dry_run: bool) -> None:
    verb = "would be added" if dry_run else "added"
    count = len(result.added)
    output.line(
        f"{plural(result.slots, 'slot')} of {result.job_id}:"
        f" {plural(count, 'run')} {verb}, {len(result.existing):,} left alone"
    )
    states = Counter(state.value for state in result.existing.values())
    for state, number in sorted(states.items()):
        output.line(f"  {number:,} {state}")
    if result.first_slot is not None:
        output.note(
            f"the schedule, as it is now, has no slot before {iso(result.first_slot)}:"
            " an interval counts from when its job was first stored, or from its start"
        )
    if result.may_have_run:
        output.note(
            f"{result.may_have_run:,} of these slots are older than the runs that are kept: if they"
            " ran, their runs have been deleted since, and they run again"
        )
    if states.get("failed"):
        output.note("a failed run is tried again by `mainspring runs retry`")
    if result.next_slot is not None:
        output.note(f"the limit is reached; the next slot is {iso(result.next_slot)}")


# Payloads


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
