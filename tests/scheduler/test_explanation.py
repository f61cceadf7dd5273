"""`explain`: why a run, a job or a slot did not run, or not yet; and when a job ran last."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Breaker, Scheduler
from mainspring.errors import InvalidInput, JobNotFound
from mainspring.scheduler.explanation import Reason
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim
from mainspring.testing import VirtualClock, run_virtual
from mainspring.testing.store_calls import claim_runs
from tests.support.doc_examples import DOCS
from tests.support.engine import LONG, EventRecorder, ended
from tests.support.scheduler_fixtures import Make
from tests.support.scheduler_kill import kill


async def test_a_run_held_by_a_limit_says_so(make: Make) -> None:
    scheduler = make()
    release = asyncio.Event()

    @scheduler.job(concurrency=1)
    async def one_at_a_time() -> None:
        await release.wait()

    for name in ("a", "b"):
        scheduler.job(id=name, concurrency=1, concurrency_key="printer")(release.wait)
    async with scheduler:
        recorder = EventRecorder(scheduler, "run.started")
        first = await one_at_a_time.enqueue()
        await recorder.until("run.started")
        second = await one_at_a_time.enqueue()
        why = await scheduler.explain(second.id)
        limit = "its concurrency limit is reached: 1 run is running, 1 may"
        assert (why.code, why.sentence) == ("concurrency", f"{limit}: {first.id}")
        assert why.facts["running"] == [first.id]
        assert (await scheduler.explain(first.id)).problem is None
        await scheduler.enqueue("a")
        await recorder.until("run.started", 2)
        why = await scheduler.explain((await scheduler.enqueue("b")).id)
        assert "with the key 'printer'" in why.sentence
        release.set()
        await ended(scheduler, second)
        assert (await scheduler.explain(second.id)).problem is None


async def test_without_a_worker_for_it_a_run_says_what_is_missing(make: Make, file: str) -> None:
    producer = make(file, workers=0)

    @producer.job(queue="mail")
    async def send() -> None: ...

    async with producer:
        run = await send.enqueue()
        later = await send.options(delay="1h").enqueue()
        assert (await producer.explain(run.id)).problem == "no worker is alive"
        why = (await producer.explain(later.id)).problem
        assert why is not None
        assert why.startswith("its time has not come: it is due in ")
        async with make(file):
            await _told(producer, run.id, "no live worker has its handler 'send'")
        other = make(file, queues=["default"])
        other.job(id="send", queue="mail")(send)
        async with other:
            await _told(producer, run.id, "takes the queue 'mail'")
            assert (await producer.explain(run.id)).code == "no_worker_for_queue"


async def _told(scheduler: Scheduler, run_id: str, words: str) -> None:
    async with asyncio.timeout(LONG):
        while words not in ((await scheduler.explain(run_id)).problem or ""):
            await asyncio.sleep(0.01)


async def test_a_retry_that_is_to_come_and_a_follower_say_what_they_wait_for(make: Make) -> None:
    scheduler = make()

    @scheduler.job(retries=1, retry_delay="1h")
    async def shaky() -> None:
        raise ValueError("no network")

    async with scheduler:
        recorder = EventRecorder(scheduler, "run.retrying")
        run = await shaky.enqueue()
        await recorder.until("run.retrying")
        follower = await shaky.options(after=[run.id]).enqueue()
        why = (await scheduler.explain(run.id)).problem
        assert why is not None
        assert why.startswith("its last attempt failed (ValueError: no network): it is due in ")
        waits = await scheduler.explain(follower.id)
        assert waits.sentence.startswith(f"it waits for the end of {run.id} ({why[:50]}")
        assert (waits.code, waits.facts["upstream"]) == ("waiting", [run.id])
        await scheduler.cancel(run.id, reason="not today")
        assert (await scheduler.explain(run.id)).sentence == "it was cancelled: not today"


async def test_every_process_sees_the_breaker_open(make: Make, file: str) -> None:
    worker, looking = make(file), make(file, workers=0)
    for scheduler in (worker, looking):

        @scheduler.job(id="call", breaker=Breaker(failures=1, reset="1h"))
        async def call() -> None:
            raise ValueError

        @scheduler.job(id="plain")
        async def plain() -> None: ...

    recorder = EventRecorder(worker, "breaker.opened")
    async with worker, looking:
        await worker.enqueue("call")
        await recorder.until("breaker.opened")
        assert (await worker.job_health("call")).breaker == "open"
        assert (await looking.job_health("call")).breaker == "open"
        assert (await looking.job_health("call")).breaker_until is not None
        assert (await looking.job_health("plain")).breaker == "none"


# Slots and jobs, on virtual time: it begins at 2030-01-01T00:00:00Z.

MINUTE = 60
TEN_MINUTES = "*/10 * * * *"
"""A story of an hour costs a tenth of one of a working day, on virtual time too."""


class SharedStore:
    """A store on virtual time, and programs around it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock)

    def program(self, schedule: str | None = "0 * * * *", **options: Any) -> Scheduler:
        """A program with one job, `report`, which takes as long as `takes` says."""
        takes = options.pop("takes", 0)
        names = ("workers", "queues", "retention", "enabled")
        settings = {n: options.pop(n) for n in names if n in options}
        scheduler = Scheduler(self.store, clock=VirtualClock(), inline=True, poll="1m", **settings)

        @scheduler.job(schedule, **options)
        async def report() -> None:
            await asyncio.sleep(takes)

        return scheduler


