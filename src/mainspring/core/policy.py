"""What a job asks for: retries, backoff, limits, overlap, misfire, breaker, history. Pure values.

`Policy.make(...)` reads the forms people write (`timeout="10m"`, `backoff="fixed"`) and
refuses what makes no sense; everything behind it works on checked values.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from mainspring.core.durations import duration, humanize
from mainspring.errors import InputErrors, InvalidInput, UnknownOption, refused

Span = str | float | timedelta
E = TypeVar("E", bound=StrEnum)
Read = Callable[[Any, str], Any]
"""Reads the value that a user gives for an option, by the option's name."""

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


class Origin(StrEnum):
    """Where the value of a policy option comes from: the job itself, the defaults of the scheduler
    that stored the job, or Mainspring."""

    JOB = "job"
    DEFAULTS = "defaults"
    BUILT_IN = "built_in"


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
        _set(self, "kind", _choice(BackoffKind)(self.kind, "backoff"))
        delay = _span(self.delay, "backoff.delay")
        _set(self, "delay", delay)
        cap = _usual_cap(delay) if self.cap is None else _span(self.cap, "backoff.cap")
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
            raise refused("backoff.factor", self.factor, "is 1 or more", subject="a backoff factor")
        if not isinstance(self.jitter, bool | int | float) or not 0 <= self.jitter <= 1:
            rule = "is True, False or 0 to 1"
            raise refused("backoff.jitter", self.jitter, rule, subject="backoff jitter")
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
        _whole_number(1)(self.failures, "breaker.failures")
        _set(self, "reset", _span(self.reset, "breaker.reset"))


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts in any `span` of time: `rate="100/m"`."""

    count: int
    span: timedelta

    @classmethod
    def read(cls, given: object, name: str = "rate") -> Rate:
        if isinstance(given, Rate):
            return given
        match = _RATE.fullmatch(given) if isinstance(given, str) else None
        if match is None:
            raise _refused_rate(given)
        count, unit = int(match["count"]), match["unit"].lower()
        try:
            span = duration(f"{match['length'] or '1'}{unit}", what="rate")
        except InvalidInput:
            raise _refused_rate(given) from None
        if count < 1:
            raise _refused_rate(given, " (it lets no run start; pause the job instead)")
        if count > MOST_STARTS or not SHORTEST_RATE <= span <= LONGEST_RATE:
            limits = f"at most {MOST_STARTS:,} starts in 1 millisecond to 366 days can be counted"
            raise _refused_rate(given, f" ({limits})")
        return cls(count, span)

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


def _refused_rate(given: object, reason: str = "") -> InvalidInput:
    return InvalidInput(
        f"{given!r} cannot be used{reason}: give a number of starts per span of time, such as"
        ' "10/s" or "3/30s"; leave `rate` out for no limit',
        subject="rate",
        field="rate",
        given=given,
        allowed='a text such as "10/s", "100/m", "1000/h", "5000/d" or "3/30s"',
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
        _set(self, "kind", _choice(MisfireKind)(self.kind, "misfire"))
        _set(self, "grace", _span(self.grace, "misfire.grace"))
        _whole_number(1)(self.limit, "misfire.limit")


def _set(value: object, name: str, to: object) -> None:
    object.__setattr__(value, name, to)


# Readers of options. Each takes what is given and the name of the option.


def _choice(kind: type[E]) -> Callable[[object, str], E]:
    def read(given: object, name: str) -> E:
        try:
            return kind(given)  # type: ignore[arg-type]
        except ValueError:
            choices = [choice.value for choice in kind]
            raise refused(name, given, f"is one of {', '.join(choices)}", choices) from None

    return read


def _whole_number(least: int, most: int = MAX_COUNT) -> Callable[[object, str], int]:
    def read(given: object, name: str) -> int:
        allowed = f"{least} or more" if most >= MAX_COUNT else f"{least} to {most}"
        if isinstance(given, bool) or not isinstance(given, int):
            raise _refused(name, given, "is a whole number", allowed)
        if most >= MAX_COUNT and given > most:
            raise _refused(name, given, f"is at most {most}", allowed)
        if not least <= given <= most:
            raise _refused(name, given, f"is {allowed}", allowed)
        return given

    return read


def _or_none(read: Read) -> Read:
    return lambda given, name: None if given is None else read(given, name)


def _span(given: Any, name: str) -> timedelta:
    span = duration(given, what=name.replace(".", " "), field=name)
    if span > MAX_SPAN:
        raise _refused(name, given, f"is at most {humanize(MAX_SPAN)}")
    return span


def _refused(name: str, given: object, rule: str, allowed: object = None) -> InvalidInput:
    """The message says `backoff delay` for the part `backoff.delay`."""
    return refused(name, given, rule, allowed, subject=name.replace(".", " "))


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _items(given: Any, what: str) -> list[Any]:
    if not isinstance(given, Iterable):
        raise refused(what, given, "takes one name or a list of them")
    return list(given)


def _positive(given: Any, name: str) -> timedelta:
    span = _span(given, name)
    if not span:
        raise refused(name, given, "must be longer than zero, or left out for none")
    return span


def _name(given: object, what: str) -> str:
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_NAME or not given.isprintable():
        raise refused(what, given, f"is 1 to {MAX_NAME} printable characters")
    return given


def _flag(given: object, what: str) -> bool:
    if not isinstance(given, bool):
        raise refused(what, given, "is True or False", (True, False))
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
            raise refused(what, item, "takes error classes or their names")
    return tuple(names)


def _job_names(given: Any, name: str) -> tuple[str, ...]:
    """Job ids, or decorated functions, which carry theirs as `.id`."""
    single = isinstance(given, str) or hasattr(given, "id")
    items = [given] if single else _items(given, name)
    if len(items) > MAX_UPSTREAM:
        why = f"names at most {MAX_UPSTREAM:,} jobs, not {len(items):,}"
        raise InvalidInput(why, subject=name, field=name)
    return tuple(_name(getattr(item, "id", item), name) for item in items)


def memory_size(given: Any, name: str = "memory_limit") -> int | None:
    """Bytes, given as a number or as text with a unit."""
    if given is None:
        return None
    if isinstance(given, str):
        number = given.strip().rstrip("BbKkMmGgIi ")
        unit = given.strip()[len(number) :].strip().lower()
        try:
            given = int(float(number) * (_SIZES[unit] if unit else 1))
        except (ValueError, KeyError, OverflowError):
            raise refused(name, given, "is bytes or text like '512MiB' or '2GB'") from None
    return _whole_number(1, MAX_MEMORY)(given, name)


def _value(kind: type[Any]) -> Read:
    """Reads one of our values: as it is, as an object of its parts, or by its first part alone."""

    def read(given: Any, name: str) -> Any:
        if not isinstance(given, Mapping):
            return given if isinstance(given, kind) else kind(given)
        names = [part.name for part in fields(kind)]
        if unknown := sorted(map(str, given.keys() - set(names))):
            why = f"has no {', '.join(unknown)}; it takes {', '.join(names)}"
            raise InvalidInput(why, subject=name, field=f"{name}.{unknown[0]}", allowed=names)
        return kind(**given)

    return read


def _breaker(given: Any, name: str) -> Any:
    if given is None or given is False:
        return None
    return Breaker() if given is True else _value(Breaker)(given, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a job's runs are retried, limited and isolated: docs/reference/job-options.md. Each
    option is annotated with the function that reads what a user gives for it."""

    retries: Annotated[int, _whole_number(0)] = 0
    backoff: Annotated[Backoff, _value(Backoff)] = Backoff()
    retry_on: Annotated[tuple[str, ...], _kinds] = ()
    give_up_on: Annotated[tuple[str, ...], _kinds] = ()
    timeout: Annotated[timedelta | None, _or_none(_positive)] = None
    priority: Annotated[int, _whole_number(0, MAX_PRIORITY)] = 5
    queue: Annotated[str, _name] = "default"
    concurrency: Annotated[int | None, _or_none(_whole_number(1))] = None
    concurrency_key: Annotated[str | None, _or_none(_name)] = None
    rate: Annotated[Rate | None, _or_none(Rate.read)] = None
    rate_key: Annotated[str | None, _or_none(_name)] = None
    overlap: Annotated[Overlap, _choice(Overlap)] = Overlap.SKIP
    misfire: Annotated[Misfire, _value(Misfire)] = Misfire()
    start_deadline: Annotated[timedelta | None, _or_none(_positive)] = None
    delivery: Annotated[Delivery, _choice(Delivery)] = Delivery.AT_LEAST_ONCE
    isolation: Annotated[Isolation, _choice(Isolation)] = Isolation.AUTO
    memory_limit: Annotated[int | None, memory_size] = None
    breaker: Annotated[Breaker | None, _breaker] = None
    after: Annotated[tuple[str, ...], _job_names] = ()
    after_failure: Annotated[AfterFailure, _choice(AfterFailure)] = AfterFailure.SKIP
    run_on_start: Annotated[bool, _flag] = False
    each_node: Annotated[bool, _flag] = False
    retention: Annotated[timedelta | None, _or_none(_span)] = None
    """How long the job's finished runs are kept; None: as long as the scheduler says."""
    history: Annotated[int | None, _or_none(_whole_number(0))] = None
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
        policy, wrong = cls._read(errors, base or _DEFAULT, given)
        policy._check(errors, wrong)
        return policy

    @classmethod
    def make_unchecked(cls, base: Policy | None = None, /, **given: Any) -> Policy:
        """As `make`, but options that do not fit each other are allowed."""
        errors = InputErrors()
        policy, _ = cls._read(errors, base or _DEFAULT, given)
        errors.check()
        return policy

    @classmethod
    def _read(
        cls, errors: InputErrors, base: Policy, given: Mapping[str, Any]
    ) -> tuple[Policy, Set[str]]:
        """Read each option by itself. The second value names those that are wrong."""
        if unknown := given.keys() - OPTIONS.keys():
            errors.add(UnknownOption(unknown, OPTIONS))
        values: dict[str, Any] = {}
        for name, read in OPTIONS.items():
            if name in given:
                with errors:
                    values[name] = read(given[name], name)
        if "retry_delay" in given and isinstance(given.get("backoff"), Backoff | Mapping):
            why = "give retry_delay or a Backoff with its delay, not both"
            errors.add(InvalidInput(why, field="retry_delay"))
        wrong = given.keys() - values.keys()
        retry_delay = values.pop("retry_delay", None)
        policy = replace(base, **values) if values else base
        if retry_delay is not None:
            with errors:
                policy = replace(policy, backoff=policy.backoff.with_delay(retry_delay))
        return policy, wrong

    def _check(self, errors: InputErrors, wrong: Set[str]) -> None:
        """Add what is wrong with options that do not fit each other. An option that is compared
        with a wrong option is not reported."""
        for conflict in CONFLICTS:
            if conflict.exists(self) and conflict.other not in wrong:
                message, subject = conflict.message, conflict.subject
                errors.add(InvalidInput(message, subject=subject, field=conflict.option))

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


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Rate):
        return str(value)
    if isinstance(value, Backoff | Breaker | Misfire):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return list(value) if isinstance(value, tuple) else value


