"""`mainspring enqueue`: queues one run, or one for each line of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli.errors import BAD_INPUT, FAILED, CommandError
from mainspring.cli.options import (
    AppOption,
    JobArgument,
    JsonOption,
    StoreOption,
    example,
    read_duration,
    run_coroutine,
)
from mainspring.cli.output import Output, when
from mainspring.cli.payload import read_payload
from mainspring.cli.store_access import StoreChoice, open_client
from mainspring.core.plurals import plural
from mainspring.core.policy import MAX_PRIORITY

if TYPE_CHECKING:
    from datetime import timedelta

    from mainspring.core.model import Run
    from mainspring.scheduler import Client

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(
        "enqueue",
        epilog=example(
            'mainspring enqueue send_email \'{"to": "a@example.org"}\' --delay 5m',
            "mainspring enqueue resize - --wait --timeout 1m < payload.json",
            "mainspring enqueue send_email --many addresses.jsonl",
        ),
    )(enqueue)


def enqueue(
    job: JobArgument,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD",
            help="JSON; - reads it from stdin. Default: the job's own payload.",
            show_default=False,
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay", metavar="DURATION", help="Run it after this long, as in 5m or 1h30m."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Run it at this time: ISO 8601; UTC if it has no offset."
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", min=0, max=MAX_PRIORITY, help="0 to 9; higher runs first."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Use this queue instead of the job's.")
    ] = None,
    dedupe_key: Annotated[
        str | None,
        typer.Option("--dedupe-key", help="Add no run while an unfinished run has this key."),
    ] = None,
    dedupe_for: Annotated[
        str | None,
        typer.Option("--dedupe-for", metavar="DURATION", help="Keep the key at least this long."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the run ends; exit code 1 unless it succeeds."),
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="DURATION", help="With --wait: stop waiting after this long."
        ),
    ] = None,
    many: Annotated[
        str | None,
        typer.Option(
            "--many",
            metavar="FILE",
            help="Queue a run for each line of JSON in this file; - is stdin.",
        ),
    ] = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Queue a run of a job. With --app the handler's arguments are checked first."""
    given = {
        "delay": _duration(delay, "--delay"),
        "at": _moment(at),
        "priority": priority,
        "queue": queue,
        "dedupe_key": dedupe_key,
        "dedupe_for": _duration(dedupe_for, "--dedupe-for"),
    }
    options = {name: value for name, value in given.items() if value is not None}
    choice, output = StoreChoice.of(store, app), Output(as_json=json)
    if timeout is not None and not wait:
        raise CommandError("--timeout needs --wait: it says how long to wait", code=BAD_INPUT)
    if many is not None:
        if payload is not None or wait or dedupe_key is not None:
            raise CommandError(
                "--many takes its payloads from the file: it cannot be used with PAYLOAD, --wait or"
                " --dedupe-key",
                code=BAD_INPUT,
            )
        run_coroutine(_enqueue_many(choice, output, job, many, options))
    else:
        content = None if payload is None else read_payload(payload, "PAYLOAD")
        run_coroutine(_enqueue(choice, output, job, content, options, wait, timeout))


async def _enqueue(
    choice: StoreChoice,
    output: Output,
    job_id: str,
    payload: Any,
    options: dict[str, Any],
    wait: bool,
    timeout: str | None,
) -> None:
    patience = _duration(timeout, "--timeout")  # refused before anything is queued
    async with open_client(choice, with_code=True) as client:
        run = await client.enqueue(job_id, payload, **options)
        if wait:
            with output.waiting(f"waiting for run {run.id} of {job_id}"):
                run = await _wait_for_end(client, run, patience)
    if wait:
        _tell_end(output, run)
    else:
        _tell_queued(output, run)


async def _wait_for_end(client: Client, run: Run, timeout: timedelta | None) -> Run:
    import asyncio

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


def _tell_queued(output: Output, run: Run) -> None:
    if output.as_json:
        from mainspring.cli.json_output import run_document

        output.document(run_document(run))
    elif not output.pretty:
        output.line(run.id)
    elif run.duplicate:
        output.line(f"not enqueued: run {run.id} has this dedupe key and is {run.state}")
    else:
        output.line(f"enqueued {run.job_id}: run {run.id}, due {when(run.run_at)}")


def _tell_end(output: Output, run: Run) -> None:
    from mainspring.cli.runs import print_run

    print_run(output, run)
    if run.state != "succeeded":
        raise typer.Exit(FAILED)


async def _enqueue_many(
    choice: StoreChoice, output: Output, job_id: str, name: str, options: dict[str, Any]
) -> None:
    from mainspring.cli.bulk_enqueue import enqueue_lines

    async with open_client(choice, with_code=True) as client:
        await client.get_job(job_id)
        count = await enqueue_lines(client, job_id, name, options, quiet=output.as_json)
    if output.as_json:
        output.document({"job_id": job_id, "enqueued": count})
    else:
        output.line(
            f"enqueued {plural(count, 'run')} of {job_id}"
            if count
            else "the file has no lines: nothing was enqueued"
        )


def _duration(text: str | None, option: str) -> timedelta | None:
    return None if text is None else read_duration(text, option)


def _moment(text: str | None) -> Any:
    if text is None:
        return None
    from mainspring.core.schedules.base import moment

    return moment(text, "UTC", "--at")
