"""`mainspring keys`: creates, lists and revokes the API keys of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import (
    AppOption,
    JsonOption,
    StoreOption,
    example,
    read_duration,
    run_coroutine,
)
from mainspring.cli.output import Column, Output, when
from mainspring.cli.store_access import StoreChoice, check_shared, find_store, open_existing
from mainspring.cli.time_format import seconds
from mainspring.errors import NotFound

if TYPE_CHECKING:
    from mainspring.service.api_keys import ApiKeys, Key

__all__ = ["group"]

group = typer.Typer(
    help="Create, list and revoke API keys of the HTTP service.", no_args_is_help=False
)


@group.callback()
def keys() -> None:
    """Create, list and revoke API keys of the HTTP service."""


@group.command("create", epilog=example("mainspring keys create ci --scope write --expires 90d"))
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the key is for; it is shown in the list.")
    ],
    scope: Annotated[
        str,
        typer.Option(
            "--scope", help="read, write (includes read) or admin (includes both, and keys)."
        ),
    ] = "read",
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="DURATION",
            help="How long it is valid, as in 90d. Default: for ever.",
        ),
    ] = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Create a key and print it. It cannot be shown again: only its hash is stored."""
    span = None if expires is None else read_duration(expires, "--expires")

    async def work() -> tuple[Key, str]:
        async with _keys(StoreChoice.of(store, app)) as found:
            return await found.create(name, scope, span)

    key, text = run_coroutine(work())
    output = Output(as_json=json)
    if json:
        output.document({**key.to_dict(key.created_at), "key": text})
        return
    output.line(text)
    output.note(f"{key.scope} key {key.id} ({key.name}). Keep it safe: it is not shown again.")


@group.command("list", epilog=example("mainspring keys list"))
def list_keys(store: StoreOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """List the ids, names and scopes of keys. The keys themselves are never shown."""

    async def work() -> tuple[list[Key], datetime]:
        async with _keys(StoreChoice.of(store, app), create=False) as found:
            return await found.list(), await found.now()

    found, now = run_coroutine(work())
    output = Output(as_json=json)
    if json:
        output.document({"items": [key.to_dict(now) for key in found]})
        return
    if not found:
        output.note("no keys yet: mainspring keys create NAME --scope admin")
        return
    output.table(
        [
            Column("id", lambda key: key.id, whole=True),
            Column("name", lambda key: key.name),
            Column("scope", lambda key: key.scope),
            Column("state", lambda key: key.state(now), state=True),
            Column("expires", lambda k: seconds(k.expires_at), lambda k: when(k.expires_at)),
        ],
        found,
    )


@group.command("revoke", epilog=example("mainspring keys revoke 3f9a1c22b07e"))
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, from keys list.")],
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a key. Running services refuse it within seconds."""

    async def work() -> tuple[Key, datetime]:
        async with _keys(StoreChoice.of(store, app), create=False) as found:
            try:
                return await found.revoke(key), await found.now()
            except NotFound as error:
                named = [one.id for one in await found.list() if one.name == key]
                advice = (
                    f"revoke takes the id of a key: {' or '.join(named)} is named {key!r}"
                    if named
                    else "`mainspring keys list` lists the keys"
                )
                raise CommandError(str(error), code=BAD_INPUT, advice=advice) from None

    found, now = run_coroutine(work())
    output = Output(as_json=json)
    if json:
        output.document(found.to_dict(now))
    else:
        output.line(f"key {found.id} ({found.name}) is revoked")


@asynccontextmanager
async def _keys(choice: StoreChoice, *, create: bool = True) -> AsyncIterator[ApiKeys]:
    """The keys of the store that `serve` would use: the first key is made before it starts, and
    the store with it. With `create=False` a store that is not there is an error."""
    from mainspring.scheduler import Client
    from mainspring.service import require_server

    require_server()
    from mainspring.service.api_keys import ApiKeys

    found = find_store(choice)
    check_shared(found)
    if not create:
        await open_existing(found.store)
    async with Client(found.store, inline=True) as client:
        yield ApiKeys(client)