_DEFAULT = Policy()

OPTIONS: dict[str, Read] = {
    name: kind.__metadata__[0] for name, kind in get_type_hints(Policy, include_extras=True).items()
}
"""What `Policy.make` takes: each field, and `retry_delay`, which is short for the backoff's."""
OPTIONS["retry_delay"] = _span


class Conflict(NamedTuple):
    """Two options of a policy that do not fit each other. The error names the first."""

    option: str
    other: str
    exists: Callable[[Policy], bool]
    message: str
    subject: str | None = None
    """What the message is about, if it does not say it: the API has another name for it."""


CONFLICTS = (
    Conflict(
        "concurrency_key",
        "concurrency",
        lambda policy: policy.concurrency_key is not None and policy.concurrency is None,
        "a concurrency key needs a concurrency: how many runs that share the key may run at once",
    ),
    Conflict(
        "rate_key",
        "rate",
        lambda policy: policy.rate_key is not None and policy.rate is None,
        "a rate key needs a rate: how many runs that share the key may start in a span of time,"
        ' such as rate="100/m"',
    ),
    Conflict(
        "memory_limit",
        "isolation",
        lambda policy: policy.memory_limit is not None and policy.isolation != Isolation.PROCESS,
        'needs isolation="process": only a process has memory of its own',
        subject="memory_limit",
    ),
    Conflict(
        "retries",
        "delivery",
        lambda policy: policy.delivery is Delivery.AT_MOST_ONCE and policy.retries > 0,
        "a run that is delivered at most once is started once: it takes no retries",
    ),
)
EFFECT_ONCE_IN_PROCESS = Conflict(
    "delivery",
    "isolation",
    lambda policy: (policy.delivery, policy.isolation) == (Delivery.EFFECT_ONCE, Isolation.PROCESS),
    'a transaction cannot be shared with another process, so delivery="effect_once" and'
    ' isolation="process" do not go together',
)
"""Checked where a job is defined."""


