"""Which texts are trace contexts, and how much of one travels."""

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from mainspring.core.trace_context import current_trace, read_trace, span_context

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        f"{PARENT}-more",
        f"{PARENT}\n",
    ],
)
def test_what_is_no_trace_context_counts_as_none(text: str) -> None:
    assert read_trace([text], []) is None
    assert span_context(text) is None


def test_one_traceparent_of_this_version_or_a_later_one_is_read() -> None:
    assert read_trace([PARENT, PARENT], []) is None
    for later in (f"01{PARENT[2:]}", f"01{PARENT[2:]}-more"):
        assert read_trace([later], []) == PARENT


@pytest.mark.parametrize(
    "state", ["a=" + "b" * 511, "a=\n", "garbage,,===", ",".join(f"k{n}=v" for n in range(33))]
)
def test_a_wrong_or_long_tracestate_is_left_out(state: str) -> None:
    assert read_trace([PARENT], [state]) == PARENT


def test_lines_of_tracestate_are_joined() -> None:
    assert read_trace([PARENT], ["a=1, t@b=2", "c=3"]) == f"{PARENT} a=1, t@b=2,c=3"


def test_a_long_state_of_a_span_is_left_out() -> None:
    context = SpanContext(
        int(PARENT[3:35], 16),
        int(PARENT[36:52], 16),
        is_remote=False,
        trace_flags=TraceFlags(1),
        trace_state=TraceState([(f"key{n}", "v" * 100) for n in range(20)]),
    )
    with trace.use_span(NonRecordingSpan(context)):
        assert current_trace() == PARENT
