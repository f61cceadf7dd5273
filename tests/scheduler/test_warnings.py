"""Odd settings, resources of processes and moments in the past are reported."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Misfire, Scheduler, State, at
from mainspring.errors import InvalidInput
from mainspring.stores.memory import MemoryStore
from tests.support import isolated_jobs
from tests.support.engine import EventRecorder, ended


@pytest.mark.parametrize("given", ["redis://localhost", "bogus", None, 1, "false"])
def test_leader_election_is_true_or_false(given: Any) -> None:
    with pytest.raises(InvalidInput, match="leader_election is True or False"):
        Scheduler("memory://", leader_election=given)


@pytest.mark.parametrize("given", ["redis://localhost", 1, "false"])
def test_configure_takes_leader_election_as_true_or_false_too(given: Any) -> None:
    scheduler = Scheduler("memory://")
    with pytest.raises(InvalidInput, match="leader_election is True or False"):
        scheduler.configure(leader_election=given)


async def test_a_process_is_given_the_resources_that_are_json() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    resources = {"region": "eu", "since": moment, "limits": {"a": [1, 2]}, "pool": object()}
    scheduler = Scheduler("memory://", resources=resources)
    read = scheduler.job(isolation="process")(isolated_jobs.read_resources)
    async with scheduler:
        runs = await read.enqueue_many([{"name": name} for name in (*resources, "none")])
        done = {run.payload["name"]: await ended(scheduler, run) for run in runs}
    names = ["limits", "region", "since"]
    for name in names:
        assert done[name].result == [names, resources[name]]
    assert done["none"].result == [names, None]
    assert done["pool"].state is State.FAILED
    for words in ("the resource 'pool' cannot be handed to a process", "object", "in the handler"):
        assert words in (done["pool"].error or "")


async def started_with(store: MemoryStore, when: datetime, **policy: Any) -> Scheduler:
    scheduler = Scheduler(store)
    scheduler.job(at(when), id="once", **policy)(lambda: "ran")
    return scheduler


async def test_a_moment_in_the_past_is_told_and_recorded_as_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    when = datetime(2001, 1, 1, tzinfo=UTC)
    scheduler = await started_with(store, when)
    recorder = EventRecorder(scheduler, "schedule.missed")
    with caplog.at_level(logging.WARNING, "mainspring"):
        async with scheduler:
            event = await recorder.until("schedule.missed")
            [run] = (await scheduler.list_runs(job="once")).items
    assert (run.state, run.reason, run.scheduled_at) == (State.SKIPPED, "misfire", when)
    assert event.data == {"first": when, "last": when, "count": 1}
    assert "job once will not run: its schedule was over (2001-01-01" in caplog.text

    caplog.clear()
    async with await started_with(store, when) as scheduler:  # told once, not at every start
        assert len((await scheduler.list_runs(job="once")).items) == 1
    assert "will not run" not in caplog.text

    later = when + timedelta(days=1)  # another moment, over as well
    async with await started_with(store, later) as scheduler:
        runs = (await scheduler.list_runs(job="once")).items
        assert {run.scheduled_at for run in runs} == {when, later}
        assert {run.state for run in runs} == {State.SKIPPED}
    assert "will not run" in caplog.text


async def test_a_moment_that_passed_while_the_program_started_still_runs() -> None:
    when = datetime.now(UTC) - timedelta(seconds=5)
    scheduler = await started_with(MemoryStore(), when, misfire=Misfire("skip", grace="1h"))
    recorder = EventRecorder(scheduler, "run.succeeded")
    async with scheduler:
        run = (await recorder.until("run.succeeded")).run
        assert run is not None
        assert (run.job_id, run.scheduled_at) == ("once", when)


async def test_a_paused_job_has_missed_nothing() -> None:
    when = datetime(2001, 1, 1, tzinfo=UTC)
    async with await started_with(MemoryStore(), when, enabled=False) as scheduler:
        assert (await scheduler.list_runs(job="once")).items == []
