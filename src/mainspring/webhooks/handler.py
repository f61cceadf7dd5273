"""The built-in handler `webhook`: sends the request, reads the response, decides the outcome.

The request (secrets masked) and the response are kept with the attempt as its detail, also when
the engine cancels it. Secrets that the endpoint echoes are masked first.
"""

from __future__ import annotations

import base64
import email.utils
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import accumulate, chain
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from mainspring.core.clock import Clock
from mainspring.core.context import RunContext, keep_detail
from mainspring.core.durations import duration
from mainspring.core.handlers import Handler
from mainspring.core.model import Job, Webhook, replace
from mainspring.core.trace_context import current_trace, trace_headers
from mainspring.errors import (
    GiveUp,
    InvalidPayload,
    JobChanged,
    NotFound,
    RetryNotBefore,
    WebhookFailed,
)
from mainspring.webhooks.definition import check_payload, host_of
from mainspring.webhooks.redaction import SecretRedactor, without_secrets
from mainspring.webhooks.request import AttemptFacts, PartialResponse, PreparedRequest
from mainspring.webhooks.service import HANDLER, Webhooks

MAX_KEPT_BODY = 16 * 1024
"""How many bytes of a body are kept with the attempt."""

MAX_KEPT_HEADERS = 8 * 1024
MAX_LOCATION = 300
"""Characters of a redirect's target that the error quotes."""

Pair = TypeVar("Pair", bound=Sequence[str])

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class JobControl(Protocol):
    """What the handler needs of the scheduler."""

    def store_time(self) -> datetime: ...

    async def pause_job(self, id: str, *, expected_version: Job | None = None) -> Job: ...


class WebhookHandler(Handler):
    """The handler `webhook`. A run's payload, if it has one, is the body of the request."""

    built_in = True
    reads_job = True

    def __init__(self, webhooks: Webhooks, jobs: JobControl, clock: Clock) -> None:
        super().__init__(HANDLER, self.send)
        self._webhooks = webhooks
        self._jobs = jobs
        self._clock = clock

    def check(self, payload: Any) -> None:
        check_payload(payload)

    def group(self, job: Job) -> str | None:
        """The host that the job calls. Its calls are limited, so that a slow host does not take all
        capacity."""
        return None if job.webhook is None else host_of(job.webhook.url)

    def group_limit(self) -> int | None:
        return self._webhooks.settings.per_host

    async def send(self, ctx: RunContext) -> dict[str, Any]:
        """Call the endpoint once. Return its status, or raise the error that decides whether the
        run is retried."""
        assert ctx.job is not None
        # Signatures carry the store's time, because the clock of a worker may be wrong.
        job, began, now = ctx.job, self._clock.monotonic(), self._jobs.store_time()
        webhook = job.webhook
        if webhook is None:
            raise GiveUp(f"job {job.id!r} is no longer a webhook job")
        opened = await self._webhooks.decrypt_with_store_key(job)
        request = opened.prepare(_attempt_facts(ctx, now))
        response = PartialResponse()
        with trace_call(request, ctx) as (span, more_headers):
            if more_headers:
                request = replace(request, headers={**request.headers, **more_headers})
            try:
                await self._webhooks.client.send(request, response)
            except WebhookFailed as error:
                error.args = (opened.redactor.redact(str(error)),)
                raise
            finally:
                seconds = self._clock.monotonic() - began
                _keep_detail(ctx, _detail(request, response, opened.redactor, seconds))
            assert response.status is not None
            if span is not None:
                span.set_attribute("http.response.status_code", response.status)
            if _is_within(response.status, webhook.success):
                return {"status": response.status}
            answered = _answered(response, opened.redactor)
            raise await self._failure(ctx, webhook, answered, response.status, response.headers)

    async def _failure(
        self,
        ctx: RunContext,
        webhook: Webhook,
        answered: str,
        status: int,
        headers: Sequence[tuple[str, str]],
    ) -> Exception:
        """The error for a response outside the success codes; it decides how the run continues."""
        if status == HTTPStatus.GONE:
            try:
                await self._jobs.pause_job(ctx.job_id, expected_version=ctx.job)
            except (
                NotFound,
                JobChanged,
            ):  # the job may have another endpoint by now, or be another job
                return GiveUp(
                    f"{answered}: it accepts no more calls; the job was changed meanwhile"
                )
            return GiveUp(f"{answered}: it accepts no more calls, so the job is paused")
        if webhook.retry_on is not None and not _is_within(status, webhook.retry_on):
            return GiveUp(f"{answered}, which is not retried (retry_on)")
        wait = retry_after(headers, self._jobs.store_time())
        if wait is None:
            return WebhookFailed(answered)
        cap = duration(self._webhooks.settings.retry_after_cap)
        wait = min(wait, cap)
        why = f"{answered} and asked to wait {wait.total_seconds():g} s"
        return RetryNotBefore(why, after=wait)


