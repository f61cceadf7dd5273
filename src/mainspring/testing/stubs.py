"""In place of the real thing, for tests: a run context without a run, and an endpoint of webhooks
that records each request, while none is sent."""

from __future__ import annotations

import asyncio
import fnmatch
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mainspring.core.context import RunContext, UpstreamResults, UpstreamRun
from mainspring.core.durations import duration
from mainspring.core.model import Run, State
from mainspring.core.policy import Span
from mainspring.errors import WebhookFailed
from mainspring.webhooks.request import PartialResponse, PreparedRequest

_WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def make_context(
    *,
    payload: Any = None,
    job_id: str = "test",
    attempt: int = 1,
    scheduled_at: datetime = _WHEN,
    resources: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    failed: Mapping[str, str] | None = None,
    transaction: Any = None,
) -> RunContext:
    """What a handler is given, with the facts that its test cares about.

    `results` are the results of the jobs that the run comes after, by job id; `failed` are the
    errors of those that failed.

    `transaction` is what `ctx.transaction()` hands to the handler: a connection or a session of
    the test's own, which begins and ends nothing here.
    """
    run = Run(
        id=f"{job_id}-run",
        job_id=job_id,
        handler=job_id,
        created_at=scheduled_at,
        scheduled_at=scheduled_at,
        run_at=scheduled_at,
        started_at=scheduled_at,
        state=State.RUNNING,
        attempt=attempt,
        token=attempt,
        payload=payload,
    )
    upstream = UpstreamResults(
        [
            *(
                _ended(name, State.SUCCEEDED, result=value)
                for name, value in (results or {}).items()
            ),
            *(_ended(name, State.FAILED, error=error) for name, error in (failed or {}).items()),
        ]
    )
    if transaction is None:
        return RunContext(run, resources, upstream)
    return RunContext(run, resources, upstream, transact=lambda ctx: _Session(ctx, transaction))


def _ended(job_id: str, state: State, **facts: Any) -> UpstreamRun:
    return UpstreamRun(run_id=f"{job_id}-run", job_id=job_id, state=state, **facts)


class _Session:
    def __init__(self, context: RunContext, session: Any) -> None:
        self._context = context
        self._session = session

    def __enter__(self) -> Any:
        self._context.in_transaction = True
        return self._session

    def __exit__(self, *error: Any) -> None:
        self._context.in_transaction = False

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self.__exit__()


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that a webhook job would have sent, with its secrets readable."""

    at: datetime
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


@dataclass(slots=True)
class _Answer:
    url: str
    status: int
    body: bytes
    headers: Mapping[str, str]
    error: str | None
    delay: float
    left: int | None


class WebhookStub:
    """`requests` holds what was sent, oldest first. Without a rule each request is answered 200."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.requests: list[SentRequest] = []
        self._now = now
        self._answers: list[_Answer] = []

    def answer(
        self,
        url: str = "*",
        status: int = 200,
        *,
        body: Any = b"",
        headers: Mapping[str, str] | None = None,
        error: str | None = None,
        delay: Span = 0,
        times: int | None = None,
    ) -> None:
        """Answer requests to this URL (`*` stands for any text) so from now on, or `times` times.

        The newest rule that matches wins. `body` is bytes, text, or a value sent as JSON. With
        `error` there is no answer: the call fails with that text, as when nobody listens there.
        `delay` is how long the answer takes, in virtual time.
        """
        seconds = duration(delay, what="delay").total_seconds()
        sent = _bytes(body)
        self._answers.append(_Answer(url, status, sent, headers or {}, error, seconds, times))

    async def send(self, request: PreparedRequest, response: PartialResponse) -> None:
        """Record the request and fill in the answer: the engine calls this to send."""
        sent = SentRequest(
            self._now(), request.method, request.url, dict(request.headers), request.body
        )
        self.requests.append(sent)
        answer = self._take_answer(request.url)
        if answer.delay:
            await asyncio.sleep(answer.delay)
        if answer.error is not None:
            raise WebhookFailed(answer.error)
        response.status = answer.status
        response.headers = list(answer.headers.items())
        response.body += answer.body

    async def close(self) -> None:
        """Nothing was opened."""

    def _take_answer(self, url: str) -> _Answer:
        for answer in reversed(self._answers):
            if answer.left != 0 and fnmatch.fnmatchcase(url, answer.url):
                if answer.left is not None:
                    answer.left -= 1
                return answer
        return _Answer("*", 200, b"", {}, None, 0.0, None)


def _bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()