Story = Callable[[SharedStore], Awaitable[None]]


def virtual(story: Story) -> Callable[[], None]:
    def test() -> None:
        async def main() -> None:
            await story(SharedStore())

        run_virtual(main)

    test.__name__ = story.__name__
    return test


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2030, 1, 1, hour, minute, tzinfo=UTC)


async def until(scheduler: Scheduler, moment: datetime) -> None:
    await asyncio.sleep((moment - await scheduler.now()).total_seconds())


NOT_YET = "its time has not come:"
CRON_IN_WORDS = "is not a slot of its schedule (At minute 0 past every hour, UTC): the nearest"
SLOTS: list[tuple[dict[str, Any], datetime, datetime | None, str, str]] = [
    ({}, at(1, 1), at(1), "succeeded", "it ran, and succeeded at 2030-01-01T01:00:00Z"),
    ({"schedule": "5m"}, at(0, 1), at(0, 5), "not_due", f"{NOT_YET} the slot is in 4 minutes"),
    ({}, at(0, 30), at(1), "not_due", f"{NOT_YET} the slot is in 30 minutes"),
    ({}, at(0, 30), None, "not_due", "its next slot is at 2030-01-01T01:00:00Z, in 30 minutes"),
    (
        {},
        at(0),
        at(3, 37),
        "not_a_slot",
        f"2030-01-01T03:37:00Z {CRON_IN_WORDS} are 2030-01-01T03:00:00Z (before) and"
        " 2030-01-01T04:00:00Z (after)",
    ),
    (
        {},
        at(0, 1),
        at(0) - timedelta(hours=1),
        "not_created",
        "the job did not exist yet: it was created at 2030-01-01T00:00:00Z",
    ),
    (
        {"retention": "10m"},
        at(2, 30),
        at(1),
        "pruned",
        "its run is not kept any more: runs are deleted 10 minutes after they have ended",
    ),
    (
        {"schedule": "2030-01-01T01:00:00Z"},
        at(1, 1),
        None,
        "schedule_over",
        "its schedule is over: its last slot was at 2030-01-01T01:00:00Z",
    ),
]


@pytest.mark.parametrize(
    ("options", "now", "slot", "code", "sentence"), SLOTS, ids=[row[3] for row in SLOTS]
)
def test_a_slot_is_explained_by_its_code_and_a_sentence(
    options: dict[str, Any], now: datetime, slot: datetime | None, code: str, sentence: str
) -> None:
    async def main() -> None:
        async with SharedStore().program(**options) as scheduler:
            await until(scheduler, now)
            explanation = await scheduler.explain("report", slot)
            assert (explanation.code, explanation.sentence) == (code, sentence)
            assert slot in (None, explanation.at)
            for edge in (datetime.min, datetime.max):
                odd = await scheduler.explain("report", edge.replace(tzinfo=UTC))
                assert "is not a slot of its schedule" in odd.sentence

    run_virtual(main)


