"""The made-up fleet of `mainspring serve --demo`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mainspring.core.model import State
from mainspring.dashboard.demo import demo_scheduler, fill
from tests.support.service import Serve, until


async def test_the_fleet_has_a_week_of_history_and_a_backlog() -> None:
    report: list[str] = []
    async with demo_scheduler("memory://", workers=4) as scheduler:
        await fill(scheduler, report.append, jobs=20)
        jobs = await scheduler.list_jobs(limit=100)
        owners = Counter(str(job.owner) for job in jobs.items)
        assert owners == {"api": 20, "code": 7}
        counts = await scheduler.counts()
        assert counts.total(State.SUCCEEDED) > 500
        assert counts.total(State.FAILED) > 0
        assert counts.total(State.PENDING) > 100
        failed = [run.created_at for run in (await scheduler.list_runs(state="failed")).items]
        assert failed == sorted(failed, reverse=True)  # as a reader expects of recent failures
        healths = await scheduler.jobs_health(jobs.items)
        assert Counter(one.status for one in healths)["healthy"] > 5

        async def opened() -> bool:
            return "call_partner" in await scheduler.open_breakers()

        await until(opened)
        await scheduler.stop(graceful=False)  # some of its handlers take a minute
    assert report[-1] == "the demo is complete"


def test_the_demo_leaves_nothing_behind(serve: Serve) -> None:
    started = serve("--demo")
    store = started.told["store"].removeprefix("sqlite:///")
    with started.client() as client:
        assert client.get("/api/v1/jobs").status_code == 200
    started.signal()
    assert started.ends() == 0
    assert not Path(store).parent.exists()
