"""One trace from the request that enqueues a run to its handler and its webhook."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mainspring import GiveUp, RunContext, Scheduler
from tests.support.webhook_endpoint import ALLOW, Endpoint, response, serving

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, ReadableSpan]]:
    """The spans that have ended, by name."""
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


def in_span(name: str) -> Any:
    return trace.get_tracer_provider().get_tracer("program").start_as_current_span(name)


def traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_one_trace_leads_from_an_http_request_to_the_handler(
    spans: Callable[[], dict[str, ReadableSpan]], tmp_path: Path
) -> None:
    """The application and the worker are different programs, as far as a store can tell."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    worker, app = Scheduler(url), Scheduler(url, workers=0)

    @worker.job()
    async def ship(ctx: RunContext, order: int) -> None:
        with in_span("print the label"):
            await asyncio.sleep(0)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        tracer = trace.get_tracer_provider().get_tracer("app")
        with tracer.start_as_current_span("POST /orders", propagate.extract(headers)):
            run = await app.enqueue("ship", {"order": 1})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": run.id.encode()})

    async with worker, app:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as browser:
            sent = {"traceparent": PARENT, "tracestate": "vendor=x"}
            run_id = (await browser.post("/orders", headers=sent)).text
        run = await worker.wait(run_id, 30)
    names = ["POST /orders", "run ship", "print the label"]
    request, attempt, inside = (spans()[name] for name in names)
    assert run.trace == f"{traceparent(request)} vendor=x"
    for span, parent in ((request, PARENT), (attempt, traceparent(request))):
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == parent.split("-")[2]
    assert inside.parent == attempt.get_span_context()
    traces = {f"{one.get_span_context().trace_id:032x}" for one in (request, attempt, inside)}  # type: ignore[union-attr]
    assert traces == {PARENT.split("-")[1]}


async def test_a_later_attempt_links_to_the_enqueue(
    spans: Callable[[], dict[str, ReadableSpan]],
) -> None:
    scheduler = Scheduler("memory://")

    @scheduler.job(retries=1, retry_delay="10ms")
    async def shaky(ctx: RunContext) -> None:
        if ctx.attempt < 3:
            with in_span(f"attempt {ctx.attempt}"):
                raise GiveUp("no") if ctx.attempt == 2 else ValueError("not yet")
        with in_span("attempt 3"):
            pass

    async with scheduler:
        with in_span("request"):
            run = await shaky.enqueue()
        await scheduler.wait(run.id, 30)
        with in_span("somebody retries it"):
            await scheduler.retry(run.id)
        done = await scheduler.wait(run.id, 30)
    request = spans()["request"].get_span_context()
    assert done.trace == traceparent(spans()["request"])
    assert request is not None
    parents = [spans()[f"attempt {n}"].parent for n in (1, 2, 3)]
    assert [one and one.trace_id == request.trace_id for one in parents] == [True, False, False]
    assert spans()["run shaky"].parent is None
    [link] = spans()["run shaky"].links
    assert (link.context.trace_id, link.context.span_id) == (request.trace_id, request.span_id)


