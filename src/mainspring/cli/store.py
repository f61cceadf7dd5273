"""`mainspring store`: what concerns the store itself."""

from __future__ import annotations

import typer

from mainspring.cli.connect import find_store
from mainspring.cli.failures import BAD_INPUT, CommandError
from mainspring.cli.options import AppOption, JsonOption, StoreOption, Where, example
from mainspring.cli.output import Output

__all__ = ["group"]

group = typer.Typer(help="The store itself.", no_args_is_help=False)


@group.callback()
def store() -> None:
    """The store itself."""


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
    """Print the script that makes a MongoDB store's collections and indexes by hand."""
    found = find_store(Where.of(store, app))
    script = getattr(found.store, "index_script", None)
    if script is None:
        raise CommandError(
            f"{found.name} makes its indexes itself: there is no script for it",
            code=BAD_INPUT,
            advice="name a MongoDB store: --store mongodb://host/database",
        )
    output = Output(as_json=json)
    if json:
        output.document({"script": script()})
    else:
        output.line(script().rstrip("\n"))