@virtual
async def test_what_is_well_and_which_slots_are_near_are_facts(shared: SharedStore) -> None:
    async with shared.program() as scheduler:
        now = await scheduler.explain("report")
        assert (now.is_well, now.facts) == (True, {"next_slot": at(1)})
        near = await scheduler.explain("report", at(3, 37))
        assert near.facts == {"before": at(3), "after": at(4)}
        await until(scheduler, at(1, 1))
        assert (await scheduler.explain("report", at(1))).run_id == "report@20300101T010000Z"


@virtual
async def test_a_paused_job_says_so_for_now_and_for_its_slots(shared: SharedStore) -> None:
    async with shared.program() as scheduler:
        await scheduler.pause_job("report")
        await until(scheduler, at(1, 30))
        for moment in (None, at(1), at(2)):
            explanation = await scheduler.explain("report", moment)
            assert explanation.code == "paused"
            assert explanation.sentence == "the job is paused, so no slot fires"
        await scheduler.resume_job("report")
        explanation = await scheduler.explain("report", at(1))
        assert explanation.code == "no_record"
        assert "the job was changed at 2030-01-01T01:30:00Z, and may have been paused" in (
            explanation.sentence
        )


@virtual
async def test_a_paused_follower_says_so(shared: SharedStore) -> None:
    scheduler = shared.program(None)

    @scheduler.job(after="report")
    async def load() -> None: ...

    async with scheduler:
        await scheduler.pause_job("load")
        await scheduler.trigger("report")
        await asyncio.sleep(1)
        assert (await scheduler.list_runs(job="load")).items == []
        explanation = await scheduler.explain("load")
        assert (explanation.code, explanation.is_well) == ("paused", False)
        assert explanation.sentence == "the job is paused, so no run of it is made after report"
        await scheduler.resume_job("load")
        assert (await scheduler.explain("load")).code == "no_schedule"


@virtual
async def test_a_slot_while_firing_is_switched_off_on_every_worker(shared: SharedStore) -> None:
    off = "firing is switched off (enabled=False) on every worker that is alive."
    async with shared.program(TEN_MINUTES, enabled=False) as scheduler:
        await until(scheduler, at(0, 5))
        explanation = await scheduler.explain("report")
        assert (explanation.code, explanation.at) == ("disabled", None)
        assert explanation.sentence == f"no slot fires: {off} Start one that fires"
        await until(scheduler, at(0, 15))
        late = "its slot at 2030-01-01T00:10:00Z has not been fired for 5 minutes"
        [worker] = await scheduler.list_workers()
        assert worker.fires is False
        for moment in (None, at(0, 10)):
            explanation = await scheduler.explain("report", moment)
            assert (explanation.code, explanation.at, explanation.is_well) == (
                "disabled",
                at(0, 10),
                False,
            )
            assert explanation.sentence == f"{late}: {off} Start one that fires"
            assert explanation.facts["workers"] == [worker.id]
        async with shared.program(workers=0) as looking:  # by the worker's note
            assert (await looking.explain("report")).code == "disabled"
        async with shared.program(TEN_MINUTES):
            await asyncio.sleep(MINUTE)
            assert (await scheduler.explain("report", at(0, 10))).code == "succeeded"
            assert (await scheduler.explain("report")).code == "not_due"


@virtual
async def test_an_overlap_names_the_run_that_had_not_ended(shared: SharedStore) -> None:
    async with shared.program(TEN_MINUTES, takes=15 * MINUTE) as scheduler:
        await until(scheduler, at(0, 21))
        explanation = await scheduler.explain("report", at(0, 20))
        first = "report@20300101T001000Z"
        assert (explanation.code, explanation.facts) == ("overlap", {"unfinished": [first]})
        assert explanation.sentence == (
            "an earlier run of the job had not ended, and its overlap policy is to skip:"
            f" {first}, which is running"
        )
        await until(scheduler, at(0, 27))
        explanation = await scheduler.explain("report", at(0, 20))
        assert explanation.sentence.endswith(f"{first}, which ended at 2030-01-01T00:25:00Z")


