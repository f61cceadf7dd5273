"""Default values of policy options: which of them a job takes, and where its values come from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.core.input_errors import InputErrors
from mainspring.core.policy import Backoff, BackoffKind, Delivery, Isolation, Policy
from mainspring.core.policy_defaults import check_defaults, merge_policy
from mainspring.errors import InvalidInput

HOUR = timedelta(hours=1)
BUILT_IN = {"timeout": timedelta(seconds=30)}


def both(
    given: dict[str, Any], defaults: dict[str, Any], built_in: dict[str, Any], **more: Any
) -> tuple[Policy, dict[str, str]]:
    errors = InputErrors()
    made = merge_policy(given, defaults, built_in, errors, **more)
    errors.check()
    return made


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


def test_default_that_does_not_fit_what_the_job_says_is_left_out() -> None:
    once = merged({"delivery": "at_most_once"}, {"retries": 3})
    assert (once.delivery, once.retries) == (Delivery.AT_MOST_ONCE, 0)
    isolated = {"isolation": "process", "memory_limit": "1GB"}
    thread = merged({"isolation": "thread"}, isolated)
    assert (thread.isolation, thread.memory_limit) == (Isolation.THREAD, None)
    free = merged({"concurrency": None}, {"concurrency": 2, "concurrency_key": "smtp"})
    assert (free.concurrency, free.concurrency_key) == (None, None)


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
    fields = {one.field for one in refusal.value.each()}
    assert fields == {"defaults.retries", "defaults.queue", "defaults.speed"}
