"""Messages for common mistakes: what was given, what is allowed, what to write instead."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Scheduler, every
from mainspring.errors import (
    InvalidArguments,
    InvalidInput,
    JobNotFound,
    UnknownOption,
)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("retry", "retries"),
        ("retires", "retries"),
        ("max_retries", "retries"),
        ("tz", "timezone"),
        ("timezon", "timezone"),
        ("cron", "schedule"),
        ("run_at", "schedule"),
        ("kwargs", "payload"),
        ("max_instances", "concurrency"),
        ("depends_on", "after"),
        ("runOnStart", "run_on_start"),
        ("maxRetries", "retries"),
        ("retryDelay", "retry_delay"),
        ("maxConcurrent", "concurrency"),
        ("enableCircuitBreaker", "breaker"),
        ("executionType", "delivery"),
        ("historyRetention", "retention"),
        ("data", "payload"),
    ],
)
def test_an_unknown_option_of_a_job_is_told_with_its_neighbour(given: str, meant: str) -> None:
    scheduler = Scheduler("memory://")
    options: dict[str, Any] = {given: 3}
    with pytest.raises(UnknownOption) as caught:
        scheduler.job(**options)
    assert f"unknown option {given!r} (did you mean {meant!r}?); options are" in str(caught.value)
    for name in ("timezone", "enabled", "payload", "tags", "jitter", "metadata", "on_error", "id"):
        assert f" {name}" in str(caught.value)
    assert caught.value.unknown == [given]
    scheduler.job(id="known")(lambda: None)
    with pytest.raises(UnknownOption, match=f"did you mean '{meant}'"):
        scheduler.draft("another", handler="known", **options)


def tick() -> None: ...


def test_the_call_that_other_schedulers_take_is_told_with_ours() -> None:
    scheduler: Any = Scheduler("memory://")
    with pytest.raises(InvalidInput, match=r"add_job\('tick', handler=tick, schedule=\"5m\"\)`"):
        scheduler.add_job(tick, "interval", seconds=5)


def test_methods_and_settings_of_other_schedulers_are_told_with_ours() -> None:
    scheduler: Any = Scheduler("memory://")
    job = scheduler.job(tick)
    with pytest.raises(AttributeError, match=r"write `await tick\.enqueue\(…\)`, or in plain code"):
        job.delay()
    with pytest.raises(AttributeError, match=r"write @scheduler\.job"):
        scheduler.scheduled_job("interval", seconds=5)
    assert not hasattr(job, "nothing")
    assert not hasattr(scheduler, "nothing")
    settings: dict[str, Any] = {"maxConcurrentJobs": 5}
    with pytest.raises(UnknownOption, match="did you mean 'workers'"):
        Scheduler("memory://", **settings)


async def test_a_function_given_to_add_job_is_registered_under_the_id_of_the_job() -> None:
    async with Scheduler("memory://") as scheduler:
        await scheduler.add_job("greet", handler=lambda to: f"hello {to}")
        run = await scheduler.enqueue("greet", {"to": "ada"})
        assert (await scheduler.wait(run)).result == "hello ada"
        with pytest.raises(InvalidArguments):
            await scheduler.enqueue("greet", {"too": "ada"})
        with pytest.raises(UnknownOption):
            await scheduler.add_job("other", handler=tick, **{"retires": 3})  # type: ignore[arg-type]
        assert "other" not in scheduler.handlers


async def test_unknown_options_of_an_edit_and_of_an_enqueue_are_told() -> None:
    scheduler = Scheduler("memory://")
    scheduler.job(id="known")(lambda: None)
    async with scheduler:
        await scheduler.add_job("a", handler="known")
        wrong: dict[str, Any] = {"priorty": 5}
        with pytest.raises(UnknownOption, match=r"'priorty' \(did you mean 'priority'\?\)"):
            await scheduler.update_job("a", **wrong)
        with pytest.raises(UnknownOption, match=r"'eta' \(did you mean 'delay'\?\)"):
            await scheduler.enqueue("a", **{"eta": 5})  # type: ignore[arg-type]
        with pytest.raises(UnknownOption, match="arguments go in its payload"):
            await scheduler.enqueue("a", **{"to": "ada"})  # type: ignore[arg-type]
        with pytest.raises(JobNotFound, match="there is no job 'knwon': did you mean 'known'"):
            await scheduler.enqueue("knwon")
        with pytest.raises(InvalidInput, match="a job is named by its id"):
            await scheduler.enqueue(5)  # type: ignore[arg-type]


async def test_a_job_is_named_by_its_id_by_its_function_or_as_it_was_read() -> None:
    scheduler = Scheduler("memory://")

    @scheduler.job
    def send(to: str = "") -> str:
        return to

    async with scheduler:
        for job in ("send", send, await scheduler.get_job(send)):
            run = await scheduler.enqueue(job, {"to": "ada"})
            assert (await scheduler.wait(run.id, 10)).result == "ada"
            assert run.job_id == "send"
            assert (await scheduler.pause_job(job)).enabled is False
            assert (await scheduler.resume_job(job)).enabled is True
            assert (await scheduler.job_metrics(job)).job_id == "send"
        assert len((await scheduler.list_runs(job=send)).items) == 3


def test_large_bare_numbers_are_told_to_be_seconds(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler("memory://")
    with caplog.at_level(logging.WARNING):
        scheduler.job(timeout=60_000, id="a")(lambda: None)
        assert "timeout=60000 is 16 hours 40 minutes" in caplog.text
        assert "seconds" in caplog.text
        caplog.clear()
        every(300_000)
        assert "interval=300000 is 3 days 11 hours 20 minutes" in caplog.text
        caplog.clear()
        scheduler.job(86_400, timeout=3_600, id="b")(lambda: None)
        scheduler.job("60d", timeout="16h", jitter=timedelta(days=1), id="c")(lambda: None)
        stored = scheduler.code_jobs[0]
        assert stored.id == "a"
        type(stored.policy).from_dict(stored.policy.to_dict())
        assert caplog.text == ""
