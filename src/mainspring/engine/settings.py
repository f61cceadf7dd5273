"""The settings of one engine, checked once, when the scheduler is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, TypedDict, Unpack, get_type_hints

from mainspring.core.durations import duration
from mainspring.core.policy import Policy, Span, memory_size
from mainspring.errors import InvalidInput, refused


class Choices(TypedDict, total=False):
    """Settings that an operator overrides; None keeps what the code says."""

    workers: int | None
    queues: Iterable[str] | None
    poll: Span | None
    retention: Span | None
    history: int | None
    prune_every: Span | None
    leader_election: bool | None
    wait_for_store: Span | None
    enabled: bool | None
    memory_limit: int | str | None
    drain_timeout: Span | None
    log_each_run: bool | None


def _workers(given: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= 10_000:
        raise refused("workers", given, "is 0 to 10000")
    return given


def _history(given: int | None) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise refused("history", given, "is 0 or more (runs of each job), or None")
    return given


def _span(name: str, least: Span = 0, most: Span | None = None) -> Callable[[Span], timedelta]:
    """Reads a duration between these two."""
    allowed = f"at least {least}" if most is None else f"{least} to {most}"

    def read(given: Span) -> timedelta:
        span = duration(given, what=name)
        if span < duration(least) or (most is not None and span > duration(most)):
            raise refused(name, given, f"is {allowed}", allowed)
        return span

    return read


read_prune_every = _span("prune_every", "1s", "1d")
"""How often finished runs are deleted; InvalidInput for what is not allowed."""


def _leader_election(given: bool) -> bool:
    if not isinstance(given, bool):
        raise InvalidInput(
            f"leader_election is True or False, not {given!r}: the leader is elected in the"
            " scheduler's own store, and no other service takes part",
            field="leader_election",
            given=given,
            allowed=(True, False),
        )
    return given


def _enabled(given: bool) -> bool:
    if not isinstance(given, bool):
        raise InvalidInput(
            f"enabled is True or False, not {given!r}: with False this process fires no slots",
            field="enabled",
            given=given,
        )
    return given


def _queues(given: str | Iterable[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    names = frozenset([given] if isinstance(given, str) else given)
    if not names:
        raise InvalidInput(
            "queues is empty, so this process would take no run: name a queue, leave `queues` out"
            " to take all, or set workers=0 to take none",
            field="queues",
            given=given,
        )
    for name in names:
        Policy.make(queue=name)  # raises if this is no name for a queue
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one engine. Each is annotated with the function that reads what is given for
    it, and raises InvalidInput for what is not allowed."""

    worker_id: str
    workers: Annotated[int, _workers] = 0
    queues: Annotated[frozenset[str] | None, _queues] = None
    lease: Annotated[timedelta, _span("lease", "1s")] = timedelta(seconds=30)
    poll: Annotated[timedelta, _span("poll", "10ms", "1m")] = timedelta(seconds=1)
    retention: Annotated[timedelta, _span("retention")] = timedelta(days=30)
    history: Annotated[int | None, _history] = None
    """How many finished runs of each job are kept; None: any number, within the retention."""
    prune_every: Annotated[timedelta, read_prune_every] = timedelta(minutes=1)
    leader_election: Annotated[bool, _leader_election] = True
    wait_for_store: Annotated[timedelta, _span("wait_for_store")] = timedelta(seconds=30)
    enabled: Annotated[bool, _enabled] = True
    """Whether this process fires slots. One that does not still runs what is enqueued."""
    memory_limit: Annotated[int | None, memory_size] = None
    """Bytes of memory at which the process claims no more runs, and drains."""
    drain_timeout: Annotated[timedelta, _span("drain_timeout")] = timedelta(seconds=30)
    """How long runs may take to end after the memory limit was reached."""
    log_each_run: Annotated[bool, bool] = True
    """Whether runs that went well are logged too, one line each, where the logger takes INFO."""

    @classmethod
    def make(cls, worker_id: str, **options: Any) -> Settings:
        """Make settings from what the program gives."""
        return cls(
            worker_id=worker_id, **{name: _READ[name](value) for name, value in options.items()}
        )

    def changed(self, **choices: Unpack[Choices]) -> Settings:
        """Return these settings with the overrides applied."""
        overrides = {name: value for name, value in choices.items() if value is not None}
        return replace(self, **{name: _READ[name](value) for name, value in overrides.items()})


_READ: dict[str, Callable[[Any], Any]] = {
    name: kind.__metadata__[0]
    for name, kind in get_type_hints(Settings, include_extras=True).items()
    if hasattr(kind, "__metadata__")
}
