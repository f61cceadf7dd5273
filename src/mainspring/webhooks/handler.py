"""An attempt of a webhook: make the request, read the answer, decide.

What was sent (secrets masked) and what came back stays with the attempt, as its detail, however it
ends: also when the engine cuts it off. Whatever an endpoint echoes of a secret is
masked before it is kept.
"""

from __future__ import annotations

import base64
import email.utils
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import accumulate, chain
from typing import Any, Protocol, TypeVar

from mainspring.core.clock import Clock
from mainspring.core.context import RunContext, leave_detail
from mainspring.core.durations import duration
from mainspring.core.handlers import Handler
from mainspring.core.model import Job, Webhook, replace
from mainspring.errors import (
    GiveUp,
    InvalidPayload,
    JobChanged,
    NotFound,
    RetryNotBefore,
    WebhookFailed,
)
from mainspring.webhooks.definition import check_body, host_of
from mainspring.webhooks.headers import without_secrets
from mainspring.webhooks.redaction import Traces
from mainspring.webhooks.request import Facts, Prepared
from mainspring.webhooks.response import Heard
from mainspring.webhooks.service import HANDLER, Webhooks
from mainspring.webhooks.telemetry import traced

__all__ = ["MOST_KEPT", "WebhookHandler"]

MOST_KEPT = 16 * 1024
"""Bytes of a body that are kept."""

MOST_KEPT_HEADERS = 8 * 1024

Pair = TypeVar("Pair", bound=Sequence[str])

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Host(Protocol):
    """What the handler asks of the scheduler."""

    def store_time(self) -> datetime: ...

    async def pause_job(self, id: str, *, seen: Job | None = None) -> Job: ...


class WebhookHandler(Handler):
    """The handler `webhook`, built in. A run's payload, where there is one, is its body."""

    built_in = True
    reads_job = True

    def __init__(self, webhooks: Webhooks, host: Host, clock: Clock) -> None:
        super().__init__(HANDLER, self.send)
        self._webhooks = webhooks
        self._host = host
        self._clock = clock

    def check(self, payload: Any) -> None:
        check_body(payload)

    def group(self, job: Job) -> str | None:
        """The host that is called: one that is slow must not take all capacity."""
        return None if job.webhook is None else host_of(job.webhook.url)

    def group_limit(self, capacity: int) -> int:
        return self._webhooks.settings.calls_to_one_host(capacity)

    async def send(self, ctx: RunContext) -> dict[str, Any]:
        """Call the endpoint once; succeed, or say how the run goes on."""
        assert ctx.job is not None
        # The store's time: of many workers' clocks one may be wrong, and its signatures with it.
        job, began, now = ctx.job, self._clock.monotonic(), self._host.store_time()
        webhook = job.webhook
        if webhook is None:
            raise GiveUp(f"job {job.id!r} is no webhook any more")
        opened = self._webhooks.opened(job)
        request = opened.prepared(_facts(ctx, now))
        heard = Heard()
        with traced(request, ctx) as (span, trace_headers):
            if trace_headers:
                request = replace(request, headers={**request.headers, **trace_headers})
            try:
                await self._webhooks.client.send(request, heard)
            except WebhookFailed as error:
                error.args = (opened.traces.redacted(str(error)),)
                raise
            finally:
                seconds = self._clock.monotonic() - began
                _keep(ctx, _detail(request, heard, opened.traces, seconds))
            assert heard.status is not None
            span.set_attribute("http.response.status_code", heard.status)
            if _within(heard.status, webhook.success):
                return {"status": heard.status}
            raise await self._failure(ctx, webhook, heard.status, heard.headers)

    async def _failure(
        self, ctx: RunContext, webhook: Webhook, status: int, headers: Sequence[tuple[str, str]]
    ) -> Exception:
        """What an answer outside the success codes means for the run."""
        answered = f"the endpoint answered {_named(status)}"
        if status == HTTPStatus.GONE:
            try:
                await self._host.pause_job(ctx.job_id, seen=ctx.job)
            except (NotFound, JobChanged):  # it may have another endpoint, or be another job
                return GiveUp(f"{answered}: it wants no more calls; the job was changed meanwhile")
            return GiveUp(f"{answered}: it wants no more calls, so the job is paused")
        if webhook.retry_on is not None and not _within(status, webhook.retry_on):
            return GiveUp(f"{answered}, which is not retried (retry_on)")
        wait = retry_after(headers, self._host.store_time())
        if wait is None:
            return WebhookFailed(answered)
        cap = duration(self._webhooks.settings.retry_after_cap)
        wait = min(wait, cap)
        why = f"{answered} and asked to wait {wait.total_seconds():g} s"
        return RetryNotBefore(why, after=wait)


