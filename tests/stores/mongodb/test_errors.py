"""Servers that are missing for a while give temporary errors."""

from __future__ import annotations

import asyncio
import socket

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import MongoStore
from mainspring.testing.store_calls import claim_runs
from tests.support.mongodb.store import CLAIM, opened, some_runs
from tests.support.servers.mongodb import ReplicaSet, with_database


async def test_an_unreachable_server_is_a_temporary_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    url = f"mongodb://127.0.0.1:{port}/db?timeoutMS=300"
    with pytest.raises(StoreUnavailable, match="no MongoDB server answers") as raised:
        await MongoStore(url).open()
    assert "tried again" not in str(raised.value), "a command that fails does not try again"


async def test_a_replica_set_without_configuration_is_to_be_initiated() -> None:
    servers = ReplicaSet(1)
    try:
        servers.launch()
        servers.members[0].wait_until_listening()
        for url in (servers.url, f"mongodb://{servers.addresses}/?"):
            named = with_database(url, "jobs") + "&timeoutMS=1500"
            with pytest.raises(StoreUnavailable, match=r"run `rs.initiate\(\)` once in mongosh"):
                await MongoStore(named).open()
    finally:
        servers.stop()


async def test_a_missing_primary_is_a_temporary_error() -> None:
    with ReplicaSet(3, election_timeout=10) as servers:
        url = with_database(servers.url, "jobs") + "&timeoutMS=1500"
        async with opened(url) as store:
            [run] = await some_runs(store, "a")
            servers.primary().kill()
            with pytest.raises(StoreUnavailable):
                await store.add([run])
            servers.primary()
            for _ in range(20):
                try:
                    await store.add([run])
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.2)
            assert [held.id for held in await claim_runs(store, CLAIM)] == ["a"]
