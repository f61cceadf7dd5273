"""All that wait for runs to end share their queries."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Run, State
from mainspring.core import transitions
from mainspring.core.model import Page
from mainspring.engine.run_operations import LAST_READ, RunWaiters
from mainspring.errors import StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, RunQuery
from mainspring.testing.store_calls import claim_runs
from tests.support.engine import LONG, on_virtual_time

MANY = 1000


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.away = False

    async def find(self, query: RunQuery) -> Page[Run]:
        assert query.ids is not None
        self.asked.append(len(query.ids))
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away")
        return await super().find(query)


@pytest.fixture
async def store() -> Counting:
    store = Counting()
    await store.open()
    times: Any = dict.fromkeys(("created_at", "scheduled_at", "run_at"), await store.now())
    runs = [Run(id=f"r{n}", job_id="j", handler="work", **times) for n in range(MANY)]
    await store.add(runs)
    return store


async def end_all(store: Counting) -> None:
    lease = timedelta(minutes=1)
    claim = Claim(worker="w", handlers=frozenset({"work"}), limit=MANY, lease=lease)
    held = await claim_runs(store, claim)
    now = await store.now()
    await store.commit([transitions.succeeded(run, now, None) for run in held])


async def test_a_thousand_waiters_share_one_query(store: Counting) -> None:
    waiters = RunWaiters(store)
    waiting = [asyncio.create_task(waiters.wait(f"r{n}", LONG)) for n in range(MANY)]
    for _ in range(10):  # turns of the loop: until they have their first answer
        await asyncio.sleep(0)
    assert store.asked == [MANY]
    store.asked.clear()
    await end_all(store)
    waiters.wake()
    done = await asyncio.gather(*waiting)
    assert {run.state for run in done} == {State.SUCCEEDED}
    assert store.asked == [MANY]


@pytest.mark.parametrize("hangs", [False, True])
@on_virtual_time()
async def test_a_wait_ends_in_time_though_the_store_does_not_answer(hangs: bool) -> None:
    class Silent(MemoryStore):
        async def find(self, query: RunQuery) -> Page[Run]:
            if hangs:
                await asyncio.sleep(3600)
            raise StoreUnavailable("away")

    loop, waiters = asyncio.get_running_loop(), RunWaiters(Silent())
    with pytest.raises(TimeoutError, match="the store does not answer") as raised:
        await waiters.wait("r1", 10)
    assert loop.time() <= 10 + LAST_READ
    assert isinstance(raised.value.__cause__, TimeoutError if hangs else StoreUnavailable)
