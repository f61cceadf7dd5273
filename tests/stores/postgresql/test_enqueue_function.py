"""`mainspring.enqueue(…)` from plain SQL, on the newest PostgreSQL and the oldest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from mainspring import Client, Scheduler, State
from mainspring.core import transitions
from mainspring.stores.protocol import Claim
from tests.support.postgresql import SharedSchema, shared_schema


@pytest.fixture(params=["postgresql_url", "oldest_postgresql_url"])
def schema(request: pytest.FixtureRequest) -> Iterator[SharedSchema]:
    with shared_schema(request.getfixturevalue(request.param)) as made:
        yield made


@pytest.fixture
async def client(schema: SharedSchema) -> AsyncIterator[Scheduler]:
    """A scheduler that does no work: it has the job `ship`."""
    scheduler = Scheduler(schema.url, workers=0)

    @scheduler.job(priority=7, queue="parcels", start_deadline="5m")
    async def ship(order: int = 0) -> None: ...

    async with scheduler:
        yield scheduler


def call(schema: SharedSchema, arguments: str, *parameters: Any) -> tuple[str, bool]:
    [(run_id, duplicate)] = schema.execute(
        f"SELECT run_id, duplicate FROM $.enqueue({arguments})", list(parameters)
    )
    return run_id, duplicate


async def test_a_run_has_what_its_job_says(client: Client, schema: SharedSchema) -> None:
    before = datetime.now(UTC)
    run_id, duplicate = call(schema, "'ship', '{\"order\": 4711}'")
    run = await client.get_run(run_id)
    assert (duplicate, run.state, run.payload) == (False, State.PENDING, {"order": 4711})
    assert (run.job_id, run.handler, run.queue, run.priority) == ("ship", "ship", "parcels", 7)
    assert before <= run.created_at == run.run_at == run.scheduled_at <= datetime.now(UTC)
    assert run.start_by == run.run_at + timedelta(minutes=5)
    same = await client.enqueue("ship", {"order": 4711})
    for field in type(run).__struct_fields__:
        if field not in ("id", "created_at", "run_at", "scheduled_at", "start_by"):
            assert getattr(run, field) == getattr(same, field), field
    assert len(run.id) == len(same.id)


async def test_every_option(client: Client, schema: SharedSchema) -> None:
    run_id, _ = call(
        schema,
        "'ship', '[1, \"é\"]', delay => '1 hour', priority => 9, queue => 'other',"
        " dedupe_key => %s, dedupe_for => '1 day'",
        "k \x10 %",
    )
    run = await client.get_run(run_id)
    assert (run.payload, run.priority, run.queue) == ([1, "é"], 9, "other")
    assert (run.dedupe_key, run.dedupe_until) == ("k \x10 %", run.created_at + timedelta(days=1))
    assert run.run_at == run.created_at + timedelta(hours=1)
    again = await client.enqueue("ship", dedupe_key="k \x10 %")
    assert (again.id, again.duplicate) == (run_id, True)
    at = datetime(2040, 1, 2, tzinfo=UTC)
    run_id, _ = call(schema, "'ship', at => %s", at)
    assert (await client.get_run(run_id)).run_at == at
    run_id, _ = call(schema, "'ship', 'null'")
    assert (await client.get_run(run_id)).payload is None


async def test_a_worker_runs_it(schema: SharedSchema) -> None:
    scheduler = Scheduler(schema.url)

    @scheduler.job
    async def double(n: int) -> int:
        return 2 * n

    async with scheduler:
        run_id, _ = call(schema, "'double', '{\"n\": 21}'")
        assert (await scheduler.wait(run_id, 30)).result == 42


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'shop'", "there is no job 'shop'"),
        ("NULL", "there is no job NULL"),
        ("'ship', to_jsonb(repeat('x', 262143))", "the payload is 262145 bytes of JSON"),
        ("'ship', delay => '1s', at => now()", "give delay or at, not both"),
        ("'ship', delay => '-1s'", "cannot be negative"),
        ("'ship', dedupe_key => 'k', dedupe_for => '-1s'", "cannot be negative"),
        ("'ship', at => 'infinity'", "outside the calendar"),
        ("'ship', at => '10000-01-01'", "outside the calendar"),
        ("'ship', delay => '9000 years'", "outside the calendar"),
        ("'ship', priority => 10", "priority is 0 to 9, not 10"),
        ("'ship', queue => ''", "queue is 1 to 200 printable characters"),
        ("'ship', queue => E'a\\x1fb'", "queue is 1 to 200 printable characters"),
        ("'ship', dedupe_key => ''", "text of 1 to 500 characters"),
        ("'ship', dedupe_key => repeat('x', 501)", "text of 1 to 500 characters"),
        ("'ship', dedupe_for => '1s'", "dedupe_for needs a dedupe_key"),
        ("'everywhere'", "job everywhere runs on each node"),
        ("'first'", "other jobs come after job first"),
    ],
)
async def test_what_is_refused(
    client: Scheduler, schema: SharedSchema, arguments: str, message: str
) -> None:
    await client.add_job("everywhere", handler="ship", each_node=True)
    await client.add_job("first", handler="ship")
    await client.add_job("second", handler="ship", after="first")
    with pytest.raises(psycopg.Error, match=message):
        call(schema, arguments)
    assert (await client.list_runs()).items == []


async def test_a_dedupe_key_is_held(client: Client, schema: SharedSchema) -> None:
    first, duplicate = call(schema, "'ship', dedupe_key => 'k', dedupe_for => '1 day'")
    assert duplicate is False
    assert call(schema, "'ship', dedupe_key => 'k'") == (first, True)
    claim = Claim(worker="w", handlers=frozenset({"ship"}), limit=1, lease=timedelta(seconds=30))
    [run] = (await client.store.claim(claim)).runs
    done = transitions.succeeded(run, await client.now(), None)
    assert await client.store.commit([done]) == [True]
    assert call(schema, "'ship', dedupe_key => 'k'") == (first, True)
    assert call(schema, "'ship', dedupe_key => 'l'")[1] is False


async def test_one_of_two_transactions_gets_the_key(client: Client, schema: SharedSchema) -> None:
    sql = f"SELECT * FROM {schema.name}.enqueue('ship', dedupe_key => 'k')"
    answers: list[Any] = []
    with psycopg.connect(schema.server) as other:
        first = other.execute(sql).fetchone()
        waiting = threading.Thread(target=lambda: answers.extend(schema.execute(sql)))
        waiting.start()
        await asyncio.sleep(0.2)
        assert answers == []
    await asyncio.to_thread(waiting.join)
    assert first is not None
    assert answers == [(first[0], True)]
    with pytest.raises(psycopg.Error, match="READ COMMITTED"):
        schema.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ; {sql}")


async def test_a_trigger_enqueues_in_the_transaction_of_the_row(
    client: Client, schema: SharedSchema
) -> None:
    schema.execute("CREATE TABLE $.orders (id int)")
    schema.execute(
        "CREATE FUNCTION $.ship_order() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN"
        " PERFORM $.enqueue(''ship'', jsonb_build_object(''order'', NEW.id)); RETURN NEW; END'"
    )
    schema.execute(
        "CREATE TRIGGER ship AFTER INSERT ON $.orders FOR EACH ROW EXECUTE FUNCTION $.ship_order()"
    )
    with psycopg.connect(schema.server) as connection:
        connection.execute(f"INSERT INTO {schema.name}.orders VALUES (1)")
        connection.rollback()
        connection.execute(f"INSERT INTO {schema.name}.orders VALUES (2), (3)")
    runs = (await client.list_runs()).items
    assert sorted(run.payload["order"] for run in runs) == [2, 3]


async def test_a_role_needs_execute_alone(client: Client, schema: SharedSchema) -> None:
    role = f"role_{schema.name}"
    address = urlsplit(schema.server)
    url = f"postgresql://{role}@{address.hostname}:{address.port}{address.path}"
    sql = f"SELECT run_id FROM {schema.name}.enqueue('ship')"
    schema.execute(f"CREATE ROLE {role} LOGIN")
    try:
        schema.execute(f"GRANT USAGE ON SCHEMA $ TO {role}")
        with psycopg.connect(url, autocommit=True) as connection:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql)
            schema.execute(f"GRANT EXECUTE ON FUNCTION $.enqueue TO {role}")
            [[run_id]] = connection.execute(sql).fetchall()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT * FROM {schema.name}.runs")
        assert (await client.get_run(run_id)).state is State.PENDING
    finally:
        schema.execute(f"DROP OWNED BY {role}")
        schema.execute(f"DROP ROLE {role}")
