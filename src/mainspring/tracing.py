"""A span for each attempt, where the program has set up OpenTelemetry (extra `otel`;
`opentelemetry-instrument mainspring serve` does). A webhook's call is a span inside it.

Spans that nobody records are nothing: without a tracer provider nothing is loaded or done.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__all__ = ["traced", "tracing"]


def tracing() -> bool:
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def traced(
    name: str, facts: Mapping[str, str | int], call: Callable[[], Any], *, is_async: bool
) -> Any:
    """What `call` gives, within a span; of a coroutine, the span lasts until it is over."""
    if is_async:
        return _awaited(_span(name, facts), call)
    with _span(name, facts):
        return call()


async def _awaited(span: Any, call: Callable[[], Awaitable[Any]]) -> Any:
    with span:
        return await call()


def _span(name: str, facts: Mapping[str, str | int]) -> Any:
    from opentelemetry import trace

    tracer = trace.get_tracer("mainspring")
    return tracer.start_as_current_span(name, kind=trace.SpanKind.CONSUMER, attributes=dict(facts))
