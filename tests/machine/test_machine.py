"""Each store beside the memory store; and planted bugs, which the machine must find."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from mainspring.core.clock import Clock
from mainspring.stores.memory import MemoryStore
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.objects import ObjectStore
from mainspring.stores.objects.directory_bucket import DirectoryBucket
from mainspring.stores.objects.url import Address
from mainspring.stores.postgresql import PostgresStore
from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore
from tests.support.mongodb.store import shared_database
from tests.support.objects.given_time_bucket import GivenTimeBucket
from tests.support.objects.memory_bucket import MemoryBucket, Objects
from tests.support.planted_store_bugs import PLANTED
from tests.support.postgresql import shared_schema
from tests.support.store_machine import StoreMachine

HEALTH = list(HealthCheck)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class SqliteMachine(StoreMachine):
    def make_store(self, place: Path, clock: Clock) -> Store:
        return SqliteStore(str(place / "jobs.db"), clock)

    @rule(
        seconds=st.sampled_from([-3600, -20, -2, 2, 20, 3600]),
        microseconds=st.integers(100_000, 900_000),
    )
    def set_clock(self, seconds: int, microseconds: int) -> None:
        """Somebody sets the wall clock, and the next write allows for it."""
        self.clock.step(timedelta(seconds=seconds, microseconds=microseconds))
        self.do("maintain", LONG_AGO, 0)


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=HEALTH
)


class ObjectsMachine(SqliteMachine):
    """With limits so small that every other write makes a snapshot, and every other end a
    segment."""

    def make_store(self, place: Path, clock: Clock) -> Store:
        self.objects = Objects(clock)
        return ObjectStore(MemoryBucket(self.objects), tail_bytes=1000, most_finished=3)


TestObjects = ObjectsMachine.TestCase
TestObjects.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=HEALTH
)


class DirectoryMachine(SqliteMachine):
    def make_store(self, place: Path, clock: Clock) -> Store:
        return ObjectStore(DirectoryBucket(place / "bucket", clock))


TestDirectory = DirectoryMachine.TestCase
TestDirectory.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=HEALTH
)


@pytest.mark.thorough
def test_seaweedfs(object_storage_url: str) -> None:
    """Each example has a prefix of its own."""
    url, _, options = object_storage_url.partition("?")
    numbers = itertools.count()

    class SeaweedFsMachine(SqliteMachine):
        def make_store(self, place: Path, clock: Clock) -> Store:
            address = Address.of(f"{url}/{next(numbers)}?{options}")
            return ObjectStore(GivenTimeBucket(address, clock))

    run_state_machine_as_test(SeaweedFsMachine, settings=ON_SERVERS)


def test_mongodb(replica_set_url: str) -> None:
    """The examples share a database, which each leaves empty."""
    with shared_database(replica_set_url) as database:

        class MongoMachine(StoreMachine):
            counts_exactly = False

            def make_store(self, place: Path, clock: Clock) -> Store:
                return MongoStore(database.url, clock)

            def teardown(self) -> None:
                super().teardown()
                database.empty()

        run_state_machine_as_test(MongoMachine, settings=ON_SERVERS)


def test_postgresql(postgresql_url: str) -> None:
    """The examples share a schema, which each leaves empty."""
    with shared_schema(postgresql_url) as schema:

        class PostgresMachine(StoreMachine):
            def make_store(self, place: Path, clock: Clock) -> Store:
                return PostgresStore(schema.url, clock)

            def teardown(self) -> None:
                super().teardown()
                schema.empty()

        run_state_machine_as_test(PostgresMachine, settings=ON_SERVERS)


ON_SERVERS = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=HEALTH
)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[MemoryStore]) -> None:
    class Machine(StoreMachine):
        def make_store(self, place: Path, clock: Clock) -> Store:
            return bug(clock)

    search = settings(
        max_examples=200,
        stateful_step_count=30,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=HEALTH,
    )
    with pytest.raises(AssertionError):
        hunt(Machine, search)


def hunt(machine: type[StoreMachine], search: settings) -> None:
    """Seed by seed until one finds something: mostly the first. What a seed gives hangs also on
    the modules that are loaded, from which Hypothesis takes constants."""
    for number in range(60):
        run_state_machine_as_test(seed(number)(machine), settings=search)
