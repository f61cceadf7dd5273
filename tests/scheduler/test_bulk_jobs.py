"""Many jobs paused, resumed and removed at once."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring import Scheduler, State
from mainspring.core.model import replace
from mainspring.errors import JobNotFound, JobOwnedByCode
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import JobQuery, JobWrite


class Watched(MemoryStore):
    """Counts the calls that write jobs; somebody else may come between."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.edited_between: str | None = None

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        if self.edited_between is not None:
            name, self.edited_between = self.edited_between, None
            [job] = (await self.jobs(JobQuery(ids=frozenset({name})))).items
            await super().put_jobs([JobWrite.put(replace(job, description="edited"))])
        self.batches.append(len(writes))
        return await super().put_jobs(writes)


async def test_a_thousand_jobs_are_one_commit() -> None:
    """Pausing 5,000 jobs one by one took 18 s on an idle machine, minutes on a busy one."""
    store = Watched()
    async with Scheduler(store, workers=0) as scheduler:
        names = [f"j{n:04}" for n in range(2300)]
        for name in names:
            await scheduler.add_job(name, handler="work", schedule="1h")
        store.batches.clear()
        assert set((await scheduler.pause_jobs(names)).values()) == {None}
        assert store.batches == [1000, 1000, 300]
        page = await scheduler.list_jobs(enabled=False, limit=1, with_total=True)
        assert page.total == 2300
        assert page.items[0].next_run_at is None
        assert set((await scheduler.resume_jobs(names[:3])).values()) == {None}
        assert (await scheduler.get_job("j0000")).next_run_at is not None
        run = await scheduler.enqueue("j0000", delay="1h")
        assert set((await scheduler.remove_jobs(names)).values()) == {None}
        assert (await scheduler.list_jobs()).items == []
        assert (await scheduler.get_run(run.id)).state is State.CANCELLED


async def test_what_cannot_be_done_is_told_by_job_and_the_rest_is_done() -> None:
    store = Watched()
    scheduler = Scheduler(store, workers=0)

    @scheduler.job("1h")
    async def by_code() -> None: ...

    async with scheduler:
        await scheduler.add_job("mine", handler="work", schedule="1h")
        done = await scheduler.pause_jobs(["mine", "nowhere", "by_code", "mine"])
        assert list(done) == ["mine", "nowhere", "by_code"]
        assert isinstance(done["nowhere"], JobNotFound)
        assert done["mine"] is done["by_code"] is None
        store.edited_between = "mine"
        assert await scheduler.resume_jobs(["mine"]) == {"mine": None}
        mine = await scheduler.get_job("mine")
        assert (mine.enabled, mine.description) == (True, "edited")
        gone = await scheduler.remove_jobs(["by_code", "mine"])
        assert isinstance(gone["by_code"], JobOwnedByCode)
        assert gone["mine"] is None
        assert await scheduler.remove_jobs(["by_code"], force=True) == {"by_code": None}
