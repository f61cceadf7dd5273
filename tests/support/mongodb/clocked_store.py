"""A MongoDB store whose time a test sets, and runs that are due at that time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from mainspring.core.model import Run
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import Claim
from mainspring.testing import FakeClock
from tests.support.servers.mongodb import with_database

__all__ = ["CLAIM", "clock", "run", "store"]

CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=10, lease=timedelta(seconds=30))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(
    replica_set_url: str, database_name: str, clock: FakeClock
) -> AsyncIterator[MongoStore]:
    store = MongoStore(with_database(replica_set_url, database_name), clock)
    await store.open()
    yield store
    await store.close()


def run(clock: FakeClock, run_id: str, **fields: Any) -> Run:
    given: Any = dict.fromkeys(("created_at", "scheduled_at", "run_at"), clock.now())
    return Run(**{"id": run_id, "job_id": "job", "handler": "work", **given, **fields})
