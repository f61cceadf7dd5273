"""Servers for a whole pytest session, shared by its xdist workers.

A suite that wants them names them in its conftest.py:

    from tests.support.servers.fixtures import *  # noqa: F403

Each is started by the first test that asks, and ended when the last worker ends. Tests must not
disturb them: who kills or freezes starts a topology of its own (`with ReplicaSet() as servers:`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from pymongo import MongoClient

from tests.support.servers.mongodb import (
    ReplicaSet,
    ShardedCluster,
    Standalone,
    Topology,
    with_database,
)
from tests.support.servers.postgresql import OLDEST, Postgres
from tests.support.servers.runs import Run, current_run, leave_current_run
from tests.support.servers.seaweedfs import BUCKET, SeaweedFs, environment

__all__ = [
    "database_name",
    "database_url",
    "object_storage_url",
    "oldest_postgresql_url",
    "postgresql_url",
    "replica_set_url",
    "seaweedfs_url",
    "servers_run",
    "sharded_url",
    "standalone_url",
]


SHARED: dict[str, Callable[[], Topology]] = {
    "standalone": Standalone,
    # One member, which costs a third of three: no test of those that share it kills one. Tests of
    # elections start three of their own. It acknowledges without waiting for a disk.
    "replica-set": lambda: ReplicaSet(1, election_timeout=10, durable=False),
    "sharded": ShardedCluster,
}


@pytest.fixture(scope="session")
def servers_run() -> Iterator[Run]:
    yield current_run()
    leave_current_run()


@pytest.fixture(scope="session")
def standalone_url(servers_run: Run) -> str:
    """A mongod alone."""
    return shared_url(servers_run, "standalone")


@pytest.fixture(scope="session")
def replica_set_url(servers_run: Run) -> str:
    """A replica set of one: transactions and change streams."""
    return shared_url(servers_run, "replica-set")


@pytest.fixture(scope="session")
def sharded_url(servers_run: Run) -> str:
    """A cluster of two shards, through its router."""
    return shared_url(servers_run, "sharded")


@pytest.fixture(scope="session")
def seaweedfs_url(servers_run: Run) -> str:
    """The endpoint of an S3 server, which holds the bucket `BUCKET`."""
    return servers_run.shared("seaweedfs", lambda: SeaweedFs().__enter__().url)


@pytest.fixture(scope="session")
def postgresql_url(servers_run: Run) -> str:
    """The newest PostgreSQL that tests fetch, or the server that the environment names."""
    named = os.environ.get("MAINSPRING_TEST_POSTGRESQL")
    return named or servers_run.shared("postgresql", lambda: Postgres(durable=False).start().url)


@pytest.fixture(scope="session")
def oldest_postgresql_url(servers_run: Run) -> str:
    """The oldest PostgreSQL that Mainspring supports."""
    return servers_run.shared(
        "oldest-postgresql", lambda: Postgres(OLDEST, durable=False).start().url
    )


@pytest.fixture
def object_storage_url(seaweedfs_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store in an S3 server, under a prefix that no other test has. The environment
    has the credentials."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/test-{uuid.uuid4().hex[:16]}?endpoint={seaweedfs_url}"


@pytest.fixture
def database_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name that no other test has. Dropped afterwards from every server the test asked for."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    yield name
    for fixture in ("standalone_url", "replica_set_url", "sharded_url"):
        if fixture in request.fixturenames:
            with MongoClient[dict[str, object]](request.getfixturevalue(fixture)) as client:
                client.drop_database(name)


@pytest.fixture
def database_url(replica_set_url: str, database_name: str) -> str:
    """The URL of that database in the replica set."""
    return with_database(replica_set_url, database_name)


def shared_url(run: Run, kind: str) -> str:
    return run.shared(kind, lambda: started(SHARED[kind]()).url)


def started(servers: Topology) -> Topology:
    """Start a topology that outlives this process, for the run to end."""
    try:
        servers.start()
    except BaseException:
        servers.stop()
        raise
    for server in servers.servers:
        server.disconnect()
    return servers
