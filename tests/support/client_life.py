"""What a client of any store does in its life; after a fault, each step again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.clock import Clock
from mainspring.core.model import Run, Source, State, slot_run_id
from mainspring.core.policy import Delivery
from mainspring.stores.protocol import JobQuery, RunQuery, Store
from tests.support.records import a_firing, a_run

LEASE = timedelta(seconds=30)
OLD = timedelta(days=2)
KEPT = timedelta(days=1)
TOGETHER = ["first", "last"]
"""Added in one call."""


class ClientLife:
    """The steps that a client takes on every store. What another one has done is not done again."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.slot = clock.now()
        self.slot_run = slot_run_id("job", self.slot)
        self.told: set[str] = set()
        """What a client was told is stored."""
        self.claims: Counter[tuple[str, int]] = Counter()
        self.ended: dict[str, int] = {}
        """By run: the token under which a client was told that it has ended."""
        self.changes: dict[str, transitions.Change | None] = {}
        """By run: a change that is sent until a client is told that it is done; then None."""

    async def add(self, store: Store, *runs: Run) -> None:
        if runs[0].id not in self.told:
            assert not any(added.duplicate for added in await store.add(runs))
            self.told.update(run.id for run in runs)

    async def add_together(self, store: Store) -> None:
        await self.add(store, *(self.run(run_id, dedupe_key=run_id) for run_id in TOGETHER))

    async def revive_and_delete(self, store: Store) -> None:
        for run_id in ("revived", "deleted"):
            await self.add(store, self.finished(run_id, self.slot))
        await self._change(store, "revived", lambda run: transitions.revived(run, self.slot))
        await self._change(store, "deleted", transitions.deleted)

    async def _change(
        self, store: Store, run_id: str, make: Callable[[Run], transitions.Change]
    ) -> None:
        if run_id not in self.changes:
            [run] = (await store.find(RunQuery(ids=frozenset({run_id})))).items
            self.changes[run_id] = make(run)
        if (change := self.changes[run_id]) is not None:
            assert await store.commit([change]) == [True]
            self.changes[run_id] = None

    def run(self, run_id: str, **fields: Any) -> Run:
        return a_run(self.slot, run_id, **fields)

    def finished(self, run_id: str, at: datetime) -> Run:
        return self.run(run_id, state=State.FAILED, finished_at=at, attempt=1)

    async def fire(self, store: Store) -> None:
        [job] = (await store.jobs(JobQuery(ids=frozenset({"job"})))).items
        if job.next_run_at == self.slot:
            slot = self.run(self.slot_run, source=Source.SCHEDULE)
            firing = a_firing(job, slot, next_run_at=self.slot + timedelta(days=9))
            [fired] = await store.fire([firing])
            assert fired.done

    async def rescue(self, store: Store) -> None:
        for run in (await store.find(RunQuery(lapsed=True))).items:
            rescue = transitions.rescued(run, await store.now(), Delivery.AT_LEAST_ONCE)
            await store.commit([rescue])

    async def check_runs(self, store: Store, expected: list[str]) -> None:
        """Every run is there once, succeeded under the last token that a client was told."""
        found = (await store.find(RunQuery(limit=100))).items
        assert sorted(run.id for run in found) == sorted(expected)
        for run in found:
            assert run.state is State.SUCCEEDED
            assert run.result == run.token
            assert run.token == self.ended.get(run.id, run.token)
        assert [key for key, count in self.claims.items() if count > 1] == []
