"""Workers and routers with clocks an hour off, for longer than in
tests/stores/mongodb/test_fault_scenarios.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.stores.mongodb.schema import SHARDED
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from tests.support.fault_scenarios import skewed
from tests.support.servers.cache import ServerUnavailable
from tests.support.servers.clocks import server_clock
from tests.support.servers.mongodb import ReplicaSet, ShardedCluster, with_database


@pytest.mark.timeout(600)
async def test_default_leases_with_wrong_clocks(tmp_path: Path) -> None:
    """Handlers are held for more than a lease of thirty seconds."""
    with ReplicaSet(election_timeout=10) as servers:
        assert await skewed(tmp_path, with_database(servers.url, "jobs"), lease=30) == []


@pytest.fixture(scope="module")
def skewed_cluster() -> Iterator[ShardedCluster]:
    """A sharded database; its second router is an hour ahead, its third an hour behind."""
    with ShardedCluster() as cluster:
        try:
            clocks = [server_clock(3600), server_clock(-3600)]
        except ServerUnavailable as error:
            pytest.skip(str(error))
        for clock in clocks:
            cluster.add_router(clock)
        yield cluster


@pytest.mark.parametrize("planted", ["", "routers-clock"])
async def test_routers_with_wrong_clocks(
    tmp_path: Path, skewed_cluster: ShardedCluster, planted: str
) -> None:
    """Workers, with wrong clocks too, that go through them."""
    database = f"jobs{planted}"
    for name in SHARDED:
        skewed_cluster.shard(f"{database}.{DEFAULT_PREFIX}{name}")
    urls = [
        with_database(f"mongodb://{router.address}/", database) for router in skewed_cluster.routers
    ]
    found = await skewed(tmp_path, urls[0], routers=urls[1:], planted=planted)
    assert bool(found) is bool(planted), found
