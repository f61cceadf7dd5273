"""Every rule of a job says which field it is about, so that no caller reads its message."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mainspring import Backoff, Breaker, Client, Misfire, RunContext, Scheduler, cron
from mainspring.errors import InvalidInput, InvalidSchedule, UnknownOption


def handler(ctx: RunContext, n: int = 1) -> None: ...


def make_scheduler() -> Scheduler:
    scheduler = Scheduler("memory://", inline=True)
    scheduler.job(id="work")(handler)
    return scheduler


JOBS: list[tuple[str, dict[str, Any]]] = [
    ("retries", {"retries": -1}),
    ("retries", {"retries": 2, "delivery": "at_most_once"}),
    ("backoff", {"backoff": "never"}),
    ("retry_delay", {"retry_delay": "soon"}),
    ("retry_delay", {"retry_delay": "1s", "backoff": Backoff("fixed")}),
    ("retry_on", {"retry_on": [1]}),
    ("give_up_on", {"give_up_on": 5}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": "long"}),
    ("priority", {"priority": 10}),
    ("queue", {"queue": ""}),
    ("concurrency", {"concurrency": 0}),
    ("concurrency_key", {"concurrency_key": "k"}),
    ("overlap", {"overlap": "skp"}),
    ("misfire", {"misfire": "twice"}),
    ("start_deadline", {"start_deadline": "-1s"}),
    ("delivery", {"delivery": "twice"}),
    ("isolation", {"isolation": "vm"}),
    ("memory_limit", {"memory_limit": "1 apple", "isolation": "process"}),
    ("memory_limit", {"memory_limit": "1GB"}),
    ("breaker.failures", {"breaker": 0}),
    ("after", {"after": 5}),
    ("after", {"after": "work", "schedule": "5m"}),
    ("after", {"after": "a"}),
    ("run_on_start", {"run_on_start": 1}),
    ("enabled", {"enabled": "yes"}),
    ("tags.0", {"tags": ["a\0"]}),
    ("metadata", {"metadata": [1]}),
    ("metadata", {"metadata": {"a": {1, 2}}}),
    ("payload", {"payload": {1, 2}}),
    ("payload", {"schedule": "5m", "payload": {"m": 1}}),
    ("schedule", {"schedule": "0 25 * * *"}),
    ("schedule", {"schedule": "1ms"}),
    ("schedule", {"schedule": []}),
    ("timezone", {"schedule": "@daily", "timezone": "Mars"}),
    ("timezone", {"timezone": "Mars"}),
    ("timezone", {"timezone": 5}),
    ("timezone", {"schedule": "@daily", "timezone": 5}),
    ("timezone", {"schedule": cron("@daily", "UTC"), "timezone": "Asia/Tokyo"}),
    ("jitter", {"schedule": "@daily", "jitter": "x"}),
    ("jitter", {"jitter": "1s"}),
    ("retires", {"retires": 3}),
]


@pytest.mark.parametrize(("field", "given"), JOBS, ids=str)
def test_a_rule_of_a_job_names_its_field(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_scheduler().draft("a", handler="work", **given)
    assert caught.value.field == field


WEBHOOKS: list[tuple[str, Any]] = [
    ("webhook", 5),
    ("webhook.url", {}),
    ("webhook.url", "ftp://example.org"),
    ("webhook.url", "http://127.0.0.1/"),
    ("webhook.method", {"url": "https://example.org", "method": "CONNECT"}),
    ("webhook.headers", {"url": "https://example.org", "headers": {"host": "x"}}),
    (
        "webhook.headers",
        {"url": "https://example.org", "headers": {"X-Key": "a"}, "secret_headers": {"x-key": "s"}},
    ),
    ("webhook.body", {"url": "https://example.org", "body": "{{nobody}}"}),
    ("webhook.body", {"url": "https://example.org", "body": {1: 2}}),
    ("webhook.success", {"url": "https://example.org", "success": "ok"}),
    ("webhook.retry_on", {"url": "https://example.org", "retry_on": "ok"}),
    ("webhook.signing_secret", {"url": "https://example.org", "signing_secret": "short"}),
    ("webhook.ur", {"ur": "https://example.org"}),
]


@pytest.mark.parametrize(("field", "webhook"), WEBHOOKS, ids=str)
def test_a_rule_of_a_webhook_names_its_field(
    field: str, webhook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAINSPRING_SECRET_KEY", raising=False)
    with pytest.raises(InvalidInput) as caught:
        Client("memory://").draft("a", webhook=webhook)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("payload", {"payload": {"a": 1}}),
        ("timeout", {"timeout": "2h"}),
        ("isolation", {"isolation": "thread"}),
    ],
)
def test_a_rule_of_a_webhook_job_names_its_field(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Client("memory://").draft("a", webhook="https://example.org", **given)
    assert caught.value.field == field


async def test_rules_that_need_the_store_name_their_field() -> None:
    async with make_scheduler() as scheduler:
        with pytest.raises(InvalidInput) as caught:
            await scheduler.add_job("a", handler="work", after="missing")
        assert (caught.value.field, caught.value.given) == ("after", "missing")
        with pytest.raises(InvalidSchedule) as over:
            await scheduler.add_job("a", handler="work", schedule=datetime(2020, 1, 1))
        assert over.value.field == "schedule"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("at", {"at": "now"}),
        ("at", {"at": datetime(2030, 1, 1), "delay": 1}),
        ("delay", {"delay": "soon"}),
        ("dedupe_key", {"dedupe_key": ""}),
        ("dedupe_for", {"dedupe_for": "1h"}),
        ("priority", {"priority": 10}),
        ("after", {"after": 5}),
        ("payload", {"payload": {"m": 1}}),
    ],
    ids=str,
)
async def test_an_option_of_enqueue_names_its_field(field: str, given: dict[str, Any]) -> None:
    async with make_scheduler() as scheduler:
        with pytest.raises(InvalidInput) as caught:
            await scheduler.enqueue("work", **given)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "given"),
    [
        ("backoff.delay", Backoff, {"delay": "x"}),
        ("backoff.cap", Backoff, {"cap": "x"}),
        ("backoff.factor", Backoff, {"factor": 0}),
        ("backoff.jitter", Backoff, {"jitter": 2}),
        ("breaker.reset", Breaker, {"reset": "x"}),
        ("misfire.grace", Misfire, {"grace": "x"}),
        ("misfire.limit", Misfire, {"limit": 0}),
    ],
)
def test_a_value_names_its_part(field: str, value: Any, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        value(**given)
    assert caught.value.field == field


def test_an_error_carries_what_was_given_and_what_is_allowed() -> None:
    with pytest.raises(InvalidInput) as caught:
        make_scheduler().draft("a", handler="work", overlap="skp")
    assert (caught.value.given, caught.value.allowed) == (
        "skp",
        ["skip", "queue", "replace", "allow"],
    )
    with pytest.raises(UnknownOption) as unknown:
        make_scheduler().draft("a", handler="work", retires=3)
    assert isinstance(unknown.value.allowed, list)
    assert "retries" in unknown.value.allowed
