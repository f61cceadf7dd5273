"""A span for each attempt, where the program has OpenTelemetry at work (extra `otel`).

Spans that nobody records are nothing, so nothing is done until the program has loaded an SDK
(`opentelemetry-instrument mainspring serve` does): the hot path pays one look into a dict.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__all__ = ["sent_on", "traced", "tracing"]


def tracing() -> bool:
    return "opentelemetry.sdk.trace" in sys.modules


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


def sent_on() -> dict[str, str]:
    """The headers that carry the current span to whoever is called (`traceparent`)."""
    if not tracing():
        return {}
    from opentelemetry import propagate

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers
