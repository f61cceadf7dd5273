"""A claim on MongoDB takes several reads and writes, and other clients come in between."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from mainspring.core.model import Job, Run, replace
from mainspring.core.policy import Policy
from mainspring.stores.mongodb import MongoStore, claim
from mainspring.stores.mongodb.claim import ClaimPartition
from mainspring.stores.mongodb.codec import LANE_PARTS
from mainspring.stores.mongodb.database import Database
from mainspring.stores.mongodb.limits import FreeCapacity
from mainspring.stores.protocol import Claimed
from mainspring.testing import FakeClock
from mainspring.testing.store_calls import claim_runs, put_job
from tests.support.mongodb.store import CLAIM, opened, some_runs


async def test_a_run_that_falls_due_while_a_claim_searches_is_next_due(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the claim neither took nor named it, the worker would sleep until its next poll."""
    clock = FakeClock()
    store = MongoStore(database_url, clock)
    await store.open()
    soon = clock.now() + timedelta(seconds=1)
    times: Any = {"created_at": clock.now(), "scheduled_at": soon, "run_at": soon}
    await store.add([Run(id="soon", job_id="job", handler="work", **times)])
    read_lanes = claim._read_due_lanes

    async def take_long(*given: Any) -> Any:
        found = await read_lanes(*given)
        clock.advance(2)
        return found

    monkeypatch.setattr(claim, "_read_due_lanes", take_long)
    assert await store.claim(CLAIM) == Claimed([], soon)
    assert [run.id for run in (await store.claim(CLAIM)).runs] == ["soon"]
    await store.close()


async def test_a_cancelled_claim_gives_its_runs_back(database_url: str) -> None:
    async with opened(database_url) as store:
        await store.add(await some_runs(store, *(f"r{n}" for n in range(50))))
        done: list[Run] = []  # by a claim that was answered before it could be cancelled
        for delay in (0, 0.001, 0.003, 0.006, 0.01, 0.02):
            claiming = asyncio.create_task(claim_runs(store, CLAIM))
            await asyncio.sleep(delay)
            claiming.cancel()
            await asyncio.wait({claiming})
            done += claiming.result() if not claiming.cancelled() else []
        await store.close()
        await store.open()
        held = await claim_runs(store, CLAIM)
        assert len(held) + len(done) == 50
        assert {run.attempt for run in held} <= {1}


@pytest.mark.parametrize("locks", [True, False])
async def test_a_limit_that_is_only_counted_would_be_passed(
    database_url: str, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """Two clients count at the same moment; if neither wrote the limit's document, both would
    claim."""
    both, count, counted = asyncio.Event(), FreeCapacity.count, 0

    async def at_once(self: FreeCapacity, db: Database) -> None:
        nonlocal counted
        await count(self, db)
        if db.session is not None:
            counted += 1
            if counted == 2:
                both.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await both.wait()

    async def nothing(*_: Any) -> None: ...

    async with opened(database_url) as one, opened(database_url) as two:
        now = await one.now()
        policy = Policy(concurrency=1)
        job = Job(id="job", handler="work", created_at=now, updated_at=now, policy=policy)
        assert await put_job(one, job)
        await one.add(await some_runs(one, "a", queue="x"))
        await one.add(await some_runs(one, "b", queue="y"))
        monkeypatch.setattr(FreeCapacity, "count", at_once)
        if not locks:
            monkeypatch.setattr(FreeCapacity, "lock", nothing)
        taken = await asyncio.gather(
            claim_runs(one, replace(CLAIM, queues=frozenset({"x"}))),
            claim_runs(two, replace(CLAIM, queues=frozenset({"y"}))),
        )
    assert sum(map(len, taken)) == (1 if locks else 2)


# -- which lanes a claim takes while other clients claim too --------------------------------

LANES = [{"r": 4, "h": handler, "p": part} for handler in "ab" for part in range(LANE_PARTS)]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def clients(count: int, time: Time) -> list[ClaimPartition]:
    """Clients that have lost a claim to another, and know of each other."""
    members = [ClaimPartition(random.Random(n), time) for n in range(count)]
    for member in members:
        member.record_contention(True)
        for other in members:
            if other is not member:
                member.record_other(other.me)
    return members


@pytest.mark.parametrize("count", [2, 3, 4])
def test_clients_that_know_of_each_other_share_no_lane(time: Time, count: int) -> None:
    dealt = [lane for member in clients(count, time) for lane in member.own_lanes(LANES)]
    assert sorted(dealt, key=LANES.index) == LANES


def test_lanes_of_a_silent_client_are_divided_again(time: Time) -> None:
    client, _, third = clients(3, time)
    time.now = 0.9
    client.record_other(third.me)
    assert len(client.own_lanes(LANES)) in (2, 4)  # of three
    time.now = 1.5
    assert client.own_lanes(LANES) == LANES  # once a second
    assert len(client.own_lanes(LANES)) == 4  # of two


def test_runs_of_higher_priority_are_never_left_to_others(time: Time) -> None:
    client, _ = clients(2, time)
    [mine, *_] = own = client.own_lanes(LANES)
    [theirs, *_] = (lane for lane in LANES if lane not in own)
    high = [{**mine, "r": 0}, {**mine, "r": 2}, {**theirs, "r": 1}, mine, theirs]
    assert client.own_lanes(high) == high[:1]
    assert client.own_lanes(high[1:]) == high[1:]  # its own part has none of that priority


def test_a_client_claims_from_all_lanes_once_a_second(time: Time) -> None:
    """Otherwise it might leave runs for ever to a client that has no handler for them."""
    client, other = clients(2, time)
    sizes = []
    for _ in range(40):
        time.now += 0.125
        client.record_other(other.me)
        client.record_contention(True)
        sizes.append(len(client.own_lanes(LANES)))
    assert sizes.count(len(LANES)) == 5
    assert sizes.count(len(LANES) // 2) == 35
