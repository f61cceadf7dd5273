"""Policies: backoff, breakers, misfires and the other options of a job."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core import codec
from mainspring.core.policy import (
    Backoff,
    BackoffKind,
    Breaker,
    Delivery,
    Isolation,
    Misfire,
    MisfireKind,
    Overlap,
    Policy,
    Rate,
    check_defaults,
    error_names,
    merge_policy,
)
from mainspring.errors import InputErrors, InvalidInput

SECOND = timedelta(seconds=1)


def waits(backoff: Backoff, *failures: int) -> list[float]:
    rng = random.Random(1)
    return [backoff.wait(n, rng).total_seconds() for n in failures]


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "failures", "expected"),
        [
            (Backoff("fixed", "5s", jitter=False), [1, 1, 2, 50], [5, 5, 5, 5]),
            (Backoff("linear", "5s", jitter=False), [1, 2, 3], [5, 10, 15]),
            (Backoff(delay="1s", jitter=False), [1, 2, 3, 4, 11], [1, 2, 4, 8, 1024]),
            (Backoff(delay="2s", factor=3, jitter=False), [1, 2, 3], [2, 6, 18]),
            (Backoff(delay="7s", factor=1, jitter=0), [1, 2, 9999], [7, 7, 7]),
            (Backoff(delay="1s", factor=1e300, jitter=0), [10], [3600]),  # the cap
            (Backoff(delay=0, factor=1e300, jitter=0), [10], [0]),
        ],
    )
    def test_a_wait_grows_with_the_failures_as_its_kind_says(
        self, backoff: Backoff, failures: list[int], expected: list[float]
    ) -> None:
        assert waits(backoff, *failures) == expected

    @pytest.mark.parametrize("kind", list(BackoffKind))
    def test_the_cap_is_the_longest(self, kind: BackoffKind) -> None:
        assert waits(Backoff(kind, "60s", cap="60s", jitter=False), 1, 5, 10**6) == [60, 60, 60]
        jittered = waits(Backoff(kind, "60s", cap="60s", jitter=True), 1, 5, 10**6)
        assert jittered[0] < 60
        assert jittered[1:] == [60, 60]  # where chance alone would make it longer

    def test_a_delay_of_more_than_an_hour_is_waited_in_full(self) -> None:
        assert waits(Backoff("fixed", "2h", jitter=False), 1, 5) == [7200, 7200]
        assert Backoff(delay="2h").cap == timedelta(hours=2)
        assert Policy.make(retry_delay="2h").backoff == Backoff(delay="2h")

    def test_a_cap_below_the_delay_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="cannot be shorter than the delay of 2 hours") as e:
            Backoff(delay="2h", cap="1h")
        assert (e.value.field, e.value.given) == ("backoff.cap", "1h")

    def test_a_cap_that_was_not_given_follows_another_delay(self) -> None:
        assert Backoff(delay="2h").with_delay("3h").cap == timedelta(hours=3)
        assert Backoff(delay="2h").with_delay("1s") == Backoff()
        assert Backoff(cap="30s").with_delay("30s").cap == timedelta(seconds=30)
        base = Policy.make(backoff=Backoff(cap="30s"))
        with pytest.raises(InvalidInput, match="backoff cap"):
            Policy.make(base, retry_delay="31s")

    @pytest.mark.parametrize("factor", [1.0001, 2, 10.5, 10**5, 1e300])
    @pytest.mark.parametrize("failures", [63, 64, 65, 1100, 10**9])
    def test_no_number_of_failures_overflows(self, factor: float, failures: int) -> None:
        [wait] = waits(Backoff(delay="1ms", factor=factor, cap="1h", jitter=0), failures)
        assert 0 < wait <= 3600

    @pytest.mark.parametrize(("jitter", "spread"), [(True, 0.1), (0.5, 0.5), (1, 1.0)])
    def test_jitter_spreads_both_ways_and_no_further(self, jitter: float, spread: float) -> None:
        backoff, rng = Backoff("fixed", "100s", jitter=jitter), random.Random(2)
        seen = [backoff.wait(1, rng).total_seconds() for _ in range(2000)]
        assert 100 * (1 - spread) <= min(seen) < 100 * (1 - spread * 0.95)
        assert 100 * (1 + spread * 0.95) < max(seen) <= 100 * (1 + spread)

    @given(
        kind=st.sampled_from(BackoffKind),
        delay=st.floats(0, 1e6),
        factor=st.floats(1, 1e12),
        cap=st.floats(0, 1e7),
        jitter=st.one_of(st.booleans(), st.floats(0, 1)),
        failures=st.integers(1, 10**7),
    )
    def test_never_negative_never_past_the_cap(self, failures: int, **options: Any) -> None:
        options["cap"] += options["delay"]
        backoff = Backoff(**options)
        wait = backoff.wait(failures, random.Random(3))
        assert timedelta() <= wait <= timedelta(seconds=options["cap"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"retrys": 3},
        r"unknown option 'retrys' \(did you mean 'retries'\?\); options are after, after_",
    ),
    ({"retries": -1}, "retries is 0 or more, not -1"),
    ({"retries": True}, "retries is a whole number, not True"),
    ({"backoff": "quadratic"}, "backoff is one of fixed, linear, exponential, not 'quadratic'"),
    ({"retry_delay": "soon"}, "retry_delay"),
    (
        {"retry_delay": 1, "backoff": Backoff()},
        "give retry_delay or a Backoff with its delay, not both",
    ),
    ({"retry_on": [int]}, "retry_on takes error classes or their names, not <class 'int'>"),
    ({"retry_on": 5}, "retry_on takes one name or a list of them, not 5"),
    ({"timeout": 0}, "timeout must be longer than zero, or left out for none, not 0"),
    ({"priority": 10}, "priority is 0 to 9, not 10"),
    ({"queue": ""}, "queue is 1 to 200 printable characters, not ''"),
    ({"queue": "x" * 201}, "queue is 1 to 200 printable characters"),
    ({"concurrency": 0}, "concurrency is 1 or more, not 0"),
    (
        {"concurrency_key": "k"},
        "a concurrency key needs a concurrency: how many runs that share the key may run at once",
    ),
    ({"delivery": "exactly_once"}, "delivery is one of at_least_once, at_most_once, effect_once"),
    (
        {"retries": 1, "delivery": "at_most_once"},
        "a run that is delivered at most once is started once: it takes no retries",
    ),
    (
        {"memory_limit": "1GB"},
        'memory_limit needs isolation="process": only a process has memory of its own',
    ),
    ({"memory_limit": "lots"}, "memory_limit is bytes or text like '512MiB' or '2GB', not 'lots'"),
    ({"memory_limit": "-1GB"}, "memory_limit is 1 or more"),
    ({"breaker": 0}, "breaker failures is 1 or more, not 0"),
    ({"breaker": "often"}, "breaker failures is a whole number, not 'often'"),
    ({"after": 5}, "after takes one name or a list of them, not 5"),
    ({"run_on_start": 1}, "run_on_start is True or False, not 1"),
    ({"rate_key": "shared"}, "a rate key needs a rate"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_makes_no_sense_is_refused_with_the_reason_and_its_field(
    asked: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        Policy.make(**asked)
    field = next(iter(asked))
    assert refused.value.field == ("breaker.failures" if field == "breaker" else field)


@pytest.mark.parametrize(
    ("field", "value", "part", "message"),
    [
        ("backoff.factor", Backoff, 0.5, "a backoff factor is 1 or more, not 0.5"),
        ("backoff.factor", Backoff, float("nan"), "a backoff factor is 1 or more, not nan"),
        ("backoff.jitter", Backoff, 1.5, "backoff jitter is True, False or 0 to 1, not 1.5"),
        ("backoff.jitter", Backoff, "wide", "backoff jitter is True, False or 0 to 1"),
        ("backoff.delay", Backoff, "-5s", "backoff delay"),
        ("backoff.cap", Backoff, "never", "backoff cap"),
        ("breaker.failures", Breaker, 0, "breaker failures is 1 or more"),
        ("misfire.limit", Misfire, 0, "misfire limit is 1 or more"),
    ],
)
def test_values_refuse_what_makes_no_sense(field: str, value: Any, part: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        value(**{field.split(".")[1]: part})
    assert refused.value.field == field


class TestReading:
    def test_the_forms_people_write(self) -> None:
        policy = Policy.make(
            backoff="fixed",
            retry_delay="5s",
            timeout="10m",
            misfire="all",
            breaker=True,
            memory_limit="512 MiB",
            isolation="process",
            retry_on=ConnectionError,
            give_up_on=["KeyError", ValueError],
            after="other",
            overlap="queue",
            delivery="effect_once",
        )
        assert policy.backoff == Backoff(BackoffKind.FIXED, 5 * SECOND)
        assert policy.timeout == 600 * SECOND
        assert policy.misfire == Misfire(MisfireKind.ALL)
        assert policy.breaker == Breaker()
        assert policy.memory_limit == 512 * 2**20
        assert policy.retry_on == ("builtins.ConnectionError",)
        assert policy.give_up_on == ("KeyError", "builtins.ValueError")
        assert policy.after == ("other",)
        assert (policy.overlap, policy.delivery) == (Overlap.QUEUE, Delivery.EFFECT_ONCE)

    def test_after_takes_decorated_functions(self) -> None:
        @dataclass
        class Decorated:
            id: str

        assert Policy.make(after=Decorated("a")).after == ("a",)
        assert Policy.make(after=[Decorated("a"), "b"]).after == ("a", "b")

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            *(("1kb", 1000), ("3 MB", 3 * 10**6), ("2 GB", 2 * 10**9)),
            *(("1.5KiB", 1536), ("1mib", 2**20), ("1GiB", 2**30), ("4096", 4096)),
        ],
    )
    def test_a_memory_limit_is_read_with_its_unit(self, text: str, size: int) -> None:
        assert Policy.make(memory_limit=text, isolation="process").memory_limit == size

    def test_a_breaker_is_read_from_a_number_or_a_value(self) -> None:
        assert Policy.make(breaker=3).breaker == Breaker(3)
        assert Policy.make(breaker=False).breaker is None
        assert Policy.make(breaker=Breaker(2)).breaker == Breaker(2)

    def test_over_a_base_only_what_is_given_changes(self) -> None:
        base = Policy.make(retries=3, timeout="5s", backoff="linear")
        changed = Policy.make(base, timeout=None, retry_delay="9s")
        assert (changed.retries, changed.timeout) == (3, None)
        assert changed.backoff == Backoff(BackoffKind.LINEAR, 9 * SECOND)
        with pytest.raises(InvalidInput, match="takes no retries"):
            Policy.make(base, delivery="at_most_once")


class TestRetryingErrors:
    def retries(self, error: type[BaseException], **policy: Any) -> bool:
        return Policy.make(**policy).retries_error(error_names(error))

    def test_by_class_name_and_base(self) -> None:
        assert self.retries(ConnectionResetError, retry_on=ConnectionError)
        assert self.retries(ConnectionResetError, retry_on="OSError")
        assert self.retries(ConnectionResetError, retry_on="builtins.OSError")
        assert not self.retries(KeyError, retry_on=OSError)

    def test_giving_up_comes_first(self) -> None:
        assert not self.retries(KeyError, retry_on=LookupError, give_up_on=KeyError)
        assert self.retries(IndexError, retry_on=LookupError, give_up_on=KeyError)

    def test_an_error_has_the_names_of_its_classes(self) -> None:
        assert error_names(KeyError("x"))[:4] == (
            "KeyError",
            "builtins.KeyError",
            "LookupError",
            "builtins.LookupError",
        )
        assert "object" not in error_names(KeyError)


names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
spans = st.integers(1, 10**12).map(lambda us: timedelta(microseconds=us))
backoffs = st.builds(
    lambda delay, more, **others: Backoff(delay=delay, cap=more and delay + more, **others),
    delay=spans,
    more=st.none() | spans,
    kind=st.sampled_from(BackoffKind),
    factor=st.floats(1, 100),
    jitter=st.one_of(st.booleans(), st.sampled_from([0, 1]), st.floats(0, 1)),
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "retries": st.integers(0, 100),
        "backoff": backoffs,
        "retry_on": st.lists(names, max_size=3),
        "give_up_on": st.lists(names, max_size=3),
        "timeout": st.none() | spans,
        "priority": st.integers(0, 9),
        "queue": names,
        "overlap": st.sampled_from(Overlap),
        "misfire": st.builds(Misfire, st.sampled_from(MisfireKind), spans, st.integers(1, 999)),
        "start_deadline": st.none() | spans,
        "isolation": st.sampled_from(Isolation),
        "breaker": st.none() | st.builds(Breaker, st.integers(1, 99), spans),
        "after": st.lists(names, max_size=3),
        "run_on_start": st.booleans(),
    },
)


@given(given=policies, limit=st.none() | st.integers(1, 99), key=st.none() | names)
def test_a_policy_survives_being_kept(given: Any, limit: int | None, key: str | None) -> None:
    policy = Policy.make(**given, concurrency=limit, concurrency_key=key if limit else None)
    kept = Policy.from_dict(codec.decode(codec.encode(policy.to_dict())))
    assert kept == policy
    assert repr(kept) == repr(policy)  # 1 and True are equal, and are not the same spread


def test_the_defaults_that_are_promised() -> None:
    policy = Policy()
    assert (policy.retries, policy.priority, policy.queue) == (0, 5, "default")
    assert policy.backoff == Backoff("exponential", "1s", 2, "1h", jitter=0.1)
    assert policy.misfire == Misfire("once", "60s", 100)
    assert Breaker() == Breaker(5, "60s")
    assert (policy.overlap, policy.delivery) == (Overlap.SKIP, Delivery.AT_LEAST_ONCE)
    assert (policy.isolation, policy.timeout, policy.concurrency) == (Isolation.AUTO, None, None)
    assert policy.run_on_start is False


def test_only_what_differs_is_kept() -> None:
    assert Policy().to_dict() == {}
    assert Policy.make(retries=2).to_dict() == {"retries": 2}


def test_every_field_can_be_made() -> None:
    for field in fields(Policy):
        value = getattr(Policy(), field.name)
        assert Policy.make(**{field.name: value}) == Policy()


@pytest.mark.parametrize(
    ("text", "count", "span", "shown"),
    [
        ("100/m", 100, timedelta(minutes=1), "100/m"),
        ("10/s", 10, timedelta(seconds=1), "10/s"),
        (" 3 / 30 s ", 3, timedelta(seconds=30), "3/30s"),
        ("1000/60m", 1000, timedelta(hours=1), "1000/h"),
        ("5000/d", 5000, timedelta(days=1), "5000/d"),
        ("2/1500ms", 2, timedelta(seconds=1.5), "2/1500ms"),
    ],
)
def test_a_rate_is_so_many_starts_in_so_much_time(
    text: str, count: int, span: timedelta, shown: str
) -> None:
    policy = Policy.make(rate=text, rate_key="shared")
    assert policy.rate == Rate(count, span)
    assert str(policy.rate) == shown
    assert Policy.from_dict(policy.to_dict()) == policy


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("0/m", "it lets no run start"),
        ("100", "give a number of starts per span of time"),
        ("100/0s", "1 millisecond to 366 days"),
        ("-1/m", "give a number of starts"),
        ("1.5/m", "give a number of starts"),
        ("1/y", "give a number of starts"),
        ("1/400d", "1 millisecond to 366 days"),
        (100, "give a number of starts"),
        (True, "give a number of starts"),
    ],
)
def test_a_rate_that_means_nothing_is_refused(value: object, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        Policy.make(rate=value)
    assert caught.value.field == "rate"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("retries", 10**9 + 1, "retries is at most 1000000000"),
        ("history", 10**9 + 1, "history is at most 1000000000"),
        ("timeout", timedelta(days=365_001), "timeout is at most 365000 days"),
        ("retention", timedelta.max, "retention is at most 365000 days"),
        ("breaker", {"reset": timedelta.max}, "breaker reset is at most 365000 days"),
        ("memory_limit", 2**51, "memory_limit is at most"),
    ],
)
def test_values_that_no_store_or_clock_can_hold_are_refused(
    option: str, value: object, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Policy.make(**{option: value, "isolation": "process"})


# Default values of policy options: which of them a job takes, and where its values come from


HOUR = timedelta(hours=1)
BUILT_IN = {"timeout": timedelta(seconds=30)}


def both(
    given: dict[str, Any], defaults: dict[str, Any], built_in: dict[str, Any], **more: Any
) -> tuple[Policy, dict[str, str]]:
    errors = InputErrors()
    merged_policy = merge_policy(given, defaults, built_in, errors, **more)
    errors.check()
    return merged_policy


def merged(given: dict[str, Any], defaults: dict[str, Any]) -> Policy:
    return both(given, defaults, {})[0]


def webhook(given: dict[str, Any], defaults: dict[str, Any]) -> Policy:
    return both(given, defaults, BUILT_IN, longest_timeout=HOUR)[0]


def test_own_value_wins_over_the_default_and_that_over_what_is_built_in() -> None:
    defaults = {"retries": 3, "timeout": "5m"}
    policy, origins = both({"retries": 1, "queue": "mail"}, defaults, BUILT_IN)
    assert (policy.retries, policy.timeout, policy.queue) == (1, timedelta(minutes=5), "mail")
    assert origins == {"retries": "job", "timeout": "defaults", "queue": "job"}
    assert both({}, {}, BUILT_IN)[0].timeout == timedelta(seconds=30)
    assert merged({"timeout": None}, defaults).timeout is None


def test_delay_and_kind_of_the_backoff_come_from_where_they_are_given() -> None:
    fixed = merged({"backoff": "fixed"}, {"retry_delay": "10s"}).backoff
    assert (fixed.kind, fixed.delay) == (BackoffKind.FIXED, timedelta(seconds=10))
    linear = merged({"retry_delay": "2s"}, {"backoff": Backoff("linear", "9s")}).backoff
    assert (linear.kind, linear.delay) == (BackoffKind.LINEAR, timedelta(seconds=2))
    own = merged({"backoff": {"kind": "fixed", "delay": "4s"}}, {"retry_delay": "10s"}).backoff
    assert (own.kind, own.delay) == (BackoffKind.FIXED, timedelta(seconds=4))
    _, origins = both({"retry_delay": "2s"}, {"backoff": "linear"}, {})
    assert origins == {"backoff": "job"}


def test_webhook_takes_no_default_that_only_handlers_take() -> None:
    defaults = {"isolation": "process", "memory_limit": "1GB", "delivery": "effect_once"}
    policy = webhook({}, {**defaults, "timeout": "2h", "retries": 4})
    assert policy == Policy(timeout=timedelta(seconds=30), retries=4)
    assert webhook({}, {"timeout": "5m"}).timeout == timedelta(minutes=5)
    assert webhook({}, {"timeout": None}).timeout == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"retries": "many"}, "defaults.retries", "defaults.retries: retries is a whole number"),
        ({"retrys": 3}, "defaults.retrys", r"unknown option 'retrys' \(did you mean 'retries'\?\)"),
        ({"payload": {}}, "defaults.payload", "unknown option 'payload'"),
        ({"after": "first"}, "defaults.after", "has no default: give it to the job"),
        (
            {"memory_limit": "1GB", "isolation": "thread"},
            "defaults.memory_limit",
            'needs isolation="process"',
        ),
        ({"backoff": {"pause": 1}}, "defaults.backoff.pause", "backoff has no pause; it takes"),
        ([("retries", 3)], "defaults", "defaults is an object of policy options"),
    ],
)
def test_wrong_default_is_refused_by_its_name(given: Any, field: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refusal:
        check_defaults(given)
    assert refusal.value.field == field


def test_all_wrong_defaults_are_named_at_once() -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_defaults({"retries": -1, "queue": "", "speed": 9})
    fields = {error.field for error in refusal.value.each()}
    assert fields == {"defaults.retries", "defaults.queue", "defaults.speed"}
