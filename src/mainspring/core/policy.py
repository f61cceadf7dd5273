"""What a job asks for: retries, backoff, limits, overlap, misfire, breaker, history. Pure values.

`Policy.make(...)` reads the forms people write (`timeout="10m"`, `backoff="fixed"`) and
refuses what makes no sense; everything behind it works on checked values.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from mainspring.core.durations import duration, humanize
from mainspring.core.input_errors import InputErrors
from mainspring.errors import InvalidInput, UnknownOption

Span = str | float | timedelta
E = TypeVar("E", bound=StrEnum)

MAX_PRIORITY = 9
MAX_NAME = 200
"""Characters of a queue, a key or another name."""
MAX_COUNT = 10**9
"""The largest whole number of an option: every store can keep it."""
MAX_SPAN = timedelta(days=365_000)
"""The longest duration of an option, 1,000 years: a time of today plus it is still a time."""
MAX_MEMORY = 2**50
MAX_UPSTREAM = 1000
"""How many jobs a job can come after."""

_SIZES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class BackoffKind(StrEnum):
    """How the wait between two attempts grows."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Overlap(StrEnum):
    """What becomes of a slot while the run of an earlier slot is unfinished."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"
    ALLOW = "allow"


class MisfireKind(StrEnum):
    """Which missed slots run: the newest one, none, or all."""

    ONCE = "once"
    SKIP = "skip"
    ALL = "all"


class Delivery(StrEnum):
    """How often a handler may start for one run, and what commits with its end."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
    EFFECT_ONCE = "effect_once"


class AfterFailure(StrEnum):
    """What becomes of a run if one that it comes after did not succeed."""

    SKIP = "skip"
    RUN = "run"


