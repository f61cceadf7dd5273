"""The store that the settings name: one of its own, or a database of Django."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connections

from mainspring.contrib.django.options import given
from mainspring.stores import DEFAULT_STORE, STORE_OF_ENVIRONMENT, open_store
from mainspring.stores.protocol import Store, StoreInfo, Transaction

_OF_DJANGO = ("assume_role", "isolation_level", "pool", "server_side_binding")
"""OPTIONS of a PostgreSQL database that Django reads itself; libpq gets the others."""


class ProjectStore:
    """The store of the settings. It is looked up each time it is opened: tests give a database
    another name, and override settings."""

    def __init__(self) -> None:
        self._store: Store | None = None

    async def open(self, *, create: bool = True) -> None:
        if self._store is None:
            self._store = _make_store()
        await self._store.open(create=create)

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    def info(self) -> StoreInfo:
        return self._current().info()

    def transaction(self, *arguments: Any, **options: Any) -> Transaction:
        return self._current().transaction(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        """All other methods. They are async, and may be called before the store is open."""

        async def call(*arguments: Any, **options: Any) -> Any:
            return await getattr(self._current(), name)(*arguments, **options)

        return call

    def _current(self) -> Store:
        return _make_store() if self._store is None else self._store


def _make_store() -> Store:
    store = store_of_settings()
    return open_store(store) if isinstance(store, str) else store


def store_of_settings() -> str | Store:
    """The URL of the store that the settings name, or the store itself."""
    options = given()
    if "DATABASE" in options:
        return database_url(options["DATABASE"])
    store: str | Store = options.get("STORE", STORE_OF_ENVIRONMENT)
    if store == STORE_OF_ENVIRONMENT:
        return os.environ.get("MAINSPRING_STORE") or DEFAULT_STORE
    return store


def database_alias() -> str | None:
    """The database of Django whose transactions an enqueue can join."""
    alias: str | None = given().get("DATABASE")
    return None if alias is None or database_url(alias) == "memory://" else alias


def database_url(alias: str) -> str:
    """The URL of a store in a database of Django. A test database in memory becomes a store in
    memory: the store's threads could not share it."""
    database = connections.settings[alias]
    name = database["NAME"]
    if connections[alias].vendor == "sqlite":
        in_memory = not isinstance(name, Path) and (name == ":memory:" or "mode=memory" in name)
        return "memory://" if in_memory else f"sqlite:///{os.path.abspath(name)}"
    options = {key: value for key, value in database["OPTIONS"].items() if key not in _OF_DJANGO}
    place = {"host": database["HOST"], "port": database["PORT"], "dbname": name}
    options |= {key: value for key, value in place.items() if value}
    login = ":".join(quote(database[key], safe="") for key in ("USER", "PASSWORD") if database[key])
    return f"postgresql://{login}{'@' if login else ''}?{urlencode(options, quote_via=quote)}"
