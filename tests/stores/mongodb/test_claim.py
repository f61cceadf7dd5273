"""Claims on a real server, where each command reads the clock for itself."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring.core.model import Run
from mainspring.stores.mongodb import MongoStore, claim
from mainspring.stores.protocol import Claim
from tests.support.servers.mongodb import with_database


async def test_a_claim_names_a_run_that_falls_due_while_it_looks(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither taken nor named, it would wait for the next poll."""
    store = MongoStore(with_database(replica_set_url, database_name))
    await store.open()
    try:
        now = await store.now()
        soon = now + timedelta(seconds=3)
        times: Any = {"created_at": now, "scheduled_at": soon, "run_at": soon}
        await store.add([Run(id="soon", job_id="job", handler="work", **times)])
        taking = claim.claim

        async def slow(*arguments: Any) -> Any:
            found = await taking(*arguments)
            while await store.now() <= soon:
                await asyncio.sleep(0.05)
            return found

        monkeypatch.setattr(claim, "claim", slow)
        asked = Claim(
            worker="w", handlers=frozenset({"work"}), limit=1, lease=timedelta(seconds=30)
        )
        claimed = await store.claim(asked)
        assert (claimed.runs, claimed.next_due) == ([], soon)
    finally:
        await store.close()