async def test_every_way_to_enqueue_keeps_the_trace(
    spans: Callable[[], dict[str, ReadableSpan]], tmp_path: Path
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", workers=0)

    @scheduler.job()
    async def first() -> None: ...

    @scheduler.job(after="first")
    async def second() -> None: ...

    @scheduler.job()
    async def third() -> None: ...

    async with scheduler:
        own = sqlite3.connect(tmp_path / "jobs.db")
        with in_span("before"):
            held = await third.options(dedupe_key="k").enqueue()
        with in_span("request"):
            duplicate = await third.options(dedupe_key="k").enqueue()
            runs = [
                await first.enqueue(),
                await scheduler.trigger("third"),
                *await scheduler.enqueue_many("third", [None, None]),
                *await scheduler.chain("third", "first"),
                await asyncio.to_thread(third.blocking.enqueue),
                await scheduler.enqueue("third", within=own),
            ]
            own.commit()
            own.close()
        after = [run for run in (await scheduler.list_runs()).items if run.job_id == "second"]
        assert await third.enqueue() is not None
    assert {run.trace for run in [*runs, *after]} == {traceparent(spans()["request"])}
    assert len(after) == 2
    assert duplicate.duplicate
    assert duplicate.trace == held.trace == traceparent(spans()["before"])


async def test_slots_and_backfills_have_no_trace(
    spans: Callable[[], dict[str, ReadableSpan]],
) -> None:
    with in_span("the program"):
        scheduler = Scheduler("memory://")

        @scheduler.job("1s", run_on_start=True)
        async def tick() -> None: ...

        fired = asyncio.Event()
        scheduler.on("run.succeeded", lambda event: fired.set())
        async with scheduler:
            await asyncio.wait_for(fired.wait(), 30)
            runs = (await scheduler.list_runs()).items
    assert {run.trace for run in runs} == {None}
    assert spans()["run tick"].parent is None


PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from mainspring import RunContext, Scheduler

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(
    out=open("spans", "a"), formatter=lambda span: span.to_json(indent=None) + "\\n")))
trace.set_tracer_provider(provider)
scheduler = Scheduler("memory://")

@scheduler.job(isolation="process")
def apart(ctx: RunContext) -> None:
    with provider.get_tracer("program").start_as_current_span("in the child"):
        pass

@scheduler.job(isolation="process")
async def apart_async(ctx: RunContext) -> None:
    with provider.get_tracer("program").start_as_current_span("in the child"):
        pass

async def main():
    async with scheduler:
        with provider.get_tracer("program").start_as_current_span("request"):
            runs = [await job.enqueue() for job in (apart, apart_async)]
        for run in runs:
            print((await scheduler.wait(run.id, 60)).state)

if __name__ == "__main__":
    import asyncio
    asyncio.run(main())
"""


def test_a_handler_in_a_process_of_its_own_goes_on_with_the_trace(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split() == ["succeeded", "succeeded"], done.stderr
    found = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    attempts = {s["context"]["span_id"] for s in found if s["name"].startswith("run ")}
    inside = {s["parent_id"] for s in found if s["name"] == "in the child"}
    assert (len(attempts), inside) == (2, attempts)
    assert len({span["context"]["trace_id"] for span in found}) == 1


async def test_without_opentelemetry_the_trace_of_a_request_is_passed_on() -> None:
    """`mainspring serve` needs no OpenTelemetry for the endpoint to join the caller's trace."""
    endpoint = Endpoint(lambda request: response(200))
    scheduler = Scheduler("memory://", webhooks=ALLOW)
    seen: list[Any] = []

    @scheduler.job()
    async def parent() -> None:
        seen.append(await child.enqueue())

    @scheduler.job()
    async def child() -> None: ...

    async with serving(endpoint.serve) as endpoint.port, scheduler:
        await scheduler.add_job("hook", webhook={"url": endpoint.url})
        own = {"url": endpoint.url, "headers": {"Traceparent": "mine"}}
        await scheduler.add_job("own", webhook=own)
        transport = httpx.ASGITransport(scheduler.asgi(auth=None))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for job in ("hook", "own", "parent"):
                headers = {"traceparent": PARENT, "tracestate": "a=b"}
                sent = await http.post(f"/api/v1/jobs/{job}/trigger", headers=headers)
                assert sent.status_code == 202, sent.text
                run = await scheduler.wait(sent.json()["id"], 30)
                assert run.trace == f"{PARENT} a=b"
            sent = await http.post("/api/v1/jobs/hook/trigger", headers={"traceparent": "00-x"})
            await scheduler.wait(sent.json()["id"], 30)
    calls = [(r.headers.get("traceparent"), r.headers.get("tracestate")) for r in endpoint.requests]
    assert calls == [(PARENT, "a=b"), ("mine", "a=b"), (None, None)]
    assert seen[0].trace == f"{PARENT} a=b"
