"""The W3C trace context that travels with a run: from the code that enqueues it to its handler.

It is one string, so that any store keeps it and no store knows OpenTelemetry: `traceparent`, and
after a space `tracestate` if there is one. A caller without a trace costs one look-up in a dict.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MAX_STATE = 512
"""Characters of a `tracestate` that travel; the W3C asks for at least these. A longer one is left
out: the trace goes on without it."""

_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}"
)
_LATER_VERSION = re.compile(r"\A(?!00|ff)[0-9a-f]{2}((?:-[0-9a-f]+){3})(?:-.*)?\Z")
"""Read as version 00, as the W3C asks."""
_MEMBER = re.compile(r"\s*([a-z0-9][a-z0-9_*/@-]*=[ -+\--<>-~]+)?\s*")
MAX_MEMBERS = 32

_passed_on: ContextVar[str | None] = ContextVar("mainspring_trace", default=None)


def current_trace() -> str | None:
    """The trace context of the caller: that of OpenTelemetry's current span, or else of the HTTP
    request that it serves or the run that it handles. OpenTelemetry is not imported for that."""
    trace = sys.modules.get("opentelemetry.trace")
    find = getattr(trace, "get_current_span", None)  # another thread may be importing it
    span = None if find is None else find().get_span_context()
    if span is None or not span.is_valid:
        return _passed_on.get()
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    return _joined(parent, span.trace_state.to_header())


def read_trace(parents: Sequence[str], states: Sequence[str]) -> str | None:
    """The trace context in these headers of a request; None where there is none, or it is wrong."""
    if len(parents) != 1:
        return None
    parent = _LATER_VERSION.sub(r"00\1", parents[0])
    if _PARENT.fullmatch(parent) is None:
        return None
    return _joined(parent, ",".join(states))


@contextmanager
def passing_on(text: str | None) -> Iterator[None]:
    """What is enqueued and called inside has this trace context, without a span of its own."""
    token = _passed_on.set(text)
    try:
        yield
    finally:
        _passed_on.reset(token)


def trace_headers(text: str | None) -> dict[str, str]:
    """A trace context as the headers of a request."""
    parent, _, state = (text or "").partition(" ")
    headers = {"traceparent": parent, "tracestate": state}
    return {name: value for name, value in headers.items() if value}


def _joined(parent: str, state: str) -> str:
    members = state.split(",")
    fits = len(state) <= MAX_STATE and len(members) <= MAX_MEMBERS
    return (
        f"{parent} {state}" if state and fits and all(map(_MEMBER.fullmatch, members)) else parent
    )


# -- with OpenTelemetry ---------------------------------------------------------------------


def span_context(text: str | None) -> Any:
    """OpenTelemetry's `SpanContext` of a trace context; None where there is none, or it is no
    trace context (another program may have written it)."""
    headers = trace_headers(text)
    match = _PARENT.fullmatch(headers.get("traceparent", ""))
    if match is None:
        return None
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    return SpanContext(
        trace_id=int(match[1], 16),
        span_id=int(match[2], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match[0][-2:], 16)),
        trace_state=TraceState.from_header([headers.get("tracestate", "")]),
    )


def attach_trace(text: str | None) -> None:
    """Make a span of another process the parent of what this thread or task does from now on."""
    _passed_on.set(text)
    if "opentelemetry.trace" in sys.modules and (parent := span_context(text)) is not None:
        from opentelemetry import context, trace

        context.attach(trace.set_span_in_context(trace.NonRecordingSpan(parent)))