class Isolation(StrEnum):
    """Where a handler runs: on the event loop or in a thread, always in a thread, or in its own
    process."""

    AUTO = "auto"
    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next try.

    `fixed`: always `delay`; `linear`: `delay` times the failures; `exponential`: `delay` times
    `factor` to their power. At most `cap`: if it is not given, an hour, or `delay` where that is
    longer. Spread by ±10 % unless `jitter=False`.
    """

    kind: BackoffKind | str = BackoffKind.EXPONENTIAL
    delay: Span = timedelta(seconds=1)
    factor: float = 2
    cap: Span | None = None
    jitter: bool | float = True

    def __post_init__(self) -> None:
        _set(self, "kind", _choice(BackoffKind, self.kind, "backoff"))
        delay = _span(self.delay, "backoff delay", field="backoff.delay")
        _set(self, "delay", delay)
        cap = _usual_cap(delay)
        if self.cap is not None:
            cap = _span(self.cap, "backoff cap", field="backoff.cap")
        if cap < delay:
            raise InvalidInput(
                f"is the longest wait, so it cannot be shorter than the delay of"
                f" {humanize(delay)}: {humanize(cap)} was given. Give a longer cap, a shorter"
                " delay, or no cap",
                subject="backoff cap",
                field="backoff.cap",
                given=self.cap,
            )
        _set(self, "cap", cap)
        if not _is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise InvalidInput(
                f"is 1 or more, not {self.factor!r}",
                subject="a backoff factor",
                field="backoff.factor",
                given=self.factor,
            )
        if not isinstance(self.jitter, bool | int | float) or not 0 <= self.jitter <= 1:
            raise InvalidInput(
                f"is True, False or 0 to 1, not {self.jitter!r}",
                subject="backoff jitter",
                field="backoff.jitter",
                given=self.jitter,
            )
        # A number from here on: True equals 1, which would be a spread of 100 %.
        _set(self, "jitter", 0.1 if self.jitter is True else float(self.jitter))

    def with_delay(self, delay: Span) -> Backoff:
        """This backoff with another delay. A cap that was not given follows the delay."""
        usual = self.cap == _usual_cap(duration(self.delay))
        return replace(self, delay=delay, cap=None if usual else self.cap)

    def wait(self, failures: int, rng: random.Random) -> timedelta:
        """The time before the try that follows the given number of failures (1 or more)."""
        assert self.cap is not None
        delay, cap = duration(self.delay).total_seconds(), duration(self.cap).total_seconds()
        match self.kind:
            case BackoffKind.FIXED:
                seconds = delay
            case BackoffKind.LINEAR:
                seconds = delay * failures
            case BackoffKind.EXPONENTIAL:
                try:
                    seconds = delay * float(self.factor) ** (failures - 1)
                except OverflowError:
                    seconds = cap if delay else 0.0
        seconds = min(seconds, cap) * (1 + self.jitter * (2 * rng.random() - 1))
        return timedelta(seconds=min(seconds, cap))


def _usual_cap(delay: timedelta) -> timedelta:
    """The cap of a backoff that was given none."""
    return max(timedelta(hours=1), delay)


@dataclass(frozen=True, slots=True)
class Breaker:
    """After `failures` in a row, counted over all nodes, no run of the job starts for `reset`; then
    one run tries whether it can be closed."""

    failures: int = 5
    reset: Span = timedelta(seconds=60)

    def __post_init__(self) -> None:
        _whole_number(self.failures, "breaker failures", 1, field="breaker.failures")
        _set(self, "reset", _span(self.reset, "breaker reset", field="breaker.reset"))


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts in any `span` of time: `rate="100/m"`."""

    count: int
    span: timedelta

    @classmethod
    def read(cls, given: object) -> Rate:
        if isinstance(given, Rate):
            return given
        found = _RATE.fullmatch(given) if isinstance(given, str) else None
        if found is None:
            raise _refused_rate(given)
        number, unit = found["length"] or "1", found["unit"].lower()
        try:
            span = duration(f"{number}{unit}", what="rate")
        except InvalidInput:
            raise _refused_rate(given) from None
        if int(found["count"]) < 1:
            raise _refused_rate(given, "it lets no run start; pause the job instead")
        if int(found["count"]) > MOST_STARTS or not SHORTEST_RATE <= span <= LONGEST_RATE:
            raise _refused_rate(
                given, f"at most {MOST_STARTS:,} starts in 1 millisecond to 366 days can be counted"
            )
        return cls(int(found["count"]), span)

    def __str__(self) -> str:
        for unit, length in _RATE_UNITS.items():
            number, rest = divmod(self.span, length)
            if not rest:
                return f"{self.count}/{'' if number == 1 else number}{unit}"
        raise AssertionError("a span is whole microseconds")


MOST_STARTS = 1_000_000_000
SHORTEST_RATE, LONGEST_RATE = timedelta(milliseconds=1), timedelta(days=366)
_RATE = re.compile(
    r"\s*(?P<count>\d{1,18})\s*/\s*(?P<length>\d{0,18})\s*(?P<unit>ms|us|[wdhms])\s*",
    re.ASCII | re.IGNORECASE,
)
_RATE_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "us": timedelta(microseconds=1),
}
_RATE_FORMS = 'a text such as "10/s", "100/m", "1000/h", "5000/d" or "3/30s"'


def _refused_rate(given: object, why: str | None = None) -> InvalidInput:
    reason = f" ({why})" if why else ""
    return InvalidInput(
        f"{given!r} cannot be used{reason}: give a number of starts per span of time, such as"
        ' "10/s" or "3/30s"; leave `rate` out for no limit',
        subject="rate",
        field="rate",
        given=given,
        allowed=_RATE_FORMS,
    )


