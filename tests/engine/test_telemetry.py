"""A span for each attempt, seen by OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mainspring import GiveUp, RunContext, Scheduler
from mainspring.engine.telemetry import Telemetry
from mainspring.errors import Snooze
from tests.support import isolated_jobs
from tests.support.webhook_endpoint import ALLOW, Endpoint, response, serving

Ended = Callable[[], list[ReadableSpan]]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return provider


@pytest.fixture
def ended(provider: TracerProvider) -> Ended:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return lambda: list(exporter.get_finished_spans())


def told(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(f"mainspring.{name}")


def traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_a_span_says_which_attempt_it_was_and_how_it_ended(ended: Ended) -> None:
    scheduler = Scheduler("memory://")

    @scheduler.job(id="mail", retries=1, retry_delay="10ms")
    async def mail(ctx: RunContext, to: str) -> None:
        await asyncio.sleep(0)
        if ctx.attempt == 1:
            raise ValueError("no such address")

    async with scheduler:
        run = await scheduler.enqueue("mail", {"to": "a"})
        await scheduler.wait(run.id, 30)
        second_try = await scheduler.get_run(run.id)
    first, second = ended()
    for span, attempt in ((first, 1), (second, 2)):
        assert span.name == "run mail"
        assert span.kind is SpanKind.CONSUMER
        assert span.parent is None
        assert told(span, "job.id") == "mail"
        assert told(span, "run.id") == run.id
        assert told(span, "run.attempt") == attempt
        assert told(span, "handler") == "mail"
        assert {
            name: value for name, value in (span.attributes or {}).items() if "messaging" in name
        } == {
            "messaging.system": "mainspring",
            "messaging.operation.type": "process",
            "messaging.operation.name": "run",
            "messaging.destination.name": "mail",
            "messaging.message.id": run.id,
            "messaging.client.id": second_try.worker,
        }
    assert (told(first, "outcome"), told(first, "run.state")) == ("failed", "pending")
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "ValueError: no such address"
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert [event.name for event in first.events] == ["exception"]
    assert (told(second, "outcome"), told(second, "run.state")) == ("succeeded", "succeeded")
    assert second.status.status_code is StatusCode.UNSET


async def test_what_a_handler_does_belongs_to_its_span(
    provider: TracerProvider, ended: Ended
) -> None:
    """On the loop, in a thread; and nothing is left behind for the next."""
    scheduler = Scheduler("memory://", workers=1)
    tracer = provider.get_tracer("program")

    @scheduler.job()
    async def on_the_loop() -> None:
        with tracer.start_as_current_span("inside on_the_loop"):
            await asyncio.sleep(0)

    @scheduler.job()
    def in_a_thread() -> None:
        with tracer.start_as_current_span("inside in_a_thread"):
            pass

    with tracer.start_as_current_span("the program"):
        async with scheduler:
            for job in (on_the_loop, in_a_thread, on_the_loop):
                run = await job.enqueue()
                await scheduler.wait(run.id, 30)
            assert trace.get_current_span().is_recording()
    spans = ended()
    by_id = {span.get_span_context().span_id: span for span in spans}  # type: ignore[union-attr]
    inside = [span for span in spans if span.name.startswith("inside")]
    assert len(inside) == 3
    for span in inside:
        assert span.parent is not None
        assert by_id[span.parent.span_id].name == f"run {span.name.removeprefix('inside ')}"
    runs = [span for span in spans if span.name.startswith("run ")]
    [program] = [span for span in spans if span.name == "the program"]
    assert {span.parent.span_id for span in runs if span.parent} == {
        program.get_span_context().span_id  # type: ignore[union-attr]
    }


async def test_every_way_an_attempt_can_end(ended: Ended) -> None:
    scheduler = Scheduler("memory://", workers=4)
    began = asyncio.Event()

    @scheduler.job(timeout="50ms")
    async def slow() -> None:
        await asyncio.sleep(60)

    @scheduler.job()
    async def endless() -> None:
        began.set()
        await asyncio.sleep(60)

    @scheduler.job()
    async def hopeless() -> None:
        raise GiveUp("never")

    @scheduler.job()
    async def shy(ctx: RunContext) -> None:
        if not told_off:
            told_off.append(True)
            raise Snooze("later", after=0.1)

    told_off: list[bool] = []
    scheduler.job(id="apart", isolation="process")(isolated_jobs.add)
    async with scheduler:
        runs = {
            job_id: await scheduler.enqueue(job_id, payload)
            for job_id, payload in {
                **dict.fromkeys(("slow", "endless", "hopeless", "shy")),
                "apart": {"a": 1, "b": 2},
            }.items()
        }
        await began.wait()
        await scheduler.cancel(runs["endless"].id)
        for run in runs.values():
            await scheduler.wait(run.id, 60)
    outcomes = sorted((told(span, "job.id"), told(span, "outcome")) for span in ended())
    assert outcomes == [
        ("apart", "succeeded"),
        ("endless", "cancelled"),
        ("hopeless", "failed"),
        ("shy", "snoozed"),
        ("shy", "succeeded"),
        ("slow", "timed_out"),
    ]
    errors = {told(s, "job.id") for s in ended() if s.status.status_code is StatusCode.ERROR}
    assert errors == {"slow", "hopeless"}


async def test_a_webhooks_call_lies_inside_its_attempt(ended: Ended) -> None:
    answers = iter([response(500), response(200), response(200)])
    endpoint = Endpoint(lambda request: next(answers))
    scheduler = Scheduler("memory://", webhooks=ALLOW)
    async with serving(endpoint.serve) as endpoint.port, scheduler:
        webhook = {"url": f"{endpoint.url}?token=s3cret", "headers": {"Cookie": "c00kie-s3cret"}}
        await scheduler.add_job("hook", webhook=webhook, retries=1, retry_delay="10ms")
        run = await scheduler.wait((await scheduler.trigger("hook")).id, 30)
        own = {"url": endpoint.url, "headers": {"traceparent": "mine"}}
        await scheduler.add_job("own", webhook=own)
        await scheduler.wait((await scheduler.trigger("own")).id, 30)
    attempts = [span for span in ended() if span.name == "run hook"]
    assert [told(span, "outcome") for span in attempts] == ["failed", "succeeded"]
    *calls, _ = [span for span in ended() if span.name == "POST"]
    sent = [request.headers["traceparent"] for request in endpoint.requests]
    assert sent == [*(traceparent(span) for span in calls), "mine"]
    assert [call.parent for call in calls] == [one.get_span_context() for one in attempts]
    for call, status, kind, number in zip(
        calls, (500, 200), (StatusCode.ERROR, StatusCode.UNSET), (0, 1), strict=True
    ):
        assert call.attributes is not None
        assert (call.kind, call.status.status_code) == (SpanKind.CLIENT, kind)
        assert call.attributes["http.response.status_code"] == status
        assert call.attributes["http.request.resend_count"] == number
        assert call.attributes["mainspring.run.id"] == run.id
    assert not any("s3cret" in span.to_json() for span in ended())


class FailingProcessor(SpanProcessor):
    """A span processor of the program with a bug."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self.when == "start":
            raise ValueError("a bug of the processor")

    def on_end(self, span: object) -> None:
        if self.when == "end":
            raise ValueError("a bug of the processor")


