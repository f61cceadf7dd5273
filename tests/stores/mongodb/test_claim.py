"""A claim on MongoDB takes several reads, and time passes between them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.core.model import Run
from mainspring.stores.mongodb import MongoStore, claim
from mainspring.stores.protocol import Claimed
from mainspring.testing import FakeClock
from tests.support.mongodb.store import CLAIM
from tests.support.servers.mongodb import with_database


async def test_a_run_that_falls_due_while_a_claim_searches_is_next_due(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the claim neither took nor named it, the worker would sleep until its next poll."""
    clock = FakeClock()
    store = MongoStore(with_database(replica_set_url, database_name), clock)
    await store.open()
    soon = clock.now() + timedelta(seconds=1)
    times: Any = {"created_at": clock.now(), "scheduled_at": soon, "run_at": soon}
    await store.add([Run(id="soon", job_id="job", handler="work", **times)])
    read_heads = claim._read_heads

    async def take_long(*given: Any) -> Any:
        found = await read_heads(*given)
        clock.advance(2)
        return found

    monkeypatch.setattr(claim, "_read_heads", take_long)
    assert await store.claim(CLAIM) == Claimed([], soon)
    assert [run.id for run in (await store.claim(CLAIM)).runs] == ["soon"]
    await store.close()
