"""Every field of a stored run damaged with every value, in every state, on MongoDB: no other run is
affected.

tests/conformance/test_mongodb.py tries each field with each value in one state.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.test_mongodb import OnMongo
from tests.support.mongodb.store import SharedDatabase, shared_database
from tests.support.servers.mongodb import ReplicaSet

TEST = "test_a_damaged_field_of_a_run_affects_no_other_run"


@pytest.fixture(scope="module")
def database() -> Iterator[SharedDatabase]:
    with ReplicaSet(1, election_timeout=10) as servers, shared_database(servers.url) as database:
        yield database


class TestEveryDamage(OnMongo):
    damages = ("x", {"a": 1}, None, -7.5)
    every_damage = True

    @pytest.fixture(autouse=True)
    def _servers(self, database: SharedDatabase) -> Iterator[None]:
        self.url = database.url
        yield
        database.empty()


assert hasattr(TestEveryDamage, TEST)
for _name in dir(TestEveryDamage):
    if _name.startswith("test_") and _name != TEST:
        setattr(TestEveryDamage, _name, None)
