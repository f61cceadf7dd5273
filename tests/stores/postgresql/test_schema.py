from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest

from mainspring.errors import StoreDamaged, StoreError, StoreMissing, StoreTooNew, StoreUnavailable
from mainspring.stores import open_store
from mainspring.stores.postgresql.schema import MIGRATIONS, setup_script
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import JobQuery
from tests.support.postgresql import SharedSchema


async def test_many_clients_open_an_empty_database_at_once(schema: SharedSchema) -> None:
    stores = [open_store(schema.url) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    assert schema.execute("SELECT value FROM $.meta WHERE name = 'version'") == [(len(MIGRATIONS),)]
    await asyncio.gather(*(store.close() for store in stores))


async def test_without_create_nothing_is_made(schema: SharedSchema) -> None:
    with pytest.raises(StoreMissing, match="holds no Mainspring data"):
        await PostgresStore(schema.url).open(create=False)
    assert schema.execute("SELECT to_regnamespace('$')") == [(None,)]


async def test_a_newer_schema_is_refused(schema: SharedSchema) -> None:
    store = PostgresStore(schema.url)
    await store.open()
    await store.close()
    schema.execute("UPDATE $.meta SET value = 99 WHERE name = 'version'")
    with pytest.raises(StoreTooNew, match="newer Mainspring"):
        await store.open()


async def test_a_store_whose_tables_are_dropped_says_so(schema: SharedSchema) -> None:
    store = PostgresStore(schema.url)
    await store.open()
    schema.execute("DROP SCHEMA $ CASCADE")
    with pytest.raises(StoreDamaged, match="no longer has Mainspring's tables"):
        await store.jobs(JobQuery())
    await store.close()


async def test_a_role_that_owns_nothing_uses_what_the_printed_script_made(
    schema: SharedSchema,
) -> None:
    role = f"role_{schema.name}"
    address = urlsplit(schema.server)
    url = f"postgresql://{role}@{address.hostname}:{address.port}{address.path}"
    schema.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(StoreError, match="mainspring store schema"):
            await PostgresStore(f"{url}?schema={schema.name}").open()
        with psycopg.connect(schema.server) as connection:
            connection.execute(setup_script(schema.name).encode())
        schema.execute(f"GRANT USAGE ON SCHEMA $ TO {role}")
        schema.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA $ TO {role}")
        schema.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA $ TO {role}")
        store = PostgresStore(f"{url}?schema={schema.name}")
        await store.open()
        assert (await store.jobs(JobQuery())).items == []
        await store.close()
    finally:
        schema.execute(f"DROP OWNED BY {role}")
        schema.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("postgresql://127.0.0.1:1/app", StoreUnavailable, "cannot be used now"),
        ("{server}/nowhere", StoreError, "does not exist"),
    ],
    ids=["nobody listens", "no such database"],
)
async def test_a_server_that_cannot_be_used(
    url: str, error: type[StoreError], message: str, postgresql_url: str
) -> None:
    server = postgresql_url.rpartition("/")[0]
    with pytest.raises(error, match=message):
        await PostgresStore(url.format(server=server)).open()
