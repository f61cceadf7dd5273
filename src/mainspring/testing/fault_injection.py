"""A store that fails as real ones do: before a write, after it, slowly, or for a while.

The hardest fault is the error after the commit: the work is done and the answer is lost. A caller
that gets `StoreUnavailable` cannot tell which of the two happened, so it must be able to send
everything again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from mainspring.core.transitions import Change
from mainspring.errors import StoreUnavailable
from mainspring.stores.protocol import Held, Store, StoreInfo, Transaction

T = TypeVar("T")

Error = Literal["before", "after", "outage"]


@dataclass(frozen=True, slots=True)
class Injection:
    """What happens to one call: an error, and seconds of delay before and after the work.

    `before` and `outage`: nothing is done; `after`: it is done, and the answer is lost.
    """

    error: Error | None = None
    delay: float = 0.0
    delay_after: float = 0.0


NOTHING = Injection()


class FaultPlan(Protocol):
    """Decides which fault the next call of a store meets, as `RandomFaults` does."""

    def inject(self, method: str) -> Injection:
        """What the next call of this method meets."""
        ...


class RandomFaults:
    """Faults drawn from a seed.

    `before` and `after` are probabilities; `delay` and `delay_after` the longest wait, in
    seconds; `outages` are windows, in seconds since the plan's first call, in which every call
    fails. `methods` narrows all of this (by default to everything but `open` and `close`).
    Share one plan between several `FaultyStore`s and an outage hits them all at once.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        before: float = 0.0,
        after: float = 0.0,
        delay: float = 0.0,
        delay_after: float = 0.0,
        outages: Sequence[tuple[float, float]] = (),
        methods: Iterable[str] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._before = before
        self._after = after
        self._delay = delay
        self._delay_after = delay_after
        self._outages = tuple(outages)
        self._methods = None if methods is None else frozenset(methods)
        self._origin: float | None = None

    def inject(self, method: str) -> Injection:
        if self._exempt(method):
            return NOTHING
        delay = self._delay and self._random.uniform(0, self._delay)
        if self._in_outage(delay):
            return Injection("outage", delay)
        return Injection(
            self._error(),
            delay,
            self._delay_after and self._random.uniform(0, self._delay_after),
        )

    def _exempt(self, method: str) -> bool:
        if self._methods is None:
            return method in ("open", "close")
        return method not in self._methods

    def _error(self) -> Error | None:
        drawn = self._random.random()
        if drawn < self._before:
            return "before"
        return "after" if drawn < self._before + self._after else None

    def _in_outage(self, delay: float) -> bool:
        """Whether the store is away when the call reaches it, its delay behind it."""
        now = asyncio.get_running_loop().time()
        if self._origin is None:
            self._origin = now
        passed = now - self._origin + delay
        return any(begin <= passed < end for begin, end in self._outages)


class ScriptedFaults:
    """An explicit plan: for each method what its first, second, … call meets.

    `ScriptedFaults({"commit": [None, "after"]})` lets the first commit through and loses the
    answer of the second; everything behind the script's end goes through.
    """

    def __init__(self, script: Mapping[str, Iterable[Error | Injection | None]]) -> None:
        self._script = {method: deque(steps) for method, steps in script.items()}

    def inject(self, method: str) -> Injection:
        steps = self._script.get(method)
        if not steps:
            return NOTHING
        step = steps.popleft()
        return step if isinstance(step, Injection) else Injection(step)


def _faulty(method: str) -> Any:
    """The method of the store, which meets the plan first."""

    async def call(self: FaultyStore, *args: Any, **options: Any) -> Any:
        work = partial(getattr(self.store, method), *args, **options)
        return await self._call(method, work)

    return call


class FaultyStore:
    """Any store, behind a plan of faults. `injected` counts them, by method and kind."""

    def __init__(self, store: Store, plan: FaultPlan) -> None:
        self.store = store
        self.injected: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[str] = Counter()
        self._plan = plan

    async def _call(self, method: str, work: Callable[[], Awaitable[T]]) -> T:
        self.calls[method] += 1
        injection = self._plan.inject(method)
        if injection.delay or injection.delay_after:
            self.injected[method, "delay"] += 1
        if injection.delay:
            await asyncio.sleep(injection.delay)
        if injection.error in ("before", "outage"):
            self._fail(method, injection.error)
        answer = await work()
        if injection.delay_after:
            await asyncio.sleep(injection.delay_after)
        if injection.error == "after":
            self._fail(method, "after")
        return answer

    def _fail(self, method: str, error: Error) -> None:
        self.injected[method, error] += 1
        raise StoreUnavailable(f"injected: {method} failed ({error})")

    def info(self) -> StoreInfo:
        return self.store.info()

    open = _faulty("open")
    close = _faulty("close")
    now = _faulty("now")
    add = _faulty("add")
    claim = _faulty("claim")
    renew = _faulty("renew")
    commit = _faulty("commit")
    find = _faulty("find")
    counts = _faulty("counts")
    maintain = _faulty("maintain")
    jobs = _faulty("jobs")
    put_jobs = _faulty("put_jobs")
    notes = _faulty("notes")
    put_notes = _faulty("put_notes")
    fire = _faulty("fire")
    wait = _faulty("wait")

    def transaction(self, held: Held, limit: timedelta, *, blocking: bool = False) -> Transaction:
        inner = self.store.transaction(held, limit, blocking=blocking)
        return inner if blocking else _FaultyTransaction(inner, self._call)


class _FaultyTransaction:
    """Its steps meet the plan under the name `transaction`; to undo it never fails."""

    def __init__(self, inner: Transaction, call: Callable[..., Any]) -> None:
        self._inner = inner
        self._call = call

    async def begin(self) -> Any:
        return await self._call("transaction", self._inner.begin)

    async def commit(self, change: Change) -> bool:
        done: bool = await self._call("transaction", lambda: self._inner.commit(change))
        return done

    async def rollback(self) -> None:
        await self._inner.rollback()

    def transient(self, error: BaseException) -> bool:
        return self._inner.transient(error)
