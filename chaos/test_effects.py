"""Handlers that write in transactions, killed and stopped over and over: one effect each."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo import MongoClient

from tests.support.effect_counts import effect_test
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.servers.mongodb import ReplicaSet, with_database
from tests.support.servers.server import Document


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 2])
async def test_effects_on_sqlite(tmp_path: Path, seed: int) -> None:
    tally = await effect_test(tmp_path, runs=2000, kills=60, stops=4, seed=seed, timeout=300)
    assert tally.kills == 60
    print(tally)


@pytest.fixture(params=["replica_set_url", "sharded_url"])
def mongodb(request: pytest.FixtureRequest) -> Iterator[str]:
    url: str = request.getfixturevalue(request.param)
    name = f"chaos_{uuid.uuid4().hex[:16]}"
    with MongoClient[Document](url) as client:
        if request.param == "sharded_url":
            for collection in ("effects", "mainspring_runs"):
                command = ("shardCollection", f"{name}.{collection}")
                client.admin.command(*command, key={"_id": "hashed"})
        else:
            client[name].create_collection("effects")
        yield with_database(url, name)
        client.drop_database(name)


@pytest.mark.timeout(400)
async def test_effects_on_mongodb(tmp_path: Path, mongodb: str) -> None:
    tally = await effect_test(
        tmp_path, url=mongodb, runs=600, kills=30, stops=3, seed=1, timeout=300
    )
    assert tally.kills == 30
    print(tally)


@pytest.mark.timeout(500)
async def test_effects_through_failovers(tmp_path: Path) -> None:
    """The primary is killed and stepped down under them. Elections outlast their leases."""
    with ReplicaSet(place=tmp_path / "servers") as servers:

        async def trouble() -> None:
            for _ in range(3):
                await asyncio.sleep(3)
                await asyncio.to_thread(servers.primary().kill)
                await asyncio.sleep(5)
                await asyncio.to_thread(servers.heal)
                await asyncio.sleep(3)
                await asyncio.to_thread(servers.step_down)

        tally = await effect_test(
            tmp_path,
            url=with_database(servers.url, "effects"),
            runs=1500,
            kills=5,
            stops=0,
            seed=1,
            timeout=300,
            trouble=trouble,
        )
    assert tally.again > 0
    print(tally)
