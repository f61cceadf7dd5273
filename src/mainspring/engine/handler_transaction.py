"""`ctx.transaction()`: a handler's own writes and its run's completion, committed as one.

The store commits; this module decides when it may, and which error the handler gets if it may not.
It runs where the handler runs, not on the engine's loop. `completion` of the attempt is set from
the moment the commit is sent, `committed` once the store has confirmed it. If the answer is lost,
the attempt ends as aborted: that change is fenced, so the store refuses it if the transaction
stands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from mainspring.core.context import CONTEXT_IN_TRANSACTION
from mainspring.engine.attempt import LocalAttempt
from mainspring.engine.context import EngineContext
from mainspring.engine.outcome import make_completion
from mainspring.errors import (
    InvalidInput,
    InvalidState,
    MainspringError,
    StoreUnavailable,
    TransactionAborted,
    TransactionExpired,
)
from mainspring.stores.protocol import Held, Transaction

T = TypeVar("T")


class RunTransaction:
    """One use of `ctx.transaction()`. Implements `context.HandlerTransaction`."""

    def __init__(self, engine: EngineContext, attempt: LocalAttempt) -> None:
        self._engine = engine
        self._attempt = attempt
        self._limit = engine.settings.lease / 3
        self._transaction: Transaction
        self._timer: asyncio.Timeout
        self._began = 0.0

    async def __aenter__(self) -> Any:
        self._make(blocking=False)
        session = await self._begin()
        self._timer = asyncio.timeout(self._limit.total_seconds())
        await self._timer.__aenter__()
        return session

    async def __aexit__(self, *given: Any) -> None:
        kind, error, trace = given
        with contextlib.suppress(TimeoutError):  # `expired()` says whether it is over
            await self._timer.__aexit__(kind, error, trace)
        await _shielded(self._end(error, expired=self._timer.expired()))

    def __enter__(self) -> Any:
        if self._attempt.handler.is_async:
            raise InvalidState("an async handler writes `async with ctx.transaction()`")
        self._make(blocking=True)
        return _run_blocking(self._begin())

    def __exit__(self, *given: Any) -> None:
        _run_blocking(self._end(given[1], expired=False))

    # Steps

    def _make(self, *, blocking: bool) -> None:
        run, store = self._attempt.run, self._engine.store
        if self._attempt.committed:
            raise InvalidState(
                f"run {run.id} has already been completed by its transaction: use"
                " `ctx.transaction()` once, as the last step of the handler"
            )
        if self._attempt.context.in_transaction:
            raise InvalidState(
                f"run {run.id} is already in a transaction: do not open a second one inside the"
                " block"
            )
        if (why := store.info().no_transactions) is not None:
            raise InvalidState(f"there is no transaction here: {why}")
        self._raise_if_stopped()
        held = Held(run.id, run.token)
        self._transaction = store.transaction(held, self._limit, blocking=blocking)

    async def _begin(self) -> Any:
        try:
            session = await self._transaction.begin()
        except BaseException as error:
            await self._transaction.rollback()
            self._raise_for_handler(error)
            raise
        self._began = self._engine.clock.monotonic()
        self._attempt.context.in_transaction = True
        CONTEXT_IN_TRANSACTION.set(self._attempt.context)
        return session

    async def _end(self, error: BaseException | None, *, expired: bool) -> None:
        """Complete the run, or roll back and raise the reason."""
        lasted = self._engine.clock.monotonic() - self._began
        expired = expired or lasted > self._limit.total_seconds()
        try:
            if error is None and not expired:
                await self._complete()
                return
            await self._transaction.rollback()
        except BaseException as reason:
            await self._transaction.rollback()
            self._raise_for_handler(reason)
            raise
        finally:
            self._attempt.context.in_transaction = False
        if expired:
            raise self._expired() from error
        if error is not None and self._transaction.transient(error):
            self._raise_for_handler(TransactionAborted(f"{type(error).__name__}: {error}"[:500]))

    async def _complete(self) -> None:
        self._raise_if_stopped()
        attempt = self._attempt
        attempt.completion = make_completion(attempt, self._engine.time.now())
        try:
            kept = await self._transaction.commit(attempt.completion)
        except (InvalidInput, TransactionExpired):
            attempt.completion = None
            raise
        # After any other error the commit may stand all the same: the completer finds out.
        if not kept:
            attempt.completion = None
            raise TransactionAborted(
                "the run was cancelled, or another worker has claimed it; nothing was written"
            )
        attempt.committed = True

    def _raise_if_stopped(self) -> None:
        if self._attempt.stop_reason is not None:
            raise TransactionAborted(
                f"the handler of run {self._attempt.run.id} was asked to stop"
                f" ({self._attempt.stop_reason.value}), so its transaction is not committed"
            )

    def _expired(self) -> TransactionExpired:
        seconds = self._limit.total_seconds()
        return TransactionExpired(
            f"the transaction of run {self._attempt.run.id} lasted longer than {seconds:g} s, a"
            " third of the lease, and was rolled back: do what is slow before the block"
        )

    def _raise_for_handler(self, error: BaseException) -> None:
        """Raise the error for the handler that stands for an error of the store."""
        what = f"the transaction of run {self._attempt.run.id}"
        if isinstance(error, TransactionAborted):
            raise TransactionAborted(f"{what} was rolled back: {error}") from error
        if isinstance(error, StoreUnavailable):
            raise TransactionAborted(f"{what} got no answer from the store: {error}") from error
        if isinstance(error, TransactionExpired):
            raise self._expired() from error


async def _shielded(ending: Coroutine[Any, Any, None]) -> None:
    """Await a coroutine whose outcome must be known. A cancellation is raised afterwards."""
    task = asyncio.ensure_future(ending)
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def _run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, in plain code."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise MainspringError("a blocking transaction of this store waits for an event loop")
