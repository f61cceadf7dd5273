"""Tests of two clients that use the same data at once: exactly one wins."""

from __future__ import annotations

import asyncio
from collections import Counter

from mainspring.core import transitions
from mainspring.core.model import State, replace
from mainspring.core.policy import Delivery
from mainspring.stores.election import elect
from mainspring.stores.protocol import JobQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import drop_job, put_job


class RaceTests(Suite):
    async def test_a_client_sees_what_another_wrote(self, store: Store) -> None:
        peer = await self.peer(store)
        await store.add([self.run()])
        [run] = await self.claim(peer)
        assert await self.one(store) == run
        await put_job(store, self.job())
        assert [job.id for job in (await peer.jobs(JobQuery())).items] == ["job"]

    async def test_concurrent_claims_take_no_run_twice(self, store: Store) -> None:
        peer = await self.peer(store)
        await store.add([self.run(f"r{n:03}") for n in range(200)])
        claims = [
            self.claim(client, 10, worker=f"w{n}") for n in range(10) for client in (store, peer)
        ]
        taken = Counter(run.id for runs in await asyncio.gather(*claims) for run in runs)
        taken.update(run.id for run in await self.claim(store, 300))
        assert taken == Counter(f"r{n:03}" for n in range(200))

    async def test_concurrent_additions_of_one_id_add_one_run(self, store: Store) -> None:
        peer = await self.peer(store)
        adds = [client.add([self.run(payload=n)]) for n in range(10) for client in (store, peer)]
        stands = {added.run.payload for [added] in await asyncio.gather(*adds)}
        assert stands == {(await self.one(store)).payload}

    async def test_concurrent_additions_of_one_key_add_one_run(self, store: Store) -> None:
        peer = await self.peer(store)
        adds = [
            (peer if n % 2 else store).add([self.run(f"r{n}", dedupe_key="k")]) for n in range(20)
        ]
        answers = [added for [added] in await asyncio.gather(*adds)]
        assert sum(not added.duplicate for added in answers) == 1
        assert len({added.run.id for added in answers}) == 1
        assert len(await self.all_ids(store)) == 1

    async def test_one_of_several_concurrent_firings_wins(self, store: Store) -> None:
        peer = await self.peer(store)
        job = await self.put(store)
        firings = [
            self.fire(client, job, self.start) for _ in range(10) for client in (store, peer)
        ]
        assert sum(fired.done for fired in await asyncio.gather(*firings)) == 1
        assert len(await self.all_ids(store)) == 1
        assert (await self.read_job(peer)).version == job.version + 1

    async def test_one_of_several_concurrent_writes_of_a_job_wins(self, store: Store) -> None:
        peer = await self.peer(store)
        job = await self.put(store)
        writes = [
            put_job(client, replace(job, description=f"{n}"))
            for n in range(10)
            for client in (store, peer)
        ]
        won = await asyncio.gather(*writes)
        assert won.count(True) == 1
        assert (await self.read_job(store)).description == f"{won.index(True) // 2}"

    async def test_either_an_edit_or_a_drop_of_the_same_version_wins(self, store: Store) -> None:
        peer = await self.peer(store)
        for n in range(10):
            job = await self.put(store, f"j{n}")
            edited, dropped = await asyncio.gather(
                put_job(store, replace(job, description="edited")),
                drop_job(peer, job.id, job.version),
            )
            assert edited != dropped
            left = await store.jobs(JobQuery(ids=frozenset({job.id})))
            assert [kept.description for kept in left.items] == (["edited"] if edited else [])

    async def test_either_a_rescue_or_a_completion_wins(self, store: Store) -> None:
        peer = await self.peer(store)
        await store.add(self.runs(*"abcdefgh"))
        held = await self.claim(store, lease=self.ticks(5))
        await self.pass_ticks(6)
        now = await store.now()
        races = []
        for run in held:
            races.append(store.commit([transitions.succeeded(run, now, 1)]))
            races.append(peer.commit([transitions.rescued(run, now, Delivery.AT_LEAST_ONCE)]))
        won = [kept for [kept] in await asyncio.gather(*races)]
        for n, run in enumerate(held):
            completed, rescued = won[2 * n : 2 * n + 2]
            assert completed != rescued
            expected = State.SUCCEEDED if completed else State.PENDING
            assert await self.states(store, run.id) == [expected]

    async def test_one_of_several_concurrent_candidates_leads(self, store: Store) -> None:
        peer = await self.peer(store)
        votes = [
            elect(peer if n % 2 else store, "lead", f"n{n}", self.ticks(30)) for n in range(20)
        ]
        assert sum(token is not None for token in await asyncio.gather(*votes)) == 1

    async def test_another_client_is_woken(self, store: Store) -> None:
        """A hint may be lost, and polling finds the run then. It must not take for ever."""
        peer = await self.peer(store)
        waiting = asyncio.create_task(peer.wait(5))
        await asyncio.sleep(0.05)
        await store.add([self.run()])
        await waiting
        assert await self.claim_ids(peer) == ["run"]
