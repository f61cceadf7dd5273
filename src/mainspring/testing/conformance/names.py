"""Tests of names with characters that are special to databases: each finds only its own record."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import Note, Run, State, replace
from mainspring.core.policy import Policy
from mainspring.stores.election import elect
from mainspring.stores.protocol import Claim, JobQuery, NoteQuery, RunQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import (
    claim_runs,
    drop_job,
    drop_note,
    drop_runs,
    put_job,
    put_note,
)

__all__ = ["NameTests"]

ODD = ["$ne", "a.b.$", '{"$gt": ""}', "%_'\";--", ".*\\"]


_each = pytest.mark.parametrize("odd", ODD, ids=ascii)


class NameTests(Suite):
    def odd_run(self, odd: str, number: int) -> Run:
        return self.run(
            f"{odd}{number}",
            job_id=odd,
            handler=odd,
            queue=odd,
            dedupe_key=f"{odd}{number}",
            payload={odd: odd},
        )

    @_each
    async def test_odd_names_of_runs(self, store: Store, odd: str) -> None:
        """Ids, jobs, handlers, queues, workers, keys, cursors."""
        await store.add([self.odd_run(odd, n) for n in range(3)])
        await store.add([self.run("plain", dedupe_key="plain")])
        mine = {"worker": odd, "handlers": frozenset({odd}), "queues": frozenset({odd})}
        claim: Any = {**mine, "lease": self.ticks(30)}
        held = sorted(await claim_runs(store, Claim(limit=9, **claim)), key=lambda run: run.id)
        assert [(run.id, run.worker, run.payload) for run in held] == [
            (f"{odd}{n}", odd, {odd: odd}) for n in range(3)
        ]
        assert len(await self.renew(store, *held)) == 3
        now = await store.now()
        ends = [transitions.succeeded(run, now, {odd: odd}) for run in held[:2]]
        assert await store.commit(ends) == [True, True]
        assert (await self.one(store, f"{odd}0")).result == {odd: odd}
        assert await self.states(store, odd, f"{odd}2") == [None, State.RUNNING]
        assert await self.all_ids(store, job=odd, limit=1) == [f"{odd}{n}" for n in (2, 1, 0)]
        assert (await store.find(RunQuery(job=f"{odd}0"))).items == []
        assert (await store.counts()).runs[odd] == {State.RUNNING: 1}
        counted = await store.counts(jobs=frozenset({odd, f"{odd}0"}))
        assert {name: total.ended for name, total in counted.totals.items()} == {
            odd: {State.SUCCEEDED: 2}
        }
        again = [replace(self.odd_run(odd, n), id=f"again{n}") for n in range(3)]
        added = await store.add(again)
        assert [(one.run.id, one.duplicate) for one in added] == [
            ("again0", False),
            ("again1", False),
            (f"{odd}2", True),
        ]
        assert await drop_runs(store, [f"{odd}0", odd]) == 1

    @_each
    async def test_odd_names_of_jobs(self, store: Store, odd: str) -> None:
        """Ids, tags, metadata, limits, and search text."""
        limit = Policy.make(concurrency=1, concurrency_key="shared")
        odd_job = self.job(odd, tags=(odd,), metadata={odd: 1}, policy=limit)
        assert await put_job(store, odd_job)
        assert await put_job(store, self.job("plain", description=f"so {odd} is"))
        for query, found in (
            (JobQuery(ids=frozenset({odd})), [odd]),
            (JobQuery(tag=odd), [odd]),
            (JobQuery(text=odd), sorted([odd, "plain"])),
            (JobQuery(text=f"{odd}x"), []),
            (JobQuery(cursor=odd, limit=9), ["plain"] if odd < "plain" else []),
        ):
            jobs = (await store.jobs(query)).items
            assert [job.id for job in jobs] == found
        [kept] = (await store.jobs(JobQuery(tag=odd))).items
        assert (kept.metadata, kept.policy) == ({odd: 1}, limit)
        await store.add([self.odd_run(odd, n) for n in range(2)])
        assert len(await self.claim(store, handlers=frozenset({odd}))) == 1
        assert await drop_job(store, odd)

    @_each
    async def test_odd_names_of_notes_and_terms(self, store: Store, odd: str) -> None:
        assert await put_note(store, Note(kind=odd, name=odd, value={odd: 1})) == 1
        [note] = (await store.notes(NoteQuery(kind=odd, names=frozenset({odd})))).items
        assert (note.name, note.value) == (odd, {odd: 1})
        page = await store.notes(NoteQuery(kind=odd, limit=1))
        assert (await store.notes(NoteQuery(kind=odd, cursor=page.cursor))).items == []
        assert [note.kind for note in (await store.notes(NoteQuery())).items] == [odd]
        assert await drop_note(store, odd, odd)
        assert await elect(store, odd, odd, self.ticks(5)) == 1
        assert await elect(store, odd, "another", self.ticks(5)) is None

    async def test_a_name_with_a_nul_finds_nothing(self, store: Store) -> None:
        """No name contains a NUL (the scheduler refuses it). The part before it must not match."""
        nul = "plain\0x"
        await put_job(store, self.job("plain", tags=("plain",)))
        await put_note(store, Note(kind="key", name="plain", value=1))
        await store.add([self.run("plain")])
        [run] = await self.claim(store)
        assert await store.commit([transitions.succeeded(run, await store.now(), None)]) == [True]
        for query in (JobQuery(ids=frozenset({nul})), JobQuery(tag=nul), JobQuery(text=nul)):
            assert (await store.jobs(query)).items == []
        assert (await store.notes(NoteQuery(kind="key", names=frozenset({nul})))).items == []
        assert not await drop_note(store, "key", nul)
        assert not await drop_job(store, nul)
        assert await self.states(store, nul, "plain") == [None, State.SUCCEEDED]
        assert await drop_runs(store, [nul]) == 0
        both = JobQuery(ids=frozenset({nul, "plain"}))
        assert [job.id for job in (await store.jobs(both)).items] == ["plain"]
