"""Spans of attempts, and the `traceparent` that goes on to endpoints. In a process of its own:
an SDK once set up stays for good."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio
from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from mainspring import RunContext, Scheduler
from mainspring.webhooks import WebhookSettings

kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
scheduler = Scheduler("memory://", webhooks=WebhookSettings(allow=["127.0.0.1"]))
inside = {}


@scheduler.job()
async def on_the_loop(ctx: RunContext) -> None:
    inside["loop"] = trace.get_current_span().get_span_context()


@scheduler.job()
def in_a_thread() -> None:
    inside["thread"] = trace.get_current_span().get_span_context()
    raise ValueError("boom")


async def main() -> None:
    heard = []

    async def endpoint(request: web.Request) -> web.Response:
        heard.append(request.headers["traceparent"])
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_post("/", endpoint)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with scheduler:
        await scheduler.add_job("hook", webhook=f"http://127.0.0.1:{port}/")
        for name in ("on_the_loop", "in_a_thread", "hook"):
            run = await scheduler.enqueue(name)
            await scheduler.wait(run.id, 20)
    await runner.cleanup()
    spans = {span.name: span for span in kept.get_finished_spans()}
    assert set(spans) == {"run on_the_loop", "run in_a_thread", "run hook", "POST"}, set(spans)
    assert spans["run on_the_loop"].context == inside["loop"]
    assert spans["run in_a_thread"].context == inside["thread"]
    assert not spans["run in_a_thread"].status.is_ok
    assert spans["run hook"].attributes["mainspring.job.id"] == "hook"
    context = spans["POST"].context
    assert spans["POST"].parent.span_id == spans["run hook"].context.span_id
    [told] = heard
    assert told.startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-0")


asyncio.run(main())
"""


def test_attempts_are_spans_and_endpoints_are_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
