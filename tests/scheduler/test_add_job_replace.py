"""`add_job(replace=True)` at every start, and jobs that a producer adds for a worker's handler."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Scheduler
from mainspring.errors import (
    HandlerNotFound,
    JobExists,
)
from mainspring.stores.memory import MemoryStore
from mainspring.webhooks import new_signing_secret
from tests.support.engine import EventRecorder, ended


async def program(scheduler: Scheduler, **changes: Any) -> Any:
    """What a program does at each of its starts."""

    def greet(name: str) -> str:
        return name

    def shout(name: str) -> str:
        return name.upper()

    handlers = {"greet": scheduler.job()(greet), "shout": scheduler.job()(shout)}
    await scheduler.start()
    options: dict[str, Any] = {"handler": "greet", "schedule": "1h", "payload": {"name": "Ada"}}
    options |= changes
    options["handler"] = handlers[options["handler"]]
    return await scheduler.add_job("greet-ada", replace=True, **options)


async def test_the_same_job_at_each_start_changes_nothing() -> None:
    store = MemoryStore()
    first = Scheduler(store)
    job = await program(first)
    await first.stop()
    second = Scheduler(store)
    recorder = EventRecorder(second, "job.*")
    assert await program(second) == job
    assert job.id not in [event.job_id for event in recorder.events]
    with pytest.raises(JobExists, match="replace=True"):
        await second.add_job("greet-ada", handler="greet", payload={"name": "Ada"})
    await second.stop()


async def test_another_definition_takes_its_place_and_stays_paused() -> None:
    store = MemoryStore()
    first = Scheduler(store)
    job = await program(first, priority=9, tags=["a"])
    await first.pause_job(job.id)
    await first.stop()
    second = Scheduler(store)
    changed = await program(second, handler="shout", schedule="2h", enabled=True)
    assert (changed.handler, changed.enabled, changed.next_run_at) == ("shout", False, None)
    assert (changed.policy.priority, changed.tags) == (5, ())
    assert changed.created_at == job.created_at
    assert changed == await second.get_job(job.id)
    resumed = await second.resume_job(job.id)
    assert resumed.next_run_at is not None
    run = await second.trigger(job.id)
    assert (await ended(second, run)).result == "ADA"
    await second.stop()


async def test_a_webhook_keeps_its_signing_secret() -> None:
    scheduler = Scheduler("memory://")
    webhook = {"url": "https://a.example/", "headers": {"Authorization": "Bearer one"}}
    async with scheduler:
        first = await scheduler.add_job("call", webhook=webhook)
        assert await scheduler.add_job("call", webhook=webhook, replace=True) == first
        other = {**webhook, "headers": {"Authorization": "Bearer two"}}
        second = await scheduler.add_job("call", webhook=other, replace=True)
        assert first.webhook is not None
        assert second.webhook is not None
        assert second.webhook.signing == first.webhook.signing
        assert second.webhook.secret_headers != first.webhook.secret_headers
        signed = {**other, "signing_secret": new_signing_secret()}
        third = await scheduler.add_job("call", webhook=signed, replace=True)
        assert third.webhook is not None
        assert third.webhook.signing != first.webhook.signing
        assert await scheduler.add_job("call", webhook=signed, replace=True) == third


async def test_a_producer_adds_jobs_for_a_handler_that_a_worker_has() -> None:
    store = MemoryStore()
    async with Scheduler(store, workers=0) as producer:
        job = await producer.add_job("mail-ada", handler="send", payload={"to": "ada"})
        assert job.handler == "send"
        await producer.update_job("mail-ada", handler="send_mail")
        run = await producer.trigger("mail-ada")
    worker = Scheduler(store)

    @worker.job()
    def send_mail(to: str) -> str:
        return to

    async with worker:
        assert (await ended(worker, run)).result == "ada"
        with pytest.raises(HandlerNotFound, match="send_mail"):
            await worker.add_job("another", handler="send_male", payload={"to": "ada"})
