"""`mainspring store`: indexes, copies and re-encrypted secrets of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import AppOption, JsonOption, StoreOption, example, run_coroutine
from mainspring.cli.output import Output
from mainspring.cli.store_access import StoreChoice, find_store, open_client
from mainspring.cli.store_copy import copy_stores

__all__ = ["group"]

group = typer.Typer(
    help="Copy a store, print its set-up script, re-encrypt its secrets.", no_args_is_help=False
)


@group.callback()
def store() -> None:
    """Copy a store, print its set-up script, re-encrypt its secrets."""


@group.command(
    "copy",
    epilog=example(
        "mainspring store copy sqlite:///mainspring.db mongodb://db.example.org/jobs --dry-run",
        "mainspring store copy sqlite:///mainspring.db mongodb://db.example.org/jobs",
    ),
)
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of the store to copy.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of an empty store.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be copied; write nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Copy all jobs, runs and notes from one store to another.

    Stop all workers first. FROM is only read. If the copy is interrupted, run the same command
    again to complete it.
    """
    run_coroutine(copy_stores(source, target, Output(as_json=json), dry_run=dry_run))


@group.command(
    "indexes",
    epilog=example(
        "mainspring store indexes --store mongodb://db.example.org/jobs > indexes.js",
        "mongosh mongodb://db.example.org indexes.js",
    ),
)
def indexes(
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Print the script that makes the indexes of a MongoDB store."""
    found = find_store(StoreChoice.of(store, app))
    script = found.store.info().setup_script
    if script is None:
        raise CommandError(
            f"{found.name} makes its indexes itself: there is no script for it",
            code=BAD_INPUT,
            advice="name a MongoDB store: --store mongodb://host/database",
        )
    output = Output(as_json=json)
    if json:
        output.document({"script": script})
    else:
        output.line(script.rstrip("\n"))


@group.command(
    "reseal",
    epilog=example("MAINSPRING_SECRET_KEY=NEW,OLD mainspring store reseal"),
)
def reseal(
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Encrypt the secrets of all webhooks again with the newest key.

    Older keys can go then. The keys are those in MAINSPRING_SECRET_KEY (the newest first), in the
    app, and in the file beside an embedded database. If it is interrupted, run it again.
    """
    jobs, key = run_coroutine(_resealed(StoreChoice.of(store, app)))
    output = Output(as_json=json)
    if json:
        output.document({"jobs": jobs, "key": key})
    elif jobs:
        output.line(f"encrypted the secrets of {jobs} job{'s' * (jobs != 1)} with the key {key}")
    else:
        output.line("no secret is encrypted with an older key")


async def _resealed(choice: StoreChoice) -> tuple[int, str | None]:
    async with open_client(choice, with_code=True) as client:
        jobs = await client.reseal_secrets()
        return jobs, next(iter(client.webhooks.vault.key_ids), None)