# Defaults


def check_defaults(given: Mapping[str, Any] | None, field: str = "defaults") -> dict[str, Any]:
    """The defaults as they were given, or `InvalidInput` that names each wrong one as
    `defaults.retries`. An option that needs another one (`rate_key`) may be given alone: it counts
    for the jobs that have the other one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise refused(field, given, "is an object of policy options such as {'retries': 3}")
    errors = InputErrors()
    known = OPTIONS.keys() - {"after"}
    for name in sorted(map(str, given.keys() - OPTIONS.keys())):
        errors.add(_named(UnknownOption([name], known), name, field))
    if "after" in given:
        why = "after names the jobs that one job follows, so it has no default: give it to the job"
        errors.add(_named(InvalidInput(why), "after", field))
    wrong_options = InputErrors()
    options = {name: value for name, value in given.items() if name in known}
    policy, wrong = Policy._read(wrong_options, _DEFAULT, options)
    policy._check(wrong_options, wrong | (OPTIONS.keys() - given.keys()))
    for error in wrong_options.each():
        errors.add(_named(error, error.field or "", field))
    errors.check()
    return dict(given)


def _named(error: InvalidInput, name: str, field: str) -> InvalidInput:
    error.others = ()  # the caller reports each by itself
    error.args = (f"{field}.{name}: {error}",)
    error.field = f"{field}.{name}"
    return error


def merge_policy(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    built_in: Mapping[str, Any],
    errors: InputErrors,
    *,
    longest_timeout: timedelta | None = None,
) -> tuple[Policy, dict[str, str]]:
    """The policy of a job, and where each value comes from that is not built in.

    What the job gives wins over the `defaults`, and those win over what is `built_in` for its kind.
    A default that does not fit what the job itself says is left out. What is wrong is added to
    `errors`. `longest_timeout` marks a job that calls an endpoint: it needs a timeout, and takes no
    options that are for handlers.
    """
    used = {name: value for name, value in defaults.items() if name not in given}
    if isinstance(given.get("backoff"), Backoff | Mapping):
        used.pop("retry_delay", None)
    if longest_timeout is not None:
        _leave_out_for_webhook(used, longest_timeout)
    more = {}
    if "backoff" in given and "retry_delay" in used:  # a kind alone keeps the default's delay
        more["retry_delay"] = used["retry_delay"]

    def merge() -> tuple[Policy, Set[str], InputErrors]:
        found = InputErrors()
        base = Policy.make_unchecked(**{**built_in, **used})
        return *Policy._read(found, base, {**more, **given}), found

    policy, wrong, found = merge()
    for conflict in (EFFECT_ONCE_IN_PROCESS, *CONFLICTS) if used else ():
        if conflict.exists(policy):
            left_out = conflict.option if conflict.other not in used else conflict.other
            if left_out == conflict.option or conflict.option in given:
                used.pop(left_out, None)
            policy, wrong, found = merge()
    for error in found.each():
        errors.add(error)
    policy._check(errors, wrong)
    origins = {field_of(name): str(Origin.DEFAULTS) for name in used}
    origins |= {field_of(name): str(Origin.JOB) for name in given}
    return policy, {f.name: origins[f.name] for f in fields(Policy) if f.name in origins}


def field_of(option: str) -> str:
    """The field of a policy that an option sets."""
    return "backoff" if option == "retry_delay" else option


def _leave_out_for_webhook(used: dict[str, Any], longest_timeout: timedelta) -> None:
    for name in ("isolation", "memory_limit"):
        used.pop(name, None)
    if used.get("delivery") == Delivery.EFFECT_ONCE:
        del used["delivery"]
    timeout = used.get("timeout")
    if timeout is None or duration(timeout) > longest_timeout:
        used.pop("timeout", None)