@pytest.mark.parametrize("when", ["start", "end"])
async def test_a_failing_span_processor_affects_no_run(
    provider: TracerProvider, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    provider.add_span_processor(FailingProcessor(when))
    scheduler = Scheduler("memory://")

    @scheduler.job()
    async def on_the_loop() -> int:
        return 1

    @scheduler.job()
    def in_a_thread() -> int:
        return 1

    async with scheduler:
        runs = await scheduler.enqueue_many("on_the_loop", [None] * 5)
        runs += await scheduler.enqueue_many("in_a_thread", [None] * 5)
        done = [await scheduler.wait(run.id, 30) for run in runs]
        health = await scheduler.health()
    assert {(str(run.state), run.attempt) for run in done} == {("succeeded", 1)}
    assert health.status == "healthy"
    assert caplog.text.count("OpenTelemetry failed") == 1


async def test_without_a_provider_nothing_is_traced() -> None:
    assert Telemetry.find() is None


PROGRAM = """
import asyncio, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
from mainspring import RunContext, Scheduler

scheduler = Scheduler("memory://")

@scheduler.job()
async def work(ctx: RunContext) -> str:
    return "worked"

async def main():
    async with scheduler:
        run = await scheduler.wait((await work.enqueue()).id, 30)
    print(run.state, run.result)

asyncio.run(main())
"""


def test_without_the_extra_everything_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.split() == ["succeeded", "worked"]
