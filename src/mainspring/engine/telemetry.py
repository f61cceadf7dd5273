"""A span for each attempt, where the program has set up OpenTelemetry (extra `otel`).

Nothing is loaded or done unless there is a tracer provider when the scheduler starts. An attempt
begins a trace of its own: what was current when the scheduler was started has nothing to do with
it. The span is current while the handler runs, so that what the handler does lies inside it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from mainspring.core.model import Outcome
from mainspring.engine.attempt import Work

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from mainspring.engine.outcome import Verdict

__all__ = ["Tracing", "traced"]

NAME = "mainspring"


class Tracing:
    """Begins spans where handlers run, and ends them on the engine's loop: the outcome of an
    attempt is decided there."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        self._tracer = tracer
        self._trace = trace
        self._nothing = Context()

    @classmethod
    def found(cls) -> Tracing | None:
        """None where the program has not set OpenTelemetry up; it is not imported for that."""
        trace: Any = sys.modules.get("opentelemetry.trace")
        if trace is None:
            return None
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
        return cls(provider.get_tracer(NAME))

    def begin(self, work: Work) -> AbstractContextManager[Any]:
        """The span of an attempt that is about to begin; current inside of what is given."""
        run = work.run
        span = self._tracer.start_span(
            f"run {run.job_id}",
            context=self._nothing,
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "mainspring.job.id": run.job_id,
                "mainspring.run.id": run.id,
                "mainspring.run.attempt": run.attempt,
                "mainspring.run.scheduled_at": run.scheduled_at.isoformat(),
                "mainspring.handler": run.handler,
                "mainspring.queue": run.queue,
            },
        )
        work.span = span
        return self._trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def end(self, work: Work, verdict: Verdict | None) -> None:
        """Without a verdict the run is somebody else's by now."""
        span: Span | None = work.span
        if span is None:
            return
        work.span = None
        outcome, problem = Outcome.LOST.value, work.problem
        if verdict is not None:
            outcome, problem = _outcome(work, verdict), verdict.problem
            span.set_attribute("mainspring.run.state", str(verdict.change.set["state"]))
        span.set_attribute("mainspring.outcome", outcome)
        if problem is not None:
            if isinstance(problem.exception, Exception):
                span.record_exception(problem.exception)
            span.set_status(self._trace.StatusCode.ERROR, problem.error)
        elif outcome == Outcome.LOST:
            span.set_status(self._trace.StatusCode.ERROR, "the lease was lost")
        span.end()


def traced(tracing: Tracing | None, work: Work) -> AbstractContextManager[Any]:
    return _UNTRACED if tracing is None else tracing.begin(work)


_UNTRACED: AbstractContextManager[Any] = nullcontext()


def _outcome(work: Work, verdict: Verdict) -> str:
    """As it is recorded with the attempt; a run that was put off has no such record."""
    attempts = verdict.change.set.get("attempts", ())
    if attempts and attempts[-1].number == work.run.attempt:
        return str(attempts[-1].outcome)
    return "snoozed"
