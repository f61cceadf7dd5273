"""Finds the store that a command uses, by its options, the environment and `.env`, and opens a
client of it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.cli.app_loader import load_scheduler
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.errors import JobNotFound, MainspringError, StoreMissing
from mainspring.stores.url import without_password

if TYPE_CHECKING:
    from mainspring.scheduler import Client, Scheduler
    from mainspring.stores.protocol import Store

log = logging.getLogger("mainspring")


DEFAULT_STORE = "sqlite:///mainspring.db"
MOST_COMPARED = 1000
"""Jobs among which one of a similar id is searched."""

_WHO_CREATES = (
    "`mainspring worker app:scheduler` or `mainspring serve` makes it when it starts;"
    " --store or MAINSPRING_STORE names another one"
)


ENV_FILE = ".env"


def read_env_file() -> None:
    """Put MAINSPRING_… and MONGODB_URI of the file into the environment, where the commands, an
    app's own scheduler and child processes find them, unless they are set. (The service itself
    reads its own variables, such as PORT.)"""
    if not os.path.isfile(ENV_FILE):
        return
    from dotenv import dotenv_values

    try:
        variables = dotenv_values(ENV_FILE)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{os.path.abspath(ENV_FILE)} cannot be read: {error}",
            code=BAD_INPUT,
            advice="it must be UTF-8 text with NAME=value lines; use another folder if the file"
            " is for another program",
        ) from error
    for name, value in variables.items():
        known = name.upper()  # the service ignores case too
        if value and (known.startswith("MAINSPRING_") or known == "MONGODB_URI"):
            os.environ.setdefault(known, value)


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The store that a command uses: one by its URL, or that of an app's scheduler."""

    url: str | None
    app: str | None

    @classmethod
    def of(cls, store: str | None, app: str | None) -> StoreChoice:
        """The options come first, then the environment with `.env`, then the default."""
        for option, given in (("--store", store), ("--app", app)):
            if given == "":  # as from a variable that is not set: the default would be another one
                raise CommandError(f"{option} is empty", code=BAD_INPUT)
        if store and app:
            raise CommandError("give --store or --app, not both", code=BAD_INPUT)
        if store or app:
            return cls(store, app)
        if named := os.environ.get("MAINSPRING_APP"):
            return cls(None, named)
        named = os.environ.get("MAINSPRING_STORE") or os.environ.get("MONGODB_URI")
        return cls(named or DEFAULT_STORE, None)


@dataclass(frozen=True, slots=True)
class LocatedStore:
    """A store that is not opened yet, and its URL where it has one."""

    store: Store
    url: str | None

    @property
    def name(self) -> str:
        """The store's URL without a password, or the name of its class."""
        return type(self.store).__name__ if self.url is None else without_password(self.url)

    @property
    def from_anywhere(self) -> str | None:
        """The URL with an absolute path, which is right in every folder, without a password."""
        path = database_file(self.url or "")
        return f"sqlite:///{path}" if path is not None else self.url and self.name


@asynccontextmanager
async def open_client(choice: StoreChoice, *, with_code: bool = False) -> AsyncIterator[Client]:
    """A client of the chosen store, open inside the block.

    `with_code`: where an app is named, its own scheduler without workers, which checks arguments
    and stores the app's jobs first, as in any program that enqueues. Otherwise only the app's
    store is used: a command that reads jobs must not change them.
    """
    from mainspring.scheduler import Client

    client: Client
    if choice.app is None or not with_code:
        store = existing_store(choice)
        await open_existing(store)  # the client finds it open
        client = Client(store, inline=True, wait_for_store=0)
    else:
        client = load_scheduler(choice.app).configure(workers=0, wait_for_store=0)
        check_exists(LocatedStore(client.store, client.url))
    async with client:
        try:
            yield client
        except JobNotFound as unknown:
            raise await _with_similar_id(client, unknown) from unknown


async def _with_similar_id(client: Client, unknown: JobNotFound) -> JobNotFound:
    """The error with a stored job of a similar id, if there is one."""
    with contextlib.suppress(MainspringError):
        page = await client.list_jobs(limit=MOST_COMPARED, last_runs=False)
        return JobNotFound(unknown.job_id, [job.id for job in page.items])
    return unknown


async def open_existing(store: Store) -> None:
    """Open a store that a command uses and must not make: a wrong URL would look like an empty
    store."""
    try:
        await store.open(create=False)
    except StoreMissing as missing:
        raise CommandError(str(missing), code=BAD_INPUT, advice=_WHO_CREATES) from None


def existing_store(choice: StoreChoice) -> Store:
    """The chosen store. A database file that does not exist is an error: it is not created."""
    located = find_store(choice)
    check_exists(located)
    return located.store


def find_store(choice: StoreChoice) -> LocatedStore:
    from mainspring.stores import open_store

    if choice.app is not None:
        scheduler = load_scheduler(choice.app)
        return LocatedStore(scheduler.store, scheduler.url)
    assert choice.url is not None
    return LocatedStore(open_store(choice.url), choice.url)


def check_exists(located: LocatedStore) -> None:
    check_shared(located)
    path = database_file(located.url or "")
    if path is not None and not path.exists():
        raise CommandError(
            f"there is no database {path}",
            code=BAD_INPUT,
            advice=_WHO_CREATES,
        )


def check_shared(located: LocatedStore) -> None:
    if not located.store.info().shared:
        raise CommandError(
            "memory:// exists only in the process that made it, so this command cannot open it",
            code=BAD_INPUT,
            advice="name another store with --store, such as sqlite:///mainspring.db",
        )


def database_file(url: str) -> Path | None:
    scheme, _, rest = url.partition("://")
    return Path(rest[1:]).absolute() if scheme == "sqlite" and len(rest) > 1 else None


def warn_of_other_store(scheduler: Scheduler, app: str) -> None:
    """Warn if the environment names another store than the code: commands without --store would
    look there, and find none of the jobs that this process runs."""
    named = os.environ.get("MAINSPRING_STORE") or ""
    store = LocatedStore(scheduler.store, scheduler.url)
    other = LocatedStore(scheduler.store, named)
    if named and other.from_anywhere != store.from_anywhere:
        log.warning(
            "%s uses the store %s, as its code says, and MAINSPRING_STORE names %s, which is not"
            " used here. Make them the same, or write Scheduler() without a store, which uses"
            " MAINSPRING_STORE",
            app,
            store.name,
            other.name,
        )
