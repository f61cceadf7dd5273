"""Makes the store that a URL names: `open_store("sqlite:///jobs.db")`."""

from __future__ import annotations

from pathlib import PurePath

from mainspring.core.clock import Clock
from mainspring.errors import InvalidInput, install_advice
from mainspring.stores.protocol import Store
from mainspring.stores.url import without_password

DEFAULT_STORE = "sqlite:///mainspring.db"

STORE_OF_ENVIRONMENT = "$MAINSPRING_STORE"
"""Stands for the URL in that variable of the environment; `DEFAULT_STORE` where it is not set."""

_KNOWN = (
    "sqlite:///path (sqlite:////absolute/path), postgresql://host/database, mongodb://host/database,"
    " s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///absolute/directory and memory://"
)


_OTHER_SCHEMES = {
    "gcs": "gs",
    "google": "gs",
    "azure": "az",
    "abfs": "az",
    "mongo": "mongodb",
    "postgresql+psycopg": "postgresql",
    "postgresql+asyncpg": "postgresql",
}


def open_store(url: object, clock: Clock | None = None) -> Store:
    """Make the store that a URL names. It is not open yet: `await store.open()` opens it."""
    if not isinstance(url, str):
        advice = f" (did you mean sqlite:///{url}?)" if isinstance(url, PurePath) else ""
        raise InvalidInput(
            f"a store is named by a URL, not {url!r}{advice}; supported are {_KNOWN}", field="store"
        )
    scheme, separator, rest = url.partition("://")
    if not separator:
        file = url.removeprefix("sqlite:")
        is_file = file != url or url.lower().endswith((".db", ".sqlite", ".sqlite3"))
        advice = f" (did you mean sqlite:///{file or 'jobs.db'}?)" if is_file else ""
        raise InvalidInput(
            f"a store is named by a URL, not {without_password(url)!r}{advice}; supported are"
            f" {_KNOWN}"
        )
    if scheme == "memory":
        from mainspring.stores.memory import MemoryStore

        return MemoryStore(clock)
    if scheme == "sqlite":
        from mainspring.stores.sqlite import SqliteStore

        if not rest.startswith("/") or len(rest) < 2:
            raise InvalidInput(
                f"{url!r} names no file; write sqlite:///{rest.strip('/') or 'jobs.db'}"
            )
        file, question_mark, _ = rest.partition("?")
        if question_mark:
            raise InvalidInput(
                f"{url!r} has options behind its '?', and a SQLite store takes none; write"
                f" sqlite://{file}"
            )
        return SqliteStore(rest[1:], clock)
    if scheme in ("mongodb", "mongodb+srv"):
        try:
            from mainspring.stores.mongodb import MongoStore
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"{scheme}:// needs the driver ({error}): {install_advice('mongodb')}"
            ) from error
        return MongoStore(url)  # its servers have their own clocks
    if scheme in ("postgresql", "postgres"):
        try:
            from mainspring.stores.postgresql import PostgresStore
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"{scheme}:// needs the driver ({error}): {install_advice('postgresql')}"
            ) from error
        return PostgresStore(url)  # its server has its own clock
    if scheme in ("s3", "gs", "az", "file"):
        from mainspring.stores.objects.store import ObjectStore, make_bucket

        return ObjectStore(make_bucket(url, clock))
    lower = scheme.lower()
    meant = _OTHER_SCHEMES.get(lower, lower)
    advice = f" (did you mean {meant}://?)" if f"{meant}://" in _KNOWN and meant != scheme else ""
    raise InvalidInput(f"there is no store for {scheme}://{advice}; supported are {_KNOWN}")
