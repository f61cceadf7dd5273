"""Workers that make calls, killed over and over: every run is delivered, and none without need."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mainspring import State
from mainspring.core.model import Outcome
from tests.support.webhook_endpoint import endpoint, response, scheduler
from tests.support.webhook_worker import worker

RUNS = 1_000
WORKERS = 3
KILLS = 25


@pytest.mark.timeout(400)
async def test_every_run_is_delivered(tmp_path: Path) -> None:
    url, rng = f"sqlite:///{tmp_path}/jobs.db", random.Random(1)
    async with endpoint() as end, scheduler(store=url, workers=0) as mainspring:

        def answer(request: object) -> bytes:
            return response(500 if rng.random() < 0.05 else 200)

        end.answer = answer
        end.delay = lambda: rng.random() * 0.1
        await mainspring.add_job(
            "call", webhook={"url": end.url, "body": {}}, retries=20, retry_delay="50ms"
        )
        queued = await mainspring.enqueue_many("call", [None] * RUNS)
        async with AsyncExitStack() as stack:
            live = [await stack.enter_async_context(worker(url)) for _ in range(WORKERS)]
            for _ in range(KILLS):
                await asyncio.sleep(rng.random())
                doomed = live.pop(rng.randrange(len(live)))
                doomed.send_signal(signal.SIGKILL)
                await doomed.wait()
                live.append(await stack.enter_async_context(worker(url)))
            runs = [await mainspring.wait(run.id, timeout=300) for run in queued]
    calls = Counter(request.headers["webhook-id"] for request in end.requests)
    assert set(calls) == {run.id for run in queued}
    lost = 0
    for run in runs:
        assert run.state is State.SUCCEEDED or run.reason == "poison"
        gone = sum(attempt.outcome is Outcome.LOST for attempt in run.attempts)
        told = len(run.attempts) - gone
        assert told <= calls[run.id] <= len(run.attempts), "one call an attempt, and no more"
        lost += gone
    assert lost > 0, "some were killed in the middle of a call"
    print(f"{RUNS} runs, {len(end.requests)} calls, {lost} attempts lost with their workers")