@virtual
async def test_a_running_run_names_who_holds_its_lease(shared: SharedStore) -> None:
    async with shared.program(takes=10 * MINUTE) as scheduler:
        await until(scheduler, at(1, 1))
        explanation = await scheduler.explain("report")
        [worker] = await scheduler.list_workers()
        assert (explanation.code, explanation.facts["worker"]) == ("running", worker.id)
        assert explanation.sentence.startswith(
            f"it is running: {worker.id} holds its lease until 2030-"
        )
        assert explanation.problem is None


@virtual
async def test_a_dead_worker_holds_the_lease_until_it_lapses(shared: SharedStore) -> None:
    async with shared.program(workers=0) as scheduler:
        run = await scheduler.enqueue("report")
        claim = Claim(
            worker="dead", handlers=frozenset({"report"}), limit=1, lease=timedelta(seconds=30)
        )
        await claim_runs(shared.store, claim)
        explanation = await scheduler.explain(run.id)
        assert explanation.sentence == (
            "it is running: dead holds its lease until 2030-01-01T00:00:30Z; if that worker is"
            " gone, another takes it over then"
        )
        await asyncio.sleep(MINUTE)
        explanation = await scheduler.explain(run.id)
        assert "its worker dead has not renewed its lease" in explanation.sentence
        assert explanation.sentence.endswith("no worker is alive to rescue the run: start one")
        assert explanation.problem == explanation.sentence


@virtual
async def test_slots_that_were_missed_while_no_worker_was_alive(shared: SharedStore) -> None:
    async with shared.program(TEN_MINUTES) as scheduler:
        await until(scheduler, at(0, 15))
    await asyncio.sleep(40 * MINUTE)
    async with shared.program(TEN_MINUTES) as scheduler:
        await until(scheduler, at(0, 59))
        for minute in (20, 30, 40):
            explanation = await scheduler.explain("report", at(0, minute))
            assert (explanation.code, explanation.at) == ("down", at(0, minute))
            assert explanation.sentence == (
                "it was missed: no worker was alive from 2030-01-01T00:15:00Z to"
                " 2030-01-01T00:55:00Z (stopped, stalled, or cut off from the store)"
            )
            assert explanation.facts["count"] == 3
        caught_up = await scheduler.explain("report", at(0, 50))
        assert caught_up.code == "succeeded"


@virtual
async def test_slots_that_the_misfire_policy_passed_over(shared: SharedStore) -> None:
    """Workers were alive all the time, but none had the handler."""
    async with shared.program(TEN_MINUTES, misfire="skip"):
        await asyncio.sleep(1)
    other = Scheduler(shared.store, clock=VirtualClock(), inline=True, poll="1m")
    async with other:
        await until(other, at(0, 35))
        explanation = await other.explain("report", at(0, 20))
        assert explanation.code == "no_handler"
        assert explanation.sentence == (
            "its slot at 2030-01-01T00:20:00Z has not been fired for 15 minutes: no live"
            " worker has its handler 'report'"
        )
        assert (await other.explain("report")).code == "no_handler"
        async with shared.program(TEN_MINUTES, misfire="skip") as scheduler:
            await until(scheduler, at(0, 36))
            explanation = await scheduler.explain("report", at(0, 20))
    assert (explanation.code, explanation.facts["last"]) == ("misfire", at(0, 30))
    assert explanation.sentence == (
        "it was missed: no worker fired it before 2030-01-01T00:35:00Z, more than 1 minute late,"
        ' and with misfire="skip" it does not run then'
    )


