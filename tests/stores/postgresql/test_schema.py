from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest

from mainspring import RunContext, Scheduler
from mainspring.errors import StoreDamaged, StoreError, StoreMissing, StoreTooNew, StoreUnavailable
from mainspring.stores import open_store
from mainspring.stores.postgresql.schema import MIGRATIONS, setup_script
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import JobQuery
from tests.support.postgresql import SharedSchema
from tests.support.servers.postgresql import Postgres


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
        ("postgresql://127.0.0.1:1/app", StoreUnavailable, "refused.*host and the port"),
        ("postgresql://no.such.host.invalid/app", StoreUnavailable, "resolve host.*host and the"),
        ("{server}/nowhere", StoreError, "does not exist.*name another database"),
        ("postgresql://nobody@{address}/postgres", StoreError, "role .nobody.*PGPASSWORD"),
        ("{server}/postgres?sslmode=require", StoreError, "SSL was required.*sslmode"),
        ("{server}/postgres?sslmode=maybe", StoreError, "invalid sslmode value"),
        ("{server}/postgres?pool=3", StoreError, 'parameter: "pool".*options are schema'),
    ],
    ids=["nobody listens", "no host", "no database", "no role", "TLS", "sslmode", "option"],
)
async def test_a_server_that_cannot_be_used(
    url: str, error: type[StoreError], message: str, postgresql_url: str
) -> None:
    server = postgresql_url.rpartition("/")[0]
    with pytest.raises(StoreError, match=message) as raised:
        await PostgresStore(url.format(server=server, address=server.rpartition("@")[2])).open()
    assert type(raised.value) is error


async def test_an_older_server_is_named(
    schema: SharedSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.stores.postgresql.schema.OLDEST_SERVER", 990000)
    with pytest.raises(StoreError, match=r"is PostgreSQL \d+, and Mainspring needs 99 or later"):
        await PostgresStore(schema.url).open()


@pytest.mark.thorough
async def test_a_standby_is_named() -> None:
    with Postgres() as primary:
        standby = primary.standby()
        try:
            store = PostgresStore(standby.url)
            with pytest.raises(StoreUnavailable, match="standby: name the primary"):
                await store.open()
        finally:
            standby.stop()


async def test_two_versions_work_on_one_database(
    schema: SharedSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one adds a column and an index under the older one, which works on until it is
    started again."""
    done: list[str] = []
    schedulers: dict[str, Scheduler] = {}

    async def work(ctx: RunContext) -> None:
        done.append(ctx.run_id)

    for name in ("older", "newer"):
        scheduler = schedulers[name] = Scheduler(schema.url, poll="100ms")
        scheduler.job(id="work")(work)
    older, newer = schedulers["older"], schedulers["newer"]
    async with older:
        for _ in range(10):  # statements are prepared by now
            await older.wait((await older.enqueue("work")).id, 30)
        step = (
            "ALTER TABLE mainspring.runs ADD colour text; CREATE INDEX ON mainspring.runs (colour);"
        )
        monkeypatch.setattr("mainspring.stores.postgresql.schema.MIGRATIONS", [*MIGRATIONS, step])
        async with newer:
            for scheduler in (older, newer) * 5:
                run = await scheduler.enqueue("work")
                assert (await scheduler.wait(run.id, 30)).attempt == 1
        monkeypatch.undo()
        run = await older.enqueue("work")
        assert (await older.wait(run.id, 30)).attempt == 1
    assert len(done) == len(set(done)) == 21
    with pytest.raises(StoreTooNew, match="newer Mainspring"):
        await PostgresStore(schema.url).open()
