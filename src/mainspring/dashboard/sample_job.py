"""A job to try things out with: it needs no code and no network.

`mainspring serve` has the handler, unless it serves a program of the user's (`--app`). A page
offers the job only if a live worker has the handler, so that the job really runs. A user's own
handler is never used for this, because nobody knows what it does. A webhook is not used either,
because webhooks may not call the service's own address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from mainspring.core.context import RunContext
from mainspring.engine.live_workers import LiveWorker

__all__ = ["SAMPLE_HANDLER", "run_sample", "sample_job"]

SAMPLE_HANDLER = "mainspring.sample"
STEPS = 5


async def run_sample(
    ctx: RunContext, name: str = "you", step_seconds: float = 0.4
) -> dict[str, Any]:
    """Writes a few log lines, shows progress and returns a result."""
    ctx.log.info("hello %s, this is attempt %s of run %s", name, ctx.attempt, ctx.run_id)
    for step in range(1, STEPS + 1):
        await asyncio.sleep(step_seconds)
        ctx.progress(step, STEPS, f"step {step} of {STEPS}")
    ctx.log.info("all %s steps are done", STEPS)
    return {"greeting": f"hello {name}", "steps": STEPS}


def sample_job(workers: Iterable[LiveWorker]) -> dict[str, Any] | None:
    """The document that creates the job by `POST /api/v1/jobs`; None if no live worker could run
    it."""
    if not any(worker.takes(SAMPLE_HANDLER, "default") for worker in workers):
        return None
    return {
        "id": "sample",
        "handler": SAMPLE_HANDLER,
        "payload": {"name": "you"},
        "schedule": "* * * * *",
        "description": "A sample: says hello every minute, in five steps. Delete it when you like.",
        "tags": ["sample"],
        "retryAttempts": 2,
        "timeout": "30s",
    }
