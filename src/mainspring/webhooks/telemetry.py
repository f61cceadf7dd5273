"""Makes an OpenTelemetry span for each call and sends its `traceparent` to the endpoint.

Nothing is loaded or done without the extra `otel`, or in a program without a tracer provider. Spans
contain neither secrets nor query strings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol
from urllib.parse import urlsplit

from mainspring.core.context import RunContext
from mainspring.webhooks.request import PreparedRequest

NOTHING: Mapping[str, str] = {}


class Span(Protocol):
    """The part of a span that this module uses."""

    def set_attribute(self, key: str, value: Any) -> None: ...


class _NoSpan:
    def set_attribute(self, key: str, value: Any) -> None: ...


CallSpan = AbstractContextManager[tuple[Span, Mapping[str, str]]]
_UNTRACED: CallSpan = nullcontext((_NoSpan(), NOTHING))


def trace_call(request: PreparedRequest, ctx: RunContext) -> CallSpan:
    """The span of a call, and the headers that carry it to the endpoint."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _UNTRACED
    return _span(trace, request, ctx)


@contextmanager
def _span(
    trace: Any, request: PreparedRequest, ctx: RunContext
) -> Iterator[tuple[Span, Mapping[str, str]]]:
    from opentelemetry import propagate

    where = urlsplit(request.url)
    with trace.get_tracer("mainspring").start_as_current_span(
        request.method,
        kind=trace.SpanKind.CLIENT,
        attributes={
            "http.request.method": request.method,
            "server.address": where.hostname or "",
            "server.port": where.port or (443 if where.scheme == "https" else 80),
            "url.scheme": where.scheme,
            "http.request.resend_count": ctx.attempt - 1,
            "mainspring.job.id": ctx.job_id,
            "mainspring.run.id": ctx.run_id,
        },
    ) as span:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        there = {name.lower() for name in request.headers}
        yield span, {name: text for name, text in carrier.items() if name.lower() not in there}