@virtual
async def test_a_due_slot_while_no_worker_is_alive(shared: SharedStore) -> None:
    async with shared.program() as scheduler:
        await until(scheduler, at(1, 30))
    async with shared.program(workers=0) as looking:
        await until(looking, at(2, 30))
        explanation = await looking.explain("report")
        assert (explanation.code, explanation.at) == ("no_worker", at(2))
        assert explanation.sentence == (
            "its slot at 2030-01-01T02:00:00Z has not been fired for 30 minutes: no worker is"
            " alive since 2030-01-01T01:30:00Z"
        )


@virtual
async def test_a_run_that_expired(shared: SharedStore) -> None:
    async with shared.program(start_deadline="1m", workers=1, takes=10 * MINUTE) as scheduler:
        await scheduler.enqueue("report")
        late = await scheduler.enqueue("report")
        await asyncio.sleep(30 * MINUTE)
        explanation = await scheduler.explain(late.id)
        assert explanation.code == "expired"
        assert explanation.sentence == (
            "its start deadline (2030-01-01T00:01:00Z) had passed before a worker could start it"
        )


@virtual
async def test_a_slot_whose_run_was_pruned_because_newer_ones_are_kept(shared: SharedStore) -> None:
    async with shared.program(TEN_MINUTES, history=2) as scheduler:
        await until(scheduler, at(0, 49))
        assert (await scheduler.explain("report", at(0, 30))).code == "succeeded"
        explanation = await scheduler.explain("report", at(0, 20))
        assert (explanation.code, explanation.sentence) == (
            "pruned",
            "its run is not kept any more: of this job the newest 2 runs are kept",
        )
        backfill = await scheduler.backfill("report", at(0, 10), at(0, 40), dry_run=True)
        assert (len(backfill.added), backfill.may_have_run) == (2, 2)


@virtual
async def test_a_follower_says_what_its_upstream_waits_for(shared: SharedStore) -> None:
    async with shared.program(workers=0) as scheduler:
        first = await scheduler.enqueue("report")
        second = await scheduler.enqueue("report", after=first.id)
        third = await scheduler.enqueue("report", after=second.id)
        explanation = await scheduler.explain(third.id)
        assert explanation.sentence == (
            f"it waits for the end of {second.id} (it waits for the end of {first.id} (no worker is"
            " alive))"
        )
        await scheduler.cancel(first.id)
        await asyncio.sleep(1)
        async with shared.program():
            await asyncio.sleep(20)
            explanation = await scheduler.explain(second.id)
            assert explanation.code == "upstream"
            assert explanation.sentence == (
                f"a run that it comes after did not succeed: {first.id} was cancelled"
            )


@virtual
async def test_a_slot_is_named_as_it_can_be_typed(shared: SharedStore) -> None:
    shared.clock.offset += 0.25
    async with shared.program(None) as scheduler:
        await scheduler.add_job("often", schedule="1h", handler="report")
        explanation = await scheduler.explain("often", at(3, 37))
        for slot in (explanation.facts["before"], explanation.facts["after"]):
            assert slot.microsecond
            assert f"{slot:%Y-%m-%dT%H:%M:%S.%fZ}" in explanation.sentence
        early = await scheduler.explain("often", at(0) - timedelta(days=1))
        assert early.code == "not_a_slot"
        first = early.facts["after"]
        assert early.sentence.endswith(f": the nearest is {first:%Y-%m-%dT%H:%M:%S.%fZ} (after)")


@virtual
async def test_a_slot_is_found_by_its_whole_milliseconds(shared: SharedStore) -> None:
    """As JSON documents show it."""
    shared.clock.offset += 0.250123
    async with shared.program("1h") as scheduler:
        slot = (await scheduler.get_job("report")).next_run_at
        assert slot is not None
        assert slot.microsecond == 250123
        shown = slot.replace(microsecond=250000)
        for moment in (shown, slot):
            explanation = await scheduler.explain("report", moment)
            assert (explanation.code, explanation.at) == ("not_due", slot)
        assert (await scheduler.explain("report", shown.replace(microsecond=249000))).code == (
            "not_a_slot"
        )
        await until(scheduler, slot + timedelta(seconds=1))
        explanation = await scheduler.explain("report", shown)
        assert (explanation.code, explanation.at) == ("succeeded", slot)