@dataclass(frozen=True, slots=True)
class Misfire:
    """What becomes of slots that are more than `grace` late when they can first be fired.

    `once`: the newest runs; `skip`: none does; `all`: the newest `limit` do.
    """

    kind: MisfireKind | str = MisfireKind.ONCE
    grace: Span = timedelta(seconds=60)
    limit: int = 100

    def __post_init__(self) -> None:
        _set(self, "kind", _choice(MisfireKind, self.kind, "misfire"))
        _set(self, "grace", _span(self.grace, "misfire grace", field="misfire.grace"))
        _whole_number(self.limit, "misfire limit", 1, field="misfire.limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a job's runs are retried, limited and isolated: docs/reference/job-options.md."""

    retries: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    retry_on: tuple[str, ...] = ()
    give_up_on: tuple[str, ...] = ()
    timeout: timedelta | None = None
    priority: int = 5
    queue: str = "default"
    concurrency: int | None = None
    concurrency_key: str | None = None
    rate: Rate | None = None
    rate_key: str | None = None
    overlap: Overlap = Overlap.SKIP
    misfire: Misfire = field(default_factory=Misfire)
    start_deadline: timedelta | None = None
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    isolation: Isolation = Isolation.AUTO
    memory_limit: int | None = None
    breaker: Breaker | None = None
    after: tuple[str, ...] = ()
    after_failure: AfterFailure = AfterFailure.SKIP
    run_on_start: bool = False
    each_node: bool = False
    retention: timedelta | None = None
    """How long the job's finished runs are kept; None: as long as the scheduler says."""
    history: int | None = None
    """How many finished runs of the job are kept; None: as many as the scheduler says."""

    @classmethod
    def make(cls, base: Policy | None = None, /, **given: Any) -> Policy:
        """Read the forms people write, over `base`; refuse what makes no sense."""
        errors = InputErrors()
        policy = cls.collect(errors, base, **given)
        errors.check()
        return policy

    @classmethod
    def collect(cls, errors: InputErrors, base: Policy | None = None, /, **given: Any) -> Policy:
        """As `make`, but what is wrong is added to `errors`. An option that is wrong keeps the
        value of `base`, so that the others can be checked."""
        policy, wrong = cls._read(errors, base or cls(), given)
        policy._check(errors, wrong)
        return policy

    @classmethod
    def make_unchecked(cls, base: Policy | None = None, /, **given: Any) -> Policy:
        """As `make`, but options that do not fit each other are allowed."""
        errors = InputErrors()
        policy, _ = cls._read(errors, base or cls(), given)
        errors.check()
        return policy

    @classmethod
    def _read(
        cls, errors: InputErrors, base: Policy, given: Mapping[str, Any]
    ) -> tuple[Policy, Set[str]]:
        """Read each option by itself. The second value names those that are wrong."""
        if unknown := given.keys() - _READERS.keys():
            errors.add(UnknownOption(unknown, _READERS))
        values: dict[str, Any] = {}
        for name, read in _READERS.items():
            if name in given:
                with errors:
                    values[name] = read(given[name])
        if "retry_delay" in given and isinstance(given.get("backoff"), Backoff | Mapping):
            why = "give retry_delay or a Backoff with its delay, not both"
            errors.add(InvalidInput(why, field="retry_delay"))
        wrong = given.keys() - values.keys()
        retry_delay = values.pop("retry_delay", None)
        policy = replace(base, **values)
        if retry_delay is not None:
            with errors:
                policy = replace(policy, backoff=policy.backoff.with_delay(retry_delay))
        return policy, wrong

    def _check(self, errors: InputErrors, wrong: Set[str]) -> None:
        """Add what is wrong with options that do not fit each other. An option that is compared
        with a wrong option is not reported."""
        needs_limit = self.concurrency_key is not None and self.concurrency is None
        if needs_limit and "concurrency" not in wrong:
            errors.add(
                InvalidInput(
                    "a concurrency key needs a concurrency: how many runs that share the key may"
                    " run at once",
                    field="concurrency_key",
                )
            )
        if self.rate_key is not None and self.rate is None and "rate" not in wrong:
            errors.add(
                InvalidInput(
                    "a rate key needs a rate: how many runs that share the key may start in a span"
                    ' of time, such as rate="100/m"',
                    field="rate_key",
                )
            )
        outside = self.memory_limit is not None and self.isolation is not Isolation.PROCESS
        if outside and "isolation" not in wrong:
            errors.add(
                InvalidInput(
                    'needs isolation="process": only a process has memory of its own',
                    subject="memory_limit",
                    field="memory_limit",
                )
            )
        repeated = self.delivery is Delivery.AT_MOST_ONCE and self.retries
        if repeated and "retries" not in wrong:
            errors.add(
                InvalidInput(
                    "a run that is delivered at most once is started once: it takes no retries",
                    field="retries",
                )
            )

    def retries_error(self, names: Iterable[str]) -> bool:
        """Whether an error of these class names (its own and its bases') is worth a retry."""
        kinds = set(names)
        if kinds & set(self.give_up_on):
            return False
        return not self.retry_on or bool(kinds & set(self.retry_on))

    def to_dict(self, *, complete: bool = False) -> dict[str, Any]:
        """What differs from the built-in values, in JSON's words; with `complete` every option."""
        return {
            f.name: _plain(getattr(self, f.name))
            for f in fields(self)
            if complete or getattr(self, f.name) != getattr(_DEFAULT, f.name)
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """The policy that `to_dict` wrote."""
        return cls.make(**data)


def error_names(error: BaseException | type[BaseException]) -> tuple[str, ...]:
    """The names under which `retry_on` matches an error: plain and dotted, its own and its
    bases'."""
    kind = error if isinstance(error, type) else type(error)
    names = []
    for base in kind.__mro__[:-1]:
        names += [base.__name__, f"{base.__module__}.{base.__qualname__}"]
    return tuple(names)


def _set(value: object, name: str, to: object) -> None:
    object.__setattr__(value, name, to)


def _choice(kind: type[E], given: object, what: str) -> E:
    try:
        return kind(given)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(
            f"is one of {', '.join(kind)}, not {given!r}",
            subject=what,
            field=what,
            given=given,
            allowed=[choice.value for choice in kind],
        ) from None


def _whole_number(
    given: object, what: str, least: int, most: int = MAX_COUNT, *, field: str | None = None
) -> int:
    allowed = f"{least} or more" if most >= MAX_COUNT else f"{least} to {most}"
    if isinstance(given, bool) or not isinstance(given, int):
        raise _refused(what, given, "is a whole number", allowed, field=field)
    if most >= MAX_COUNT and given > most:
        raise _refused(what, given, f"is at most {most}", allowed, field=field)
    if not least <= given <= most:
        raise _refused(what, given, f"is {allowed}", allowed, field=field)
    return given


def _span(given: Any, what: str, *, field: str | None = None) -> timedelta:
    span = duration(given, what=what, field=field or what)
    if span > MAX_SPAN:
        raise _refused(what, given, f"is at most {humanize(MAX_SPAN)}", field=field)
    return span


def _refused(
    what: str, given: object, rule: str, allowed: object = None, *, field: str | None = None
) -> InvalidInput:
    """The error of an option that breaks a rule. `field` is `what` where it is not given."""
    shown = humanize(given) if isinstance(given, timedelta) else repr(given)
    return InvalidInput(
        f"{rule}, not {shown}", subject=what, field=field or what, given=given, allowed=allowed
    )


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _items(given: Any, what: str) -> list[Any]:
    if not isinstance(given, Iterable):
        raise _refused(what, given, "takes one name or a list of them")
    return list(given)


def _positive(given: Any, what: str) -> timedelta | None:
    if given is None:
        return None
    span = _span(given, what)
    if not span:
        raise _refused(what, given, "must be longer than zero, or left out for none")
    return span


def _name(given: object, what: str) -> str:
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_NAME or not given.isprintable():
        raise _refused(what, given, f"is 1 to {MAX_NAME} printable characters")
    return given


def _flag(given: object, what: str) -> bool:
    if not isinstance(given, bool):
        raise _refused(what, given, "is True or False", (True, False))
    return given


def _kinds(given: Any, what: str) -> tuple[str, ...]:
    """Error classes, or their names: names are what is kept, so nothing is ever imported."""
    items = [given] if isinstance(given, str | type) else _items(given, what)
    names = []
    for item in items:
        if isinstance(item, type) and issubclass(item, BaseException):
            names.append(f"{item.__module__}.{item.__qualname__}")
        elif isinstance(item, str) and item:
            names.append(item)
        else:
            raise _refused(what, item, "takes error classes or their names")
    return tuple(names)


def _job_names(given: Any) -> tuple[str, ...]:
    """Job ids, or decorated functions, which carry theirs as `.id`."""
    single = isinstance(given, str) or hasattr(given, "id")
    items = [given] if single else _items(given, "after")
    if len(items) > MAX_UPSTREAM:
        raise InvalidInput(
            f"names at most {MAX_UPSTREAM:,} jobs, not {len(items):,}",
            subject="after",
            field="after",
        )
    return tuple(_name(getattr(item, "id", item), "after") for item in items)


def memory_size(given: Any) -> int | None:
    """Bytes, given as a number or as text with a unit."""
    if given is None:
        return None
    if isinstance(given, str):
        number = given.strip().rstrip("BbKkMmGgIi ")
        unit = given.strip()[len(number) :].strip().lower()
        try:
            size = int(float(number) * (_SIZES[unit] if unit else 1))
        except (ValueError, KeyError, OverflowError):
            raise _refused(
                "memory_limit", given, "is bytes or text like '512MiB' or '2GB'"
            ) from None
        return _whole_number(size, "memory_limit", 1, MAX_MEMORY)
    return _whole_number(given, "memory_limit", 1, MAX_MEMORY)


def _value(kind: type[Any], given: Any, field: str) -> Any:
    """One of our values: as it is, as an object of its parts, or by its first part alone."""
    if isinstance(given, Mapping):
        names = [part.name for part in fields(kind)]
        if unknown := sorted(map(str, given.keys() - set(names))):
            raise InvalidInput(
                f"has no {', '.join(unknown)}; it takes {', '.join(names)}",
                subject=field,
                field=f"{field}.{unknown[0]}",
                allowed=names,
            )
        return kind(**given)
    return given if isinstance(given, kind) else kind(given)


def _breaker(given: Any) -> Any:
    if given is None or given is False:
        return None
    if given is True:
        return Breaker()
    return _value(Breaker, given, "breaker")


def _limit(given: Any) -> int | None:
    return None if given is None else _whole_number(given, "concurrency", 1)


_READERS: dict[str, Any] = {
    "retries": lambda v: _whole_number(v, "retries", 0),
    "backoff": lambda v: _value(Backoff, v, "backoff"),
    "retry_delay": lambda v: _span(v, "retry_delay"),
    "retry_on": lambda v: _kinds(v, "retry_on"),
    "give_up_on": lambda v: _kinds(v, "give_up_on"),
    "timeout": lambda v: _positive(v, "timeout"),
    "priority": lambda v: _whole_number(v, "priority", 0, MAX_PRIORITY),
    "queue": lambda v: _name(v, "queue"),
    "concurrency": _limit,
    "concurrency_key": lambda v: None if v is None else _name(v, "concurrency_key"),
    "rate": lambda v: None if v is None else Rate.read(v),
    "rate_key": lambda v: None if v is None else _name(v, "rate_key"),
    "overlap": lambda v: _choice(Overlap, v, "overlap"),
    "misfire": lambda v: _value(Misfire, v, "misfire"),
    "start_deadline": lambda v: _positive(v, "start_deadline"),
    "delivery": lambda v: _choice(Delivery, v, "delivery"),
    "isolation": lambda v: _choice(Isolation, v, "isolation"),
    "memory_limit": memory_size,
    "breaker": _breaker,
    "after": _job_names,
    "after_failure": lambda v: _choice(AfterFailure, v, "after_failure"),
    "run_on_start": lambda v: _flag(v, "run_on_start"),
    "each_node": lambda v: _flag(v, "each_node"),
    "retention": lambda v: None if v is None else _span(v, "retention"),
    "history": lambda v: None if v is None else _whole_number(v, "history", 0),
}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Rate):
        return str(value)
    if isinstance(value, Backoff | Breaker | Misfire):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return list(value) if isinstance(value, tuple) else value


_DEFAULT = Policy()
