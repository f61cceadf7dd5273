"""A run context without a run, to call a handler directly in a test."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mainspring.core.context import RunContext, UpstreamResults, UpstreamRun
from mainspring.core.model import Run, State

__all__ = ["make_context"]

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
    return RunContext(run, resources, upstream, transact=lambda ctx: _Given(ctx, transaction))


def _ended(job_id: str, state: State, **facts: Any) -> UpstreamRun:
    return UpstreamRun(run_id=f"{job_id}-run", job_id=job_id, state=state, **facts)


class _Given:
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