@virtual
async def test_a_job_after_a_job_that_is_gone(shared: SharedStore) -> None:
    async with shared.program(None) as scheduler:
        await scheduler.add_job("first", handler="report")
        await scheduler.add_job("second", handler="report", after="first")
        assert (await scheduler.explain("second")).sentence == (
            "it has no schedule: it runs after first"
        )
        await scheduler.remove_job("first")
        assert (await scheduler.explain("second")).sentence == (
            "it comes after first, and there is no such job"
        )


@virtual
async def test_a_failed_run_and_a_job_without_a_schedule(shared: SharedStore) -> None:
    scheduler = shared.program(None)

    @scheduler.job
    async def fail() -> None:
        raise ValueError("no network")

    async with scheduler:
        run = await scheduler.wait((await fail.enqueue()).id, "1m")
        explanation = await scheduler.explain(run)
        assert explanation.sentence == (
            "it ran, and failed at attempt 1, the last that retries=0 allows:"
            " ValueError: no network"
        )
        assert explanation.problem is None
        idle = await scheduler.explain(fail)
        assert (idle.code, idle.facts) == ("no_schedule", {"last_run": run.id})
        assert (await scheduler.explain("report", at(1))).code == "no_schedule"
        with pytest.raises(JobNotFound):
            await scheduler.explain("nobody")
        with pytest.raises(InvalidInput, match="is a run, and a time is given for a job"):
            await scheduler.explain(run.id, at(1))


@virtual
async def test_a_run_held_by_a_breaker_says_until_when_and_by_which_trial(
    shared: SharedStore,
) -> None:
    scheduler = shared.program(None)
    healthy = False

    @scheduler.job(breaker=Breaker(failures=2, reset="5m"), retries=1, retry_delay="1h")
    async def call() -> None:
        await asyncio.sleep(10)
        if not healthy:
            raise ValueError("no network")

    async with scheduler:
        failed, _ = [await call.enqueue() for _ in range(2)]
        await asyncio.sleep(11)
        run = await call.enqueue()
        await asyncio.sleep(1)
        explanation = await scheduler.explain(run.id)
        assert (explanation.code, explanation.facts["failures"]) == ("breaker_open", 2)
        assert explanation.sentence == (
            "its circuit breaker is open until 2030-01-01T00:05:10Z, after 2 failures in a row"
        )
        assert (await scheduler.explain("call")).code == "breaker_open"
        retried = await scheduler.explain(failed.id)  # its retry comes after the reset time
        assert retried.code == "not_due"
        assert retried.sentence.startswith(
            "its last attempt failed (ValueError: no network): it is"
        )
        healthy = True
        await asyncio.sleep(5 * MINUTE)
        assert (await scheduler.explain(run.id)).code == "running"
        beside = await call.enqueue()
        for _ in range(2):  # before and after a worker has seen it
            explanation = await scheduler.explain(beside.id)
            assert (explanation.code, explanation.facts["trial"]) == ("breaker_open", run.id)
            assert explanation.sentence == (
                f"its circuit breaker is half open: {run.id} is the trial, and no other run starts"
                " before it has ended"
            )
            await asyncio.sleep(0.5)
        await asyncio.sleep(MINUTE)
        for one in (run, beside):
            assert (await scheduler.explain(one.id)).code == "succeeded"


@virtual
async def test_a_run_held_by_a_rate_limit_says_when_the_next_may_start(shared: SharedStore) -> None:
    async with shared.program(None, rate="2/m") as scheduler:
        runs = await scheduler.enqueue_many("report", [None] * 3)
        await asyncio.sleep(1)
        codes = [(await scheduler.explain(run.id)).code for run in runs]
        assert sorted(codes) == ["rate_limited", "succeeded", "succeeded"]
        explanation = await scheduler.explain("report")
        assert (explanation.code, explanation.facts["rate"], explanation.facts["key"]) == (
            "rate_limited",
            "2/m",
            None,
        )
        assert explanation.sentence == (
            "its rate limit of 2/m is reached; the next start is possible at 2030-01-01T00:01:03Z"
        )
        assert explanation.facts["next_start"] == at(0, 1) + timedelta(seconds=3)
        assert explanation.run_id is not None
        held = await scheduler.wait(explanation.run_id, "2m")
        assert held.started_at is not None
        assert held.started_at - explanation.facts["next_start"] < timedelta(seconds=1)


