"""Each of the statements of a client's whole life on PostgreSQL, once with each fault."""

from __future__ import annotations

import pytest

from tests.support.postgresql import shared_schema
from tests.support.postgresql.client_life import live_through, prepare
from tests.support.postgresql.statement_faults import Effect, statement_faults
from tests.support.servers.fixtures import *  # noqa: F403


@pytest.mark.timeout(900)
@pytest.mark.parametrize("effect", Effect)
async def test_a_fault_at_any_statement_loses_nothing_and_does_nothing_twice(
    postgresql_url: str, effect: Effect
) -> None:
    with shared_schema(postgresql_url) as schema, statement_faults():
        await prepare(schema)
        at = 1
        while await live_through(schema, effect, at):
            at += 1
    assert at > 150
