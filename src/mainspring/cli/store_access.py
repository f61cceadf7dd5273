"""From a URL or an app to a store that can be asked. Nothing here ever starts a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import Where

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler
    from mainspring.stores.protocol import Store

__all__ = [
    "Found",
    "check_exists",
    "check_shared",
    "database_file",
    "existing_store",
    "find_store",
    "producer",
]


@dataclass(frozen=True, slots=True)
class Found:
    """A store that is not opened yet, and its URL where it has one."""

    store: Store
    url: str | None

    @property
    def name(self) -> str:
        """The store in words, without a password."""
        from mainspring.stores.url_redaction import without_password

        return type(self.store).__name__ if self.url is None else without_password(self.url)

    @property
    def from_anywhere(self) -> str | None:
        """The URL as it is right in every folder, without a password."""
        path = database_file(self.url or "")
        return f"sqlite:///{path}" if path is not None else self.url and self.name


@asynccontextmanager
async def producer(where: Where, *, with_code: bool = False) -> AsyncIterator[Scheduler]:
    """A started scheduler that works on nothing.

    `with_code`: where an app is named, its own scheduler, so that arguments are checked and its
    jobs are stored, as in any program that enqueues. Otherwise only its store is taken: looking
    at jobs must not change them.
    """
    from mainspring.scheduler import Scheduler

    if where.app is None or not with_code:
        scheduler = Scheduler(existing_store(where), workers=0, inline=True, wait_for_store=0)
    else:
        scheduler = _loaded(where.app).configure(workers=0, wait_for_store=0)
        check_exists(Found(scheduler.store, scheduler.url))
    async with scheduler:
        yield scheduler


def existing_store(where: Where) -> Store:
    """The store that is meant. A database file that is not there is an error, and not made."""
    found = find_store(where)
    check_exists(found)
    return found.store


def find_store(where: Where) -> Found:
    from mainspring.stores import open_store

    if where.app is not None:
        scheduler = _loaded(where.app)
        return Found(scheduler.store, scheduler.url)
    assert where.url is not None
    return Found(open_store(where.url), where.url)


def check_exists(found: Found) -> None:
    check_shared(found)
    path = database_file(found.url or "")
    if path is not None and not path.exists():
        raise CommandError(
            f"there is no database {path}",
            code=BAD_INPUT,
            advice="a worker makes it when it first starts (mainspring worker app:scheduler);"
            " --store or MAINSPRING_STORE names another",
        )


def check_shared(found: Found) -> None:
    if not found.store.info().shared:
        raise CommandError(
            "a memory:// store lives in the process that made it: no command can reach it",
            code=BAD_INPUT,
            advice="name a shared one with --store, such as sqlite:///mainspring.db",
        )


def database_file(url: str) -> Path | None:
    scheme, _, rest = url.partition("://")
    return Path(rest[1:]).absolute() if scheme == "sqlite" and len(rest) > 1 else None


def _loaded(spec: str) -> Scheduler:
    from mainspring.cli.app_loader import load_scheduler

    return load_scheduler(spec)
