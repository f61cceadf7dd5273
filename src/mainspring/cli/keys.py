"""`mainspring keys`: creates, lists and revokes the API keys of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from mainspring.cli.command import Call, argument, command, duration_option, option
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.output import Column, iso_seconds, when
from mainspring.cli.store_access import StoreChoice, check_shared, find_store, open_existing
from mainspring.errors import NotFound

if TYPE_CHECKING:
    from mainspring.service.api_keys import ApiKeys, Key

group = typer.Typer(
    help="Create, list and revoke API keys of the HTTP service.", no_args_is_help=False
)


@command(group, "create", "mainspring keys create ci --scope write --expires 90d")
async def create(
    call: Call,
    name: str = argument("What the key is for; it is shown in the list.", "NAME"),
    scope: str = option(
        "read, write (includes read) or admin (includes both, and keys).",
        "SCOPE",
        default="read",
    ),
    expires: timedelta | None = duration_option(
        "How long it is valid, as in 90d. Default: for ever."
    ),
) -> None:
    """Create a key and print it. It cannot be shown again: only its hash is stored."""
    async with _keys(call.choice) as keys:
        key, text = await keys.create(name, scope, expires)
    call.output.document({**key.to_dict(key.created_at), "key": text})
    call.output.line(text)
    call.output.note(f"{key.scope} key {key.id} ({key.name}). Keep it safe: it is not shown again.")


@command(group, "list", "mainspring keys list")
async def list_(call: Call) -> None:
    """List the ids, names and scopes of keys. The keys themselves are never shown."""
    async with _keys(call.choice, create=False) as keys:
        listed, now = await keys.list(), await keys.now()
    call.output.document({"items": [key.to_dict(now) for key in listed]})
    if not listed:
        call.output.note("no keys yet: mainspring keys create NAME --scope admin")
        return
    columns: list[Column[Key]] = [
        Column("id", lambda key: key.id, whole=True),
        Column("name", lambda key: key.name),
        Column("scope", lambda key: key.scope),
        Column("state", lambda key: key.state(now), state=True),
        Column("expires", lambda k: iso_seconds(k.expires_at), lambda k: when(k.expires_at)),
    ]
    call.output.table(columns, listed)


@command(group, "revoke", "mainspring keys revoke 3f9a1c22b07e")
async def revoke(
    call: Call,
    key: str = argument("The key's id, from keys list.", "ID"),
) -> None:
    """Revoke a key. Running services refuse it within seconds."""
    async with _keys(call.choice, create=False) as keys:
        try:
            revoked, now = await keys.revoke(key), await keys.now()
        except NotFound as error:
            advice = "revoke takes the id of a key: `mainspring keys list` lists them"
            raise CommandError(str(error), code=BAD_INPUT, advice=advice) from None
    call.output.document(revoked.to_dict(now))
    call.output.line(f"key {revoked.id} ({revoked.name}) is revoked")


@asynccontextmanager
async def _keys(choice: StoreChoice, *, create: bool = True) -> AsyncIterator[ApiKeys]:
    """The keys of the store that `serve` would use: the first key is made before it starts, and
    the store with it. With `create=False` a store that is not there is an error."""
    from mainspring.scheduler import Client
    from mainspring.service import require_server

    require_server()
    from mainspring.service.api_keys import ApiKeys

    located = find_store(choice)
    check_shared(located)
    if not create:
        await open_existing(located.store)
    async with Client(located.store, inline=True) as client:
        yield ApiKeys(client)
