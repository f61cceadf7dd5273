"""Spans of calls, with the real SDK: it keeps one provider for a process, hence a child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio, json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.webhook_endpoint import endpoint, response, scheduler

async def main():
    answers = [response(500), response(200), response(200)]
    spans = InMemorySpanExporter()
    async with endpoint(lambda _: answers.pop(0)) as end, scheduler() as mainspring:
        webhook = {"url": end.url + "?token=query-secret", "headers": {"Cookie": "c00kie-secret"}}
        await mainspring.add_job("call", webhook=webhook, retries=1, retry_delay="5ms")
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(spans))
        trace.set_tracer_provider(provider)
        run = await mainspring.wait((await mainspring.trigger("call")).id, timeout=20)
        given = {"url": end.url, "headers": {"traceparent": "mine"}}
        await mainspring.add_job("own", webhook=given)
        await mainspring.wait((await mainspring.trigger("own")).id, timeout=20)
    print(json.dumps({
        "run": run.id,
        "sent": [request.headers.get("traceparent") for request in end.requests],
        "spans": [
            {"name": span.name, "kind": span.kind.name, "status": span.status.status_code.name,
             "parent": format(span.context.span_id, "016x"), **span.attributes}
            for span in spans.get_finished_spans()
        ],
        "all": [span.to_json() for span in spans.get_finished_spans()],
    }))

asyncio.run(main())
"""


def test_each_call_is_a_span_that_is_sent_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    first, second, own = [span for span in told["spans"] if span["kind"] == "CLIENT"]
    assert [span["http.response.status_code"] for span in (first, second)] == [500, 200]
    assert [span["status"] for span in (first, second)] == ["ERROR", "UNSET"]
    assert [span["http.request.resend_count"] for span in (first, second)] == [0, 1]
    for span, sent in zip((first, second), told["sent"][:2], strict=True):
        assert (span["name"], span["kind"]) == ("POST", "CLIENT")
        assert span["mainspring.run.id"] == told["run"]
        assert sent.split("-")[2] == span["parent"]
    assert told["sent"][2] == "mine"
    assert own["mainspring.job.id"] == "own"
    assert "secret" not in json.dumps(told["all"])
