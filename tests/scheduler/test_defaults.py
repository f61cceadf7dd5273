"""`Scheduler(defaults=…)`: options of jobs that do not give them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client, Scheduler
from mainspring.errors import InvalidInput
from mainspring.stores.memory import MemoryStore


async def test_job_has_the_defaults_that_it_does_not_override() -> None:
    scheduler = Scheduler("memory://", defaults={"retries": 3, "timeout": "5m"})

    @scheduler.job(retries=1)
    def one() -> None: ...

    @scheduler.job
    def other() -> None: ...

    async with scheduler:
        first, second = await scheduler.get_job("one"), await scheduler.get_job("other")
        assert (first.policy.retries, first.policy.timeout) == (1, timedelta(minutes=5))
        assert (second.policy.retries, second.policy.timeout) == (3, timedelta(minutes=5))
        assert first.origins == {"retries": "job", "timeout": "defaults"}
        assert second.origins == {"retries": "defaults", "timeout": "defaults"}
        job = await scheduler.add_job("made", handler=other, queue="mail")
        assert (job.policy.retries, job.policy.queue) == (3, "mail")
        assert job.policy_origins() is not None
        assert (job.policy_origins() or {})["queue"] == "job"
        assert (job.policy_origins() or {})["priority"] == "built_in"


async def test_other_defaults_at_the_next_start_reach_the_jobs_of_the_code_alone() -> None:
    store = MemoryStore()
    for retries in (3, 5):
        scheduler = Scheduler(store, defaults={"retries": retries}, workers=0)

        @scheduler.job
        def work() -> None: ...

        async with scheduler:
            if retries == 3:
                await scheduler.add_job("made", handler="work", schedule="1h")
            assert (await scheduler.get_job("work")).policy.retries == retries
            job = await scheduler.get_job("made")
            assert job.policy.retries == 3
    async with Client(store, defaults={"retries": 7}) as client:
        again = await client.add_job("made", handler="work", schedule="1h", replace=True)
        assert (again.policy.retries, again.next_run_at) == (7, job.next_run_at)


async def test_edit_makes_a_value_the_jobs_own() -> None:
    async with Client("memory://", defaults={"retries": 3}) as client:
        await client.add_job("made", handler="work")
        edited = await client.update_job("made", retries=4, retry_delay="9s")
        assert edited.origins == {"retries": "job", "backoff": "job"}


async def test_defaults_of_one_job_replace_those_of_the_scheduler() -> None:
    async with Client("memory://", defaults={"retries": 3, "queue": "mail"}) as client:
        job = await client.add_job("made", handler="work", defaults={"retries": 9})
        assert (job.policy.retries, job.policy.queue) == (9, "default")


async def test_default_timeout_of_a_webhook_is_the_schedulers_if_it_fits() -> None:
    async with Client("memory://", defaults={"timeout": "5m", "isolation": "process"}) as client:
        job = await client.add_job("call", webhook="https://example.org/")
        assert job.policy.timeout == timedelta(minutes=5)
        assert job.origins == {"timeout": "defaults"}


def test_wrong_defaults_are_refused_when_the_scheduler_is_made() -> None:
    with pytest.raises(InvalidInput, match=r"defaults\.retries: retries is 0 or more, not -1"):
        Scheduler("memory://", defaults={"retries": -1})


@pytest.mark.parametrize(
    ("defaults", "given", "left_out"),
    [
        ({"delivery": "at_most_once"}, {"retries": 3}, "delivery"),
        ({"retries": 3}, {"delivery": "at_most_once"}, "retries"),
        ({"isolation": "process"}, {"delivery": "effect_once"}, "isolation"),
        ({"isolation": "process", "memory_limit": 9}, {"delivery": "effect_once"}, "memory_limit"),
        ({"delivery": "effect_once"}, {"isolation": "process"}, "delivery"),
        ({"memory_limit": "1GB"}, {"retries": 1}, "memory_limit"),
        ({"memory_limit": 9, "isolation": "process"}, {"isolation": "thread"}, "memory_limit"),
        ({"concurrency_key": "db", "concurrency": 2}, {"concurrency": None}, "concurrency_key"),
        ({"concurrency_key": "db"}, {"retries": 1}, "concurrency_key"),
        ({"rate_key": "api"}, {"retries": 1}, "rate_key"),
    ],
)
async def test_default_gives_way_to_what_the_job_says(
    tmp_path: Path, defaults: Any, given: Any, left_out: str
) -> None:
    async with Client(f"sqlite:///{tmp_path}/jobs.db", defaults=defaults) as client:
        job = await client.add_job("work", handler="elsewhere", **given)
        assert job.origins is not None
        assert left_out not in job.origins
        assert {job.origins[name] for name in given} == {"job"}
