"""A client that dies or freezes in a transaction of the store delays other clients only briefly."""

from __future__ import annotations

import asyncio
import signal

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql.database import CALL_SECONDS
from mainspring.stores.postgresql.store import PostgresStore
from tests.support.dead_clients import (
    add,
    check_that_all_is_ours,
    claim,
    fire,
    other_client,
    prepare,
)
from tests.support.postgresql import SharedSchema

_OTHER_CLIENT = """
import asyncio, os, signal, sys
from contextlib import suppress
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql import database
from mainspring.stores.postgresql.store import PostgresStore
from tests.support.dead_clients import add, claim, fire

async def main():
    store = PostgresStore(sys.argv[1])
    await store.open()
    written, resumed = [], asyncio.Event()

    class Stopping(database.Transaction):
        async def begin(self, *, idle=None, lock=0):
            return await super().begin(idle=idle and 2, lock=lock)

    async def stop_before_commit(self, work, limit, *, alone, **options):
        if alone:
            return await transact(self, work, limit, alone=True)
        async def stopped(tx):
            done = await work(tx)
            written.append(tx)
            if len(written) == 3:
                print("locked", flush=True)
                if sys.argv[2] == "SIGSTOP":
                    os.kill(os.getpid(), signal.SIGSTOP)
                    resumed.set()
            await resumed.wait()
            return done
        return await transact(self, stopped, limit, alone=False, **options)

    transact, database.Database._transact = database.Database._transact, stop_before_commit
    database.Transaction = Stopping
    ends = await asyncio.gather(
        *(operation(store, "theirs") for operation in (add, fire, claim)), return_exceptions=True
    )
    print(all(isinstance(end, StoreUnavailable) for end in ends), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
async def test_a_client_that_ends_or_freezes_in_its_transactions_holds_up_nobody_for_long(
    schema: SharedSchema, end: str
) -> None:
    """The server rolls back what a frozen client has begun."""
    store = PostgresStore(schema.url)
    await store.open()
    before = await prepare(store)
    async with other_client(_OTHER_CLIENT, schema.url, end) as other, asyncio.timeout(CALL_SECONDS):
        if end == "SIGKILL":
            other.kill()
        ours = (operation(store, "ours") for operation in (add, fire, claim))
        assert await asyncio.gather(*ours) == [True, True, True]
        if end == "SIGSTOP":
            other.send_signal(signal.SIGCONT)
            assert other.stdout is not None
            assert await other.stdout.readline() == b"True\n"
    await check_that_all_is_ours(store, before)
    await store.close()


async def test_the_server_ends_a_transaction_whose_client_is_silent(
    schema: SharedSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(schema.url)
    await store.open()
    monkeypatch.setattr("mainspring.stores.postgresql.database.CALL_SECONDS", 0.5)

    async def pause(tx: object) -> None:
        await asyncio.sleep(3)

    with pytest.raises(StoreUnavailable):
        await store._db.transact(pause, limit=60)
    assert await store.now()
    await store.close()
