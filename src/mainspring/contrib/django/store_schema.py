"""Makes the store's tables in a database of Django, within Django's migrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainspring.contrib.django.project_store import database_alias

LATEST = {"postgresql": 3, "sqlite": 1}
"""The versions of the store's schema that the newest migration of this app makes. A later version
needs another migration that calls `make_store_tables`."""


def make_store_tables(apps: Any, schema_editor: Any) -> None:
    """Make the tables, or bring them to this version, if the store lies in this database."""
    connection = schema_editor.connection
    if connection.alias != database_alias():
        return
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            from mainspring.stores.postgresql import schema as postgresql
            from mainspring.stores.postgresql.url import DEFAULT_SCHEMA

            cursor.execute(postgresql.LOCK, [f"mainspring {DEFAULT_SCHEMA}"])
            cursor.execute("SELECT to_regclass('mainspring.meta') IS NOT NULL")
            version = 0
            if cursor.fetchone()[0]:
                cursor.execute("SELECT value FROM mainspring.meta WHERE name = 'version'")
                version = cursor.fetchone()[0]
            cursor.execute(postgresql.setup_script(DEFAULT_SCHEMA, version))
        else:
            from mainspring.stores.sqlite.schema import apply_migrations

            apply_migrations(connection.connection, Path(connection.settings_dict["NAME"]))
