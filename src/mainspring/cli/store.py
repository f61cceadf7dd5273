"""`mainspring store`: schema, copies and re-encrypted secrets of a store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mainspring.cli.command import Call, argument, command, flag
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.output import Output, progress_bar
from mainspring.cli.store_access import LocatedStore, StoreChoice, database_file, find_store
from mainspring.core.plurals import plural
from mainspring.errors import StoreMissing

if TYPE_CHECKING:
    from mainspring.stores.copy import StoreContents
    from mainspring.stores.protocol import Store

group = typer.Typer(help="Copy a store, print its set-up script, re-encrypt its secrets.")


@command(
    group,
    "copy",
    "mainspring store copy sqlite:///mainspring.db mongodb://db.example.org/jobs --dry-run",
    "mainspring store copy sqlite:///mainspring.db mongodb://db.example.org/jobs",
    uses_store=False,
)
async def copy(
    call: Call,
    source: str = argument("The URL of the store to copy.", "FROM"),
    target: str = argument("The URL of an empty store.", "TO"),
    dry_run: bool = flag("--dry-run", "Count what would be copied; write nothing."),
) -> None:
    """Copy all jobs, runs and notes from one store to another.

    Stop all workers first. FROM is only read. If the copy is interrupted, run the same command
    again to complete it.
    """
    from mainspring.stores.copy import copy as copy_all
    from mainspring.stores.copy import read_contents

    output = call.output
    here, there = _find_shared_store(source, "FROM"), _find_shared_store(target, "TO")
    if here.from_anywhere == there.from_anywhere:
        raise CommandError(
            "FROM and TO are the same store", code=BAD_INPUT, advice="name another target"
        )
    try:
        await here.store.open(create=False)
    except StoreMissing as missing:
        raise CommandError(
            f"{here.name} holds no Mainspring data",
            code=BAD_INPUT,
            advice="FROM comes first, then TO",
        ) from missing
    async with _open_store(here.store):
        if dry_run:
            seen = await read_contents(here.store)
            already = await _read_store(there.store)
            _print(output, seen, source=here.name, target=there.name, already=already.total)
            return
        async with _open_store(there.store):
            with progress_bar(quiet=output.as_json) as progress:
                copied = await copy_all(here.store, there.store, progress)
            missing_keys = copied.key_ids - _keep_key(copied.store_key, there.store.info().file)
    document = {
        "from": here.name,
        "to": there.name,
        "jobs": copied.jobs,
        "notes": copied.notes,
        "runs": {str(state): count for state, count in sorted(copied.runs.items())},
        "added": copied.added,
        "existing": copied.existing,
        "corrected": copied.corrected,
        "jobs_with_secrets": copied.secrets,
    }
    output.document(document)
    output.line(f"copied {here.name} to {there.name}")
    output.fields([("jobs", str(copied.jobs)), *_count_fields(copied.runs)])
    if copied.existing:
        output.line(
            f"already in TO: {plural(copied.existing, 'run')}, of which {copied.corrected:,} had"
            " changed in FROM since and were updated"
        )
    output.line("counted on both sides, and equal")
    if missing_keys:
        output.line(
            f"secrets of {plural(copied.secrets, 'job')} are encrypted with the key of {here.name}:"
            f" give every process on {there.name} the same one ({_key_of(source)})"
        )


@command(
    group,
    "schema",
    "mainspring store schema --store postgresql://db.example.org/app > schema.sql",
    "mainspring store schema --store mongodb://db.example.org/jobs > indexes.js",
)
def schema(call: Call) -> None:
    """Print the script that makes the tables of a PostgreSQL store, or the indexes of MongoDB.

    For teams whose programs may not do that themselves. It connects to nothing.
    """
    located = find_store(call.choice)
    script = located.store.info().setup_script
    if script is None:
        raise CommandError(
            f"{located.name} makes what it needs itself: there is no script for it",
            code=BAD_INPUT,
            advice="name a PostgreSQL or MongoDB store: --store postgresql://host/database",
        )
    call.output.document({"script": script})
    call.output.line(script.rstrip("\n"))


@command(group, "reseal", "MAINSPRING_SECRET_KEY=NEW,OLD mainspring store reseal")
async def reseal(call: Call) -> None:
    """Encrypt the secrets of all webhooks again with the newest key.

    Older keys can go then. The keys are those in MAINSPRING_SECRET_KEY (the newest first), in the
    app, in the file next to an embedded database, and the key that a shared store (PostgreSQL,
    MongoDB, object storage) keeps itself where no other was given. If it is interrupted, run it
    again.
    """
    async with call.client(with_code=True) as client:
        count = await client.reseal_secrets()
        key = next(iter(client.webhooks.vault.key_ids), None)
    call.output.document({"jobs": count, "key": key})
    if count:
        call.output.line(f"encrypted the secrets of {plural(count, 'job')} with the key {key}")
    else:
        call.output.line("no secret is encrypted with an older key")


def _keep_key(store_key: str | None, database: Path | None) -> set[str]:
    """Give an embedded store the key that a shared one kept in itself. Returns the ids of the keys
    that the copy has without any variable."""
    from mainspring.webhooks.vault import add_to_key_file, key_file, key_id

    if database is not None:
        return add_to_key_file(key_file(database), store_key)
    return set() if store_key is None else {key_id(store_key)}


def _key_of(source: str) -> str:
    path = database_file(source)
    variable = "MAINSPRING_SECRET_KEY"
    if path is None:
        return variable
    from mainspring.webhooks.vault import key_file

    return f"{variable}, or what is in {key_file(path)}"


def _print(output: Output, seen: StoreContents, *, source: str, target: str, already: int) -> None:
    runs = {str(state): count for state, count in sorted(seen.runs.items())}
    document = {"from": source, "to": target, "jobs": seen.jobs, "runs": runs}
    output.document({**document, "existing": already, "dry_run": True})
    output.line(f"would copy {source} to {target}")
    output.fields([("jobs", str(seen.jobs)), *_count_fields(seen.runs)])
    output.line(
        f"TO holds {plural(already, 'run')}; each is compared when it is copied"
        if already
        else "TO is empty"
    )


def _count_fields(runs: Any) -> list[tuple[str, str | None]]:
    counts = [(f"  {state}", str(runs[state])) for state in sorted(runs) if runs[state]]
    return [("runs", str(sum(runs.values()))), *counts]


def _find_shared_store(url: str, which: str) -> LocatedStore:
    located = find_store(StoreChoice(url, None))
    if not located.store.info().shared:
        raise CommandError(
            f"{which} is memory://, which lives in the process that made it",
            code=BAD_INPUT,
            advice="copy between sqlite:///path, postgresql://host/database,"
            " mongodb://host/database, s3://bucket/prefix and other stores that stay",
        )
    return located


async def _read_store(store: Store) -> StoreContents:
    from mainspring.stores.copy import StoreContents, read_contents

    try:
        async with _open_store(store, create=False):
            return await read_contents(store)
    except StoreMissing:
        return StoreContents()


@contextlib.asynccontextmanager
async def _open_store(store: Store, *, create: bool = True) -> AsyncIterator[None]:
    await store.open(create=create)
    try:
        yield
    finally:
        await store.close()