def retry_after(headers: Sequence[tuple[str, str]], now: datetime) -> timedelta | None:
    """What `Retry-After` asks for: seconds, or a date (by the endpoint's own clock, where it tells
    the time: clocks differ)."""
    found = {name.lower(): text.strip() for name, text in headers}
    text = found.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:12]), 10**9))
    moment = _http_date(text)
    if moment is None:
        return None
    return max(moment - (_http_date(found.get("date", "")) or now), timedelta())


def _http_date(text: str) -> datetime | None:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _facts(ctx: RunContext, now: datetime) -> Facts:
    return Facts(
        job_id=ctx.job_id,
        run_id=ctx.run_id,
        attempt=ctx.attempt,
        scheduled_at=ctx.scheduled_at,
        now=now,
        body=ctx.payload,
    )


def _within(status: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(low <= status <= high for low, high in ranges)


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


# -- what is kept ---------------------------------------------------------------------------


def _detail(request: Prepared, heard: Heard, traces: Traces, seconds: float) -> dict[str, Any]:
    headers = request.shown_headers()
    if len(fitting := _fitting(headers.items())) < len(headers):
        headers = dict(fitting)
    return {
        "request": {
            "method": request.method,
            "url": request.url,
            "headers": headers,
            **_kept(request.body, traces),
        },
        "response": None if heard.status is None else _answer(heard, traces),
        "duration_ms": round(seconds * 1000, 3),
    }


def _answer(heard: Heard, traces: Traces) -> dict[str, Any]:
    return {
        "status": heard.status,
        "reason": _clean(heard.reason, traces)[:200],
        # In their order: a name may come twice.
        "headers": _fitting(
            [[name, _clean(text, traces)] for name, text in without_secrets(heard.headers)]
        ),
        **_kept(bytes(heard.body), traces, more=heard.more),
        "address": heard.address,
    }


def _keep(ctx: RunContext, detail: dict[str, Any]) -> None:
    """The call is over: what cannot be kept of it must not change how it ended."""
    try:
        leave_detail(ctx, detail)
    except InvalidPayload as error:
        answer = detail["response"]
        status = None if answer is None else {"status": answer["status"]}
        leave_detail(ctx, {"request": None, "response": status, "dropped": str(error)[:500]})


def _clean(text: str, traces: Traces) -> str:
    """Text of an answer without secrets, and without what is no Unicode."""
    text = traces.redacted(text)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _kept(body: bytes, traces: Traces, *, more: bool = False) -> dict[str, Any]:
    """The beginning of a body: as text, or what is no text in base64."""
    body = traces.redacted_bytes(body)
    truncated = more or len(body) > MOST_KEPT
    part = body[:MOST_KEPT]
    try:
        # A cut may fall inside a character; anything else that does not decode is no text.
        shown = _decoded_cut(part) if truncated else part.decode()
        if not _CONTROL.search(shown):
            return {"body": shown, "truncated": truncated}
    except UnicodeDecodeError:
        pass
    shown = base64.b64encode(part).decode()
    return {"body": shown, "encoding": "base64", "truncated": truncated}


def _decoded_cut(part: bytes) -> str:
    for cut in range(4):
        try:
            return part[: len(part) - cut].decode()
        except UnicodeDecodeError:
            if cut == 3:
                raise
    return ""


def _fitting(headers: Collection[Pair]) -> Collection[Pair]:
    """As many as are kept."""
    if sum(map(len, chain.from_iterable(headers))) <= MOST_KEPT_HEADERS:
        return headers
    sizes = accumulate(len(name) + len(text) for name, text in headers)
    return [one for one, size in zip(headers, sizes, strict=True) if size <= MOST_KEPT_HEADERS]
