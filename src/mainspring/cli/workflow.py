"""`mainspring workflow` draws the workflow of a job or a run; `mainspring chain` enqueues one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mainspring.cli import completion
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import AppOption, JsonOption, StoreOption, example, run_coroutine
from mainspring.cli.output import Output
from mainspring.cli.payload import read_payload
from mainspring.cli.store_access import StoreChoice, open_client

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(
        "workflow",
        epilog=example(
            "mainspring workflow extract", "mainspring workflow report@20260301T090000Z"
        ),
    )(workflow)
    app.command(
        "chain",
        epilog=example(
            "mainspring chain extract load report",
            'mainspring chain extract \'load={"table": "orders"}\' --after-failure run',
        ),
    )(chain)


def workflow(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB|RUN",
            help="The id of a job or of a run.",
            autocompletion=completion.job_ids,
        ),
    ],
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Draw the workflow of a job or a run, with the state of each run."""
    run_coroutine(_workflow(StoreChoice.of(store, app), Output(as_json=json), name))


async def _workflow(choice: StoreChoice, output: Output, name: str) -> None:
    async with open_client(choice) as client:
        found = await client.workflow(name)
    if output.as_json:
        output.document(found.to_dict())
        return
    for line in found.text().splitlines():
        output.line(line)
    if not found.complete:
        output.line("There may be more runs: only the newest 10,000 were searched.")


def chain(
    links: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB[=PAYLOAD]",
            help="Jobs in order; JSON after = is the payload of that run.",
            autocompletion=completion.job_ids,
        ),
    ],
    after_failure: Annotated[
        str | None,
        typer.Option(
            "--after-failure",
            metavar="skip|run",
            help="What becomes of a run if the one before it did not succeed. Default: what its"
            " job says.",
        ),
    ] = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Queue a run of each job, each after the one before it. All are queued, or none."""
    if after_failure not in (None, "skip", "run"):
        raise CommandError(f"--after-failure is skip or run, not {after_failure!r}", code=BAD_INPUT)
    pairs = [_link(text) for text in links]
    run_coroutine(_chain(StoreChoice.of(store, app), Output(as_json=json), pairs, after_failure))


def _link(text: str) -> tuple[str, Any]:
    name, equals, payload = text.partition("=")
    return name, read_payload(payload, f"the payload of {name}") if equals else None


async def _chain(
    choice: StoreChoice, output: Output, links: list[tuple[str, Any]], after_failure: Any
) -> None:
    from mainspring.cli.json_output import run_document

    async with open_client(choice, with_code=True) as client:
        runs = await client.chain(*links, after_failure=after_failure)
    if output.as_json:
        output.document([run_document(run) for run in runs])
    elif not output.pretty:
        for run in runs:
            output.line(run.id)
    else:
        output.line(f"enqueued {' → '.join(run.job_id for run in runs)}")
        output.line(f"`mainspring workflow {runs[0].id}` shows how far it is")
