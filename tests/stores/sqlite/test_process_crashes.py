"""Real processes under kill -9 and SIGSTOP, in short. `make chaos` runs more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from mainspring import State
from mainspring.core.model import Outcome
from tests.support.crash_worker import build
from tests.support.effect_counts import effect_test
from tests.support.process_crashes import WorkerProcesses, crash_test, read_log


async def test_killed_workers_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    account = await crash_test(tmp_path, runs=600, kills=8, stops=1, seed=1, timeout=240)
    assert account.kills == 8


async def test_a_worker_that_was_stopped_beyond_its_lease_is_refused(tmp_path: Path) -> None:
    with WorkerProcesses.on(tmp_path, 1) as workers:
        producer = build(workers.url, workers.logs / "producer.log", workers=0)
        async with producer:
            run = await producer.enqueue("free", {"seconds": 1.5})
            first = workers.start()
            while not any(e.what == "begin" for e in read_log(workers.logs)):
                await asyncio.sleep(0.05)
            with workers.frozen_without_lock(first):
                workers.start()
                done = await producer.wait(run.id, timeout=60)
            deadline = time.monotonic() + 30
            while not any(e.what == "lost" and e.pid == first.pid for e in read_log(workers.logs)):
                assert time.monotonic() < deadline, "the worker did not notice that it lost the run"
                await asyncio.sleep(0.1)
            after = await producer.get_run(run.id)
        assert done.state is State.SUCCEEDED
        assert after == done
        outcomes = [attempt.outcome for attempt in after.attempts]
        assert outcomes == [Outcome.LOST, Outcome.SUCCEEDED]
        assert after.result["pid"] != first.pid
        assert after.token == 2


@pytest.mark.thorough
async def test_a_handler_killed_anywhere_leaves_one_effect(tmp_path: Path) -> None:
    tally = await effect_test(tmp_path, runs=240, kills=10, stops=1, seed=1, timeout=240)
    assert tally.kills == 10
    assert tally.again > 0, "no kill met a handler: it shows nothing"