@virtual
async def test_a_slot_that_is_due_and_not_fired_yet(shared: SharedStore) -> None:
    """The clock was set forward by ten minutes, and the worker has not looked since."""
    async with shared.program() as scheduler:
        await until(scheduler, at(0, 55))
        shared.clock.offset += 10 * MINUTE
        explanation = await scheduler.explain("report")
        [worker] = await scheduler.list_workers()
        assert (explanation.code, explanation.at) == ("not_fired", at(1))
        assert explanation.facts["workers"] == [worker.id]
        assert explanation.sentence == (
            "its slot at 2030-01-01T01:00:00Z has not been fired for 5 minutes: worker"
            f" {worker.id}, last seen 10 minutes ago, fires it within seconds if it is alive"
        )
        await asyncio.sleep(10)
        assert (await scheduler.explain("report", at(1))).code == "succeeded"


@virtual
async def test_a_node_run_whose_worker_is_gone(shared: SharedStore) -> None:
    async with shared.program(None, each_node=True) as scheduler:
        [own] = await scheduler.list_workers()
        dead = shared.program(None, each_node=True)
        await dead.start()
        await asyncio.sleep(1)
        [node] = {one.id for one in await dead.list_workers()} - {own.id}
        kill(dead)
        run = await scheduler.trigger("report")
        run_id = run.id.replace(own.id, node)
        await asyncio.sleep(5)
        explanation = await scheduler.explain(run_id)
        assert (explanation.code, explanation.sentence) == (
            "no_capacity",  # it still counts as alive
            f"it has been due for 5 seconds, and its node {node} was not free yet",
        )
        await _until_code(scheduler, run_id, "node_gone")
        explanation = await scheduler.explain(run_id)
        assert (explanation.sentence, explanation.facts) == (
            f"its node {node} is gone: the run ends in about a minute",
            {"node": node},
        )
        await scheduler.wait(run_id, "3m")
        explanation = await scheduler.explain(run_id)
        assert (explanation.code, explanation.sentence) == (
            "node_gone",
            f"its node {node} ended before it took the run",
        )


async def _until_code(scheduler: Scheduler, name: str, code: str) -> None:
    async with asyncio.timeout(5 * MINUTE):
        while (await scheduler.explain(name)).code != code:
            await asyncio.sleep(1)


async def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    place = tmp_path / "jobs.db"
    scheduler = Scheduler(f"sqlite:///{place}", workers=0)

    @scheduler.job("1h")
    async def report() -> None: ...

    async with scheduler:
        run = await scheduler.enqueue("report")
        damage(place, "UPDATE mainspring_runs SET payload = '{' WHERE id = ?", run.id)
        explanation = await scheduler.explain(run.id)
        assert explanation.code == "unreadable"
        assert explanation.sentence.startswith("its record cannot be read: ")
        assert "payload" in explanation.sentence
        body = "UPDATE mainspring_jobs SET schedule = '{' WHERE id = ?"
        damage(place, body, "report")
        for moment in (None, await scheduler.now()):
            explanation = await scheduler.explain("report", moment)
            assert explanation.code == "unreadable"
            assert "schedule" in explanation.sentence


def damage(place: Path, sql: str, name: str) -> None:
    with closing(sqlite3.connect(place)) as connection, connection:
        assert connection.execute(sql, (name,)).rowcount == 1


def test_the_page_lists_every_code() -> None:
    page = (DOCS / "reference" / "explanations.md").read_text()
    assert [code for code in Reason if f"`{code}`" not in page] == []
