"""The options of one enqueue, checked: when it runs, its priority, queue and dedupe key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Unpack

from mainspring.core.durations import duration
from mainspring.core.job_options import (
    EnqueueOptions,
    JobRef,
    RunRef,
    job_id_of,
    option_names,
    run_id_of,
)
from mainspring.core.model import Run, check_key
from mainspring.core.policy import AfterFailure, Policy, Span
from mainspring.core.schedules import dst
from mainspring.errors import InvalidInput, UnknownOption


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEnqueueOptions:
    """The options of one enqueue. Making it raises `InvalidInput` for values that cannot be used;
    `job_options.EnqueueOptions` has the same names for type checkers."""

    delay: Span | None = None
    at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    dedupe_key: str | list[str] | None = None
    dedupe_for: Span | None = None
    after: RunRef | Sequence[RunRef] | None = None
    after_failure: AfterFailure | str | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.at is not None:
            raise InvalidInput("give delay or at, not both", field="at")
        if self.dedupe_for is not None and self.dedupe_key is None:
            raise InvalidInput("dedupe_for needs a dedupe_key", field="dedupe_for")
        if self.at is not None and not isinstance(self.at, datetime):
            raise InvalidInput(f"at is a datetime, not {self.at!r}", field="at", given=self.at)
        keys = self.dedupe_key
        for key in keys if isinstance(keys, list) else [] if keys is None else [keys]:
            if not isinstance(key, str) or not 1 <= len(key) <= 500:
                raise InvalidInput(
                    f"a dedupe_key is text of 1 to 500 characters, not {key!r}",
                    field="dedupe_key",
                    given=key,
                )
            check_key(key, "a dedupe_key", "dedupe_key")
        if not isinstance(self.after, str | Run | list | tuple | None):
            raise InvalidInput(
                f"after takes a run, its id, or a list of them, not {self.after!r}",
                field="after",
                given=self.after,
            )
        if self.after_failure is not None and not self.after:
            raise InvalidInput(
                "after_failure needs after: the runs that this one comes after",
                field="after_failure",
                given=self.after_failure,
            )
        given = {
            "priority": self.priority,
            "queue": self.queue,
            "after_failure": self.after_failure,
        }
        Policy.make(**{name: value for name, value in given.items() if value is not None})

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CheckedEnqueueOptions:
        """The options given by name. Raises `UnknownOption` for any other name."""
        try:
            return cls().changed(given)
        except UnknownOption as error:
            error.add_advice(
                'a run\'s arguments go in its payload, as in enqueue("job", {"to": "ada"})'
            )
            raise

    def changed(self, given: Mapping[str, Any]) -> CheckedEnqueueOptions:
        allowed = option_names(EnqueueOptions)
        if unknown := given.keys() - allowed:
            raise UnknownOption(unknown, allowed)
        return replace(self, **given)

    def run_at(self, now: datetime, zone: tzinfo) -> datetime:
        if self.delay is not None:
            return _later(now, self.delay, "delay")
        if self.at is None:
            return now
        try:
            if self.at.utcoffset() is None:
                return dst.instant_of(self.at.replace(tzinfo=None), zone)
            return self.at.astimezone(UTC)
        except OverflowError:
            raise InvalidInput(
                f"at {self.at} lies outside the calendar", field="at", given=self.at
            ) from None

    def dedupe_until(self, now: datetime) -> datetime | None:
        """Until when the key is held after its run has ended; None: only while the run is live."""
        held = self.dedupe_for
        return None if held is None else _later(now, held, "dedupe_for")

    def keys(self, count: int) -> list[str | None]:
        """The dedupe key of each of `count` payloads, or None."""
        if not isinstance(self.dedupe_key, list):
            if self.dedupe_key is not None and count > 1:
                raise InvalidInput(
                    "give a list of dedupe keys, one for each payload", field="dedupe_key"
                )
            return [self.dedupe_key] * count
        if len(self.dedupe_key) != count:
            raise InvalidInput(
                f"{len(self.dedupe_key)} dedupe keys were given for {count} payloads",
                field="dedupe_key",
            )
        return list(self.dedupe_key)

    def upstream(self) -> tuple[str, ...]:
        after = [self.after] if isinstance(self.after, str | Run) else self.after or ()
        return tuple(map(run_id_of, after))


class Enqueue:
    """One run to queue, with options of its own, for `enqueue_many`:

    `Enqueue("send_email", {"to": "ada@example.org"}, delay="5m")`
    """

    def __init__(self, job: JobRef, payload: Any = None, **options: Unpack[EnqueueOptions]) -> None:
        self.job_id = job_id_of(job)
        self.payload = payload
        self.options = CheckedEnqueueOptions.of(options)

    def __repr__(self) -> str:
        return f"<Enqueue {self.job_id}>"


def _later(now: datetime, span: Span, what: str) -> datetime:
    try:
        return now + duration(span, what=what)
    except OverflowError:
        raise InvalidInput(
            f"{what} {span!r} ends outside the calendar", field=what, given=span
        ) from None
