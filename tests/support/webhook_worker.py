"""A worker in a process of its own that makes calls, so that a test can kill it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

WORKER = """
import sys
from mainspring import Scheduler
from mainspring.webhooks import WebhookSettings

webhooks = WebhookSettings(allow=["127.0.0.1"])
Scheduler(sys.argv[1], lease="8s", poll="50ms", webhooks=webhooks).run()
"""


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, url)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
