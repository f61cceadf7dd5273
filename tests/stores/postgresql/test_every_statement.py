"""Each statement of a client's whole life meets a fault: the client is killed before or after it,
its connection is cut, the response is lost, the server rolls the transaction back. Some of the
statements here; chaos/test_postgresql_statements.py breaks every one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import JobQuery
from tests.support.postgresql import SharedSchema
from tests.support.postgresql.client_life import live_through, prepare
from tests.support.postgresql.statement_faults import Client, Effect, Killed, statement_faults

EVERY = 7
"""Of so many statements, these tests break one."""


@pytest.fixture(autouse=True)
def faults() -> Iterator[None]:
    with statement_faults():
        yield


@pytest.mark.parametrize("effect", Effect)
async def test_a_fault_at_one_of_many_statements_loses_nothing(
    schema: SharedSchema, effect: Effect
) -> None:
    await prepare(schema)
    at = 1 + list(Effect).index(effect)
    while await live_through(schema, effect, at):
        at += EVERY * len(Effect)
    assert at > 100


@pytest.mark.parametrize("effect", Effect)
async def test_a_fault_at_any_statement_that_makes_the_schema_leaves_it_whole(
    schema: SharedSchema, effect: Effect
) -> None:
    at, met = 1, True
    while met:
        schema.execute("DROP SCHEMA IF EXISTS $ CASCADE")
        client = Client(effect, at)
        with client.calling(), suppress(Killed, StoreUnavailable):
            store = PostgresStore(schema.url)
            await store.open()
            await store.close()
        store = PostgresStore(schema.url)
        await store.open()
        assert (await store.jobs(JobQuery())).items == []
        await store.close()
        at, met = at + 1, client.met
    assert at > 8