def retry_after(headers: Sequence[tuple[str, str]], now: datetime) -> timedelta | None:
    """How long `Retry-After` asks to wait. A date is compared with the response's own `Date`
    header, if there is one, because the endpoint's clock may differ from ours."""
    by_name = {name.lower(): text.strip() for name, text in headers}
    text = by_name.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:12]), 10**9))
    moment = _http_date(text)
    if moment is None:
        return None
    return max(moment - (_http_date(by_name.get("date", "")) or now), timedelta())


def _http_date(text: str) -> datetime | None:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _attempt_facts(ctx: RunContext, now: datetime) -> AttemptFacts:
    return AttemptFacts(
        job_id=ctx.job_id,
        run_id=ctx.run_id,
        attempt=ctx.attempt,
        scheduled_at=ctx.scheduled_at,
        now=now,
        body=ctx.payload,
    )


def _is_within(status: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low <= status <= high for low, high in ranges)


def _answered(response: PartialResponse, redactor: SecretRedactor) -> str:
    """The answer in words, for the error of the attempt."""
    assert response.status is not None
    answered = f"the endpoint answered {_status_name(response.status)}"
    location = next((text for name, text in response.headers if name.lower() == "location"), "")
    if not 300 <= response.status <= 399 or not location:
        return answered
    target = _CONTROL.sub("", _clean(location, redactor))[:MAX_LOCATION]
    return f"{answered} to {target}; redirects are not followed: give the final address"


def _status_name(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


# The detail that is kept with the attempt


def _detail(
    request: PreparedRequest, response: PartialResponse, redactor: SecretRedactor, seconds: float
) -> dict[str, Any]:
    headers = request.masked_headers()
    if len(fitting := _first_headers(headers.items())) < len(headers):
        headers = dict(fitting)
    return {
        "request": {
            "method": request.method,
            "url": request.url,
            "headers": headers,
            **_kept_body(request.body, redactor),
        },
        "response": None if response.status is None else _answer(response, redactor),
        "duration_ms": round(seconds * 1000, 3),
    }


def _answer(response: PartialResponse, redactor: SecretRedactor) -> dict[str, Any]:
    return {
        "status": response.status,
        "reason": _clean(response.reason, redactor)[:200],
        # A list in the original order: a name may occur twice.
        "headers": _first_headers(
            [[name, _clean(text, redactor)] for name, text in without_secrets(response.headers)]
        ),
        **_kept_body(bytes(response.body), redactor, more=response.more),
        "address": response.address,
    }


def _keep_detail(ctx: RunContext, detail: dict[str, Any]) -> None:
    """Keep the detail. A detail that is too large must not change the outcome of the call."""
    try:
        keep_detail(ctx, detail)
    except InvalidPayload as error:
        answer = detail["response"]
        status = None if answer is None else {"status": answer["status"]}
        keep_detail(ctx, {"request": None, "response": status, "dropped": str(error)[:500]})


def _clean(text: str, redactor: SecretRedactor) -> str:
    """Text of a response with secrets masked and invalid Unicode replaced."""
    text = redactor.redact(text)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _kept_body(body: bytes, redactor: SecretRedactor, *, more: bool = False) -> dict[str, Any]:
    """The beginning of a body, as text if it is text, else in base64."""
    body = redactor.redact_bytes(body, cut=more)
    truncated = more or len(body) > MAX_KEPT_BODY
    part = body[:MAX_KEPT_BODY]
    try:
        # A cut may fall inside a character. Anything else that does not decode is not text.
        shown = _decode_cut(part) if truncated else part.decode()
        if not _CONTROL.search(shown):
            return {"body": shown, "truncated": truncated}
    except UnicodeDecodeError:
        pass
    shown = base64.b64encode(part).decode()
    return {"body": shown, "encoding": "base64", "truncated": truncated}


def _decode_cut(part: bytes) -> str:
    for cut in range(4):
        try:
            return part[: len(part) - cut].decode()
        except UnicodeDecodeError:
            if cut == 3:
                raise
    return ""


def _first_headers(headers: Collection[Pair]) -> Collection[Pair]:
    """The first headers, up to `MAX_KEPT_HEADERS` characters."""
    if sum(map(len, chain.from_iterable(headers))) <= MAX_KEPT_HEADERS:
        return headers
    sizes = accumulate(len(name) + len(text) for name, text in headers)
    return [one for one, size in zip(headers, sizes, strict=True) if size <= MAX_KEPT_HEADERS]


# The span of a call: nothing is loaded or done without the extra `otel`, or in a program without a
# tracer provider. Spans contain neither secrets nor query strings.


@contextmanager
def trace_call(
    request: PreparedRequest, ctx: RunContext
) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """The span of a call, or None, and the headers that carry it to the endpoint."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield None, _not_given(trace_headers(current_trace()), request)
        return
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
        yield span, _not_given(carrier, request)


def _not_given(headers: Mapping[str, str], request: PreparedRequest) -> dict[str, str]:
    """Those of these headers that the job does not set itself."""
    given = {name.lower() for name in request.headers}
    return {name: text for name, text in headers.items() if name.lower() not in given}
