"""A worker that is killed during a call: the call is delivered at least once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from mainspring import State
from mainspring.core.model import Outcome
from mainspring.webhooks import new_signing_secret
from tests.support.webhook_endpoint import endpoint, scheduler
from tests.support.webhook_worker import worker


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
async def test_a_worker_killed_in_mid_call(tmp_path: Path, delivery: Any) -> None:
    url, secret = f"sqlite:///{tmp_path}/jobs.db", new_signing_secret()
    async with endpoint() as end, scheduler(store=url, workers=0) as mainspring:
        end.hold = asyncio.Event()
        webhook = {"url": end.url, "body": {"pay": 1}, "signing_secret": secret}
        await mainspring.add_job("pay", webhook=webhook, delivery=delivery)
        run = await mainspring.trigger("pay")
        async with worker(url) as first:
            await asyncio.wait_for(end.arrived.wait(), 30)
            first.send_signal(signal.SIGKILL)
            await first.wait()
        end.hold.set()
        async with worker(url):
            run = await mainspring.wait(run.id, timeout=60)
    if delivery == "at_most_once":
        assert (run.state, run.reason) == (State.FAILED, "lost")
        assert len(end.requests) == 1
        return
    assert run.state is State.SUCCEEDED
    assert [attempt.outcome for attempt in run.attempts] == [Outcome.LOST, Outcome.SUCCEEDED]
    before, after = end.requests
    assert before.headers["webhook-id"] == after.headers["webhook-id"] == run.id
    assert before.headers["idempotency-key"] == after.headers["idempotency-key"]
    assert before.body == after.body
    assert Verifier(secret).verify(after.body, after.headers) == {"pay": 1}
