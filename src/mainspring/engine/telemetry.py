"""Makes a span for each attempt, if the program has set up OpenTelemetry (extra `otel`).

Nothing is loaded or done unless there is a tracer provider when the scheduler starts. The first
attempt of a run is a child of the span that was current at the enqueue, also in another process. A
later one starts a trace of its own, which links to that span: it may come days after the request.
So does one that nobody enqueued, such as a slot's. The span is current while the handler runs, so
that what the handler does lies inside it.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from mainspring.core.model import Outcome
from mainspring.core.trace_context import passing_on, span_context
from mainspring.engine.attempt import LocalAttempt

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from mainspring.engine.outcome import Decision

log = logging.getLogger("mainspring")

NAME = "mainspring"


class Telemetry:
    """Begins spans where handlers run, and ends them on the engine's loop: the outcome of an
    attempt is decided there. An error of OpenTelemetry (of the program's span processor, say)
    affects no run: the first one is logged."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        self._tracer = tracer
        self._trace = trace
        self._nothing = Context()
        self._failed = False

    @classmethod
    def find(cls) -> Telemetry | None:
        """None where the program has not set OpenTelemetry up; it is not imported for that."""
        trace: Any = sys.modules.get("opentelemetry.trace")
        if trace is None:
            return None
        try:
            provider = trace.get_tracer_provider()
            if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
                return None
            return cls(provider.get_tracer(NAME))
        except Exception:
            log.exception("OpenTelemetry gives no tracer, so no attempt has a span")
            return None

    def begin(self, attempt: LocalAttempt) -> AbstractContextManager[Any]:
        """The span of an attempt that is about to begin; current inside of what is given."""
        try:
            return self._begin(attempt)
        except Exception:
            self._log_failure()
            return _UNTRACED

    def end(self, attempt: LocalAttempt, decision: Decision | None) -> None:
        """End the span of an attempt. Without a decision another worker has the run."""
        try:
            self._end(attempt, decision)
        except Exception:
            self._log_failure()

    def _log_failure(self) -> None:
        if not self._failed:
            self._failed = True
            log.exception(
                "OpenTelemetry failed, so the span of an attempt is lost; runs are not affected,"
                " and this is logged only once"
            )

    def _begin(self, attempt: LocalAttempt) -> AbstractContextManager[Any]:
        run = attempt.run
        parent, context, links = span_context(run.trace), self._nothing, []
        if parent is not None and run.attempt == 1:
            remote = self._trace.NonRecordingSpan(parent)
            context = self._trace.set_span_in_context(remote, self._nothing)
        elif parent is not None:
            links.append(self._trace.Link(parent))
        span = self._tracer.start_span(
            f"run {run.job_id}",
            context=context,
            kind=self._trace.SpanKind.CONSUMER,
            links=links,
            attributes={
                "messaging.system": NAME,
                "messaging.operation.type": "process",
                "messaging.operation.name": "run",
                "messaging.destination.name": run.job_id,
                "messaging.message.id": run.id,
                "messaging.client.id": run.worker or "",
                "mainspring.job.id": run.job_id,
                "mainspring.run.id": run.id,
                "mainspring.run.attempt": run.attempt,
                "mainspring.run.scheduled_at": run.scheduled_at.isoformat(),
                "mainspring.handler": run.handler,
                "mainspring.queue": run.queue,
            },
        )
        attempt.span = span
        return self._trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def _end(self, attempt: LocalAttempt, decision: Decision | None) -> None:
        span: Span | None = attempt.span
        if span is None:
            return
        attempt.span = None
        outcome, error = Outcome.LOST.value, attempt.error
        if decision is not None:
            outcome, error = _outcome(attempt, decision), decision.error
            span.set_attribute("mainspring.run.state", str(decision.change.set["state"]))
        span.set_attribute("mainspring.outcome", outcome)
        if error is not None:
            if isinstance(error.exception, Exception):
                span.record_exception(error.exception)
            span.set_attribute("error.type", next(iter(error.names), outcome))
            span.set_status(self._trace.StatusCode.ERROR, error.message)
        elif outcome == Outcome.LOST:
            span.set_attribute("error.type", outcome)
            span.set_status(self._trace.StatusCode.ERROR, "the lease was lost")
        span.end()


def traced(telemetry: Telemetry | None, attempt: LocalAttempt) -> AbstractContextManager[Any]:
    """The span of an attempt. Without OpenTelemetry in this process, what the handler enqueues and
    calls still belongs to the trace of the run."""
    if telemetry is not None:
        return telemetry.begin(attempt)
    return _UNTRACED if attempt.run.trace is None else passing_on(attempt.run.trace)


_UNTRACED: AbstractContextManager[Any] = nullcontext()


def _outcome(attempt: LocalAttempt, decision: Decision) -> str:
    """The outcome as the attempt's record has it; a snoozed run has no record of the attempt."""
    attempts = decision.change.set.get("attempts", ())
    if attempts and attempts[-1].number == attempt.run.attempt:
        return str(attempts[-1].outcome)
    return "snoozed"
