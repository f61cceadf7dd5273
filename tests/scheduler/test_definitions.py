"""Wrong input is refused where it is given, and a schedule takes the zone that is nearest to it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import Client, RunContext, Scheduler, at, cron, every, rrule
from mainspring.core.schedules import Schedule, parse
from mainspring.errors import (
    InvalidArguments,
    InvalidInput,
    InvalidPayload,
    InvalidSchedule,
    JobNotFound,
    MainspringError,
    UnknownOption,
)
from tests.support.scheduler_fixtures import Make


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"workers": -1}, "workers is 0 to 10000, not -1"),
        ({"workers": "many"}, "not 'many'"),
        ({"lease": "500ms"}, "lease is at least 1s, not '500ms'"),
        ({"lease": "soon"}, "lease 'soon' cannot be used"),
        ({"poll": 0}, "poll is 10ms to 1m, not 0"),
        ({"retention": "-1d"}, "retention '-1d' cannot be used (it is negative)"),
        ({"queues": [""]}, "queue is 1 to 200 printable characters, not ''"),
        ({"queues": [7]}, "not 7"),
    ],
)
def test_a_wrong_option_of_a_scheduler_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Scheduler("memory://", **options)
    assert words in str(caught.value)


def test_the_name_of_a_file_gets_the_url_that_was_meant() -> None:
    with pytest.raises(InvalidInput, match=r"not 'jobs.db' \(did you mean sqlite:///jobs.db\?\);"):
        Scheduler("jobs.db")


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("sqlite:jobs.db", "sqlite:///jobs.db"),
        ("sqlite:/srv/jobs.db", "sqlite:////srv/jobs.db"),
        ("sqlite:", "sqlite:///jobs.db"),
        ("sqlite://mine.db", "sqlite:///mine.db"),
    ],
)
def test_a_sqlite_url_with_too_few_slashes_gets_the_one_that_was_meant(
    url: str, meant: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"(did you mean|write) {re.escape(meant)}(\?\)|$)"):
        Scheduler(url)


def test_a_path_or_nothing_is_no_store() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean sqlite:///jobs.db\?"):
        Scheduler(Path("jobs.db"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a store is named by a URL, not None"):
        Scheduler(None)  # type: ignore[arg-type]


def test_a_sqlite_url_with_options_is_refused() -> None:
    """Other libraries take options there. As part of the file's name they would make a new file."""
    with pytest.raises(InvalidInput, match=r"takes none; write sqlite:///jobs.db$"):
        Scheduler("sqlite:///jobs.db?timeout=5")


@pytest.mark.parametrize("url", ["jobs.db", "redis://x", "sqlite://", "sqlite:///", "://", ""])
def test_a_url_without_a_known_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"supported are sqlite:///|names no file"):
        Scheduler(url)


@pytest.mark.parametrize(
    ("field", "options", "words"),
    [
        ("retries", {"retries": -1}, "retries is 0 or more, not -1"),
        ("enabled", {"enabled": "yes"}, "enabled is True or False, not 'yes'"),
        ("retires", {"retires": 3}, "unknown option 'retires' (did you mean 'retries'?); options"),
        ("after", {"schedule": "1h", "after": "other"}, "it can have one or the other"),
        ("jitter", {"jitter": "5s"}, "there is no schedule"),
        ("jitter", {"schedule": "@daily", "jitter": "x"}, "jitter"),
        ("tags.0", {"tags": ["a\0"]}, "a\\x00"),
        ("metadata", {"metadata": 5}, "metadata is an object, not 5"),
        ("metadata", {"metadata": {"a": {1, 2}}}, "set"),
        ("payload", {"payload": {1}}, "payload is not JSON"),
        ("payload", {"schedule": "5m", "payload": {"m": 1}}, "m"),
        ("schedule", {"schedule": "0s"}, "too short"),
        ("schedule", {"schedule": "every now and then"}, "every now and then"),
        ("schedule", {"schedule": "0 0 30 2 *"}, "never"),
        ("schedule", {"schedule": object()}, "object"),
        ("timezone", {"schedule": "0 9 * * *", "timezone": "Nowhere"}, "Nowhere"),
        ("timezone", {"timezone": "Mars"}, "Mars"),
        ("timezone", {"schedule": "@daily", "timezone": 5}, "5"),
        ("timezone", {"schedule": cron("@daily", "UTC"), "timezone": "Asia/Tokyo"}, "Asia/Tokyo"),
    ],
)
def test_a_wrong_option_of_a_job_is_refused_with_its_field_and_leaves_nothing(
    field: str, options: dict[str, Any], words: str
) -> None:
    scheduler = Scheduler("memory://")

    def work() -> None: ...

    scheduler.job(id="known")(work)
    for make in (
        lambda: scheduler.job(**options)(work),
        lambda: scheduler.draft("a", handler="known", **options),
    ):
        with pytest.raises(InvalidInput) as caught:
            make()
        assert words in str(caught.value)
        assert caught.value.field == field
    scheduler.job()(work)  # nothing of the refused one is left


@pytest.mark.parametrize("job_id", ["no spaces", "", ".", ".."])
def test_a_wrong_id_of_a_job_is_refused(job_id: str) -> None:
    with pytest.raises(InvalidInput, match=r"a job id (is 1 to 200|cannot be '\.)"):
        Scheduler("memory://").job(id=job_id)(lambda: None)


def test_a_job_with_effects_needs_its_context() -> None:
    with pytest.raises(InvalidInput, match="give it a first parameter `ctx: RunContext`"):
        Scheduler("memory://").job(id="a", delivery="effect_once")(lambda: None)


def test_handlers_that_cannot_be_jobs() -> None:
    scheduler = Scheduler("memory://")

    def stars(*args: int) -> None: ...

    def positional(a: int, /) -> None: ...

    class Callable:
        def __call__(self) -> None: ...

    for function in (stars, positional):
        with pytest.raises(InvalidInput, match="arguments are stored by name"):
            scheduler.job()(function)
    with pytest.raises(InvalidInput, match="arguments are stored by name"):
        scheduler.job(stars)
    with pytest.raises(InvalidInput, match="a job id is"):
        scheduler.job()(lambda: None)
    with pytest.raises(InvalidInput, match="is a callable"):
        scheduler.job(id="x")(5)  # type: ignore[call-overload]
    for nameless in (functools.partial(print), Callable()):
        with pytest.raises(InvalidInput, match="id="):
            scheduler.job()(nameless)
    with pytest.raises(InvalidInput, match="cannot run in a process of its own"):
        scheduler.job(id="x", isolation="process")(lambda: None)
    scheduler.job(id="called")(Callable())


async def test_wrong_arguments_and_options_of_enqueue_are_refused(make: Make) -> None:
    scheduler = make(workers=0)

    @scheduler.job()
    async def send(ctx: RunContext, to: str, subject: Any = "hello") -> None: ...

    @scheduler.job()
    async def bare() -> None: ...

    async def refused(kind: type[MainspringError], words: str, call: Any) -> Any:
        with pytest.raises(kind) as caught:
            await call
        assert words in str(caught.value)
        return caught.value

    async with scheduler:
        q: Any = send
        await refused(InvalidArguments, "missing to", q.enqueue())
        await refused(InvalidArguments, "unknown cc", q.enqueue(to="a", cc="b"))
        await refused(InvalidArguments, "too many positional", q.enqueue("a", "b", "c"))
        told = "an option is given by send.options(delay=…).enqueue(…)"
        await refused(InvalidArguments, told, q.enqueue(to="a", delay="5m"))
        await refused(InvalidArguments, "missing to", scheduler.enqueue("send", {}))
        await refused(
            InvalidArguments, "must be an object, not list", scheduler.enqueue("send", [1])
        )
        await refused(InvalidArguments, "takes no arguments", scheduler.enqueue("bare", {"a": 1}))
        await refused(InvalidPayload, "holds a set", q.enqueue(to="a", subject={1}))
        await refused(InvalidPayload, "at most 262,144", q.enqueue(to="x" * 300_000))
        await refused(InvalidPayload, "more than 100 deep", q.enqueue(to="a", subject=_deep(200)))
        await refused(InvalidPayload, "not JSON", q.enqueue(to="a", subject=float("inf")))
        await refused(JobNotFound, "no job 'nope'", scheduler.enqueue("nope"))
        await refused(JobNotFound, "no job", scheduler.trigger(""))
        for options, words in (
            ({"delay": "5"}, "needs a unit"),
            ({"delay": -1}, "negative"),
            ({"delay": timedelta.max}, "delay"),
            ({"delay": "1s", "at": datetime(2050, 1, 1)}, "not both"),
            ({"at": "2050-01-01"}, "at is a datetime"),
            ({"priority": 10}, "priority is 0 to 9, not 10"),
            ({"queue": ""}, "queue is 1 to 200"),
            ({"dedupe_key": ""}, "1 to 500 characters"),
            ({"dedupe_key": 5}, "dedupe_key"),
            ({"dedupe_for": "1h"}, "needs a dedupe_key"),
            ({"dedupe_key": "k", "dedupe_for": timedelta.max}, "dedupe_for"),
            ({"after": 5}, "after"),
            (
                {"prioritty": 5},
                "unknown option 'prioritty' (did you mean 'priority'?); options are after, after_",
            ),
        ):
            wrong = scheduler.enqueue("send", {"to": "a"}, **options)
            assert (await refused(InvalidInput, words, wrong)).field in options
        for state in ("due", 5):
            with pytest.raises(InvalidInput, match="states are waiting, pending"):
                await scheduler.list_runs(state=state)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="limit is 1 to 1000"):
            await scheduler.list_runs(limit=0)
        naive = datetime(2030, 1, 1)
        for use in (
            lambda: scheduler.list_runs(since=naive),
            lambda: scheduler.list_runs(until=naive),
            lambda: scheduler.counts(naive),
            lambda: scheduler.cancel_runs(since=naive),
        ):
            with pytest.raises(InvalidInput, match="has no time zone: give one"):
                await use()
        with pytest.raises(InvalidInput, match="is a datetime with a time zone, not '2030"):
            await scheduler.list_runs(since="2030-01-01")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="not one that a page of results gave"):
            await scheduler.list_runs(cursor="9" * 30)
        assert (await scheduler.list_runs()).items == []
        run = await send.enqueue("a", subject="still works")
        assert run.payload == {"to": "a", "subject": "still works"}


def _deep(depth: int) -> list[Any]:
    return [_deep(depth - 1)] if depth else []


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
    ("field", "options"),
    [
        ("payload", {"payload": {"a": 1}}),
        ("timeout", {"timeout": "2h"}),
        ("isolation", {"isolation": "thread"}),
    ],
)
def test_a_rule_of_a_webhook_job_names_its_field(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Client("memory://").draft("a", webhook="https://example.org", **options)
    assert caught.value.field == field


def test_an_error_carries_what_was_given_and_what_is_allowed() -> None:
    with pytest.raises(InvalidInput) as caught:
        Client("memory://").draft("a", handler="work", overlap="skp")
    assert (caught.value.given, caught.value.allowed) == (
        "skp",
        ["skip", "queue", "replace", "allow"],
    )
    with pytest.raises(UnknownOption) as unknown:
        Client("memory://").draft("a", handler="work", retires=3)
    assert isinstance(unknown.value.allowed, list)
    assert "retries" in unknown.value.allowed


# -- the zone of a schedule -----------------------------------------------------------------


AFTER = datetime(2029, 12, 31, 12, tzinfo=UTC)
BERLIN_NINE = datetime(2030, 1, 1, 8, tzinfo=UTC)
KOLKATA_NINE = datetime(2030, 1, 1, 3, 30, tzinfo=UTC)
UTC_NINE = datetime(2030, 1, 1, 9, tzinfo=UTC)

WITHOUT_ZONE: list[Any] = [
    "0 9 * * *",
    "2030-01-01T09:00",
    datetime(2030, 1, 1, 9),
    "DTSTART:20300101T090000\nRRULE:FREQ=DAILY",
    cron("0 9 * * *"),
    cron("0 9 * * *", start="2030-01-01T08:30"),
    at("2030-01-01T09:00"),
    at(datetime(2030, 1, 1, 9)),
    every("1d", start="2030-01-01T09:00"),
    every("1d", start=datetime(2030, 1, 1, 9), end=datetime(2030, 1, 1, 9)),
    rrule("FREQ=DAILY", start="2030-01-01T09:00"),
    rrule("DTSTART:20300101T090000\nRRULE:FREQ=DAILY"),
]
IN_BERLIN: list[Any] = [
    "CRON_TZ=Europe/Berlin 0 9 * * *",
    "DTSTART;TZID=Europe/Berlin:20300101T090000\nRRULE:FREQ=DAILY",
    cron("0 9 * * *", "Europe/Berlin"),
    at("2030-01-01T09:00", tz="Europe/Berlin"),
    at(datetime(2030, 1, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))),
    rrule("FREQ=DAILY", start="2030-01-01T09:00", tz="Europe/Berlin"),
]

Drafted = Callable[..., Schedule | None]


def decorated(zone: str, **options: Any) -> Schedule | None:
    scheduler = Scheduler("memory://", timezone=zone)

    @scheduler.job(**options)
    def handler() -> None: ...

    [job] = scheduler.code_jobs
    return job.schedule


def added(zone: str, **options: Any) -> Schedule | None:
    scheduler = Scheduler("memory://", timezone=zone)

    @scheduler.job()
    def handler() -> None: ...

    return scheduler.draft("another", handler="handler", **options).schedule


def first(schedule: Schedule | None) -> datetime | None:
    assert schedule is not None
    return schedule.next(AFTER)


@pytest.mark.parametrize("draft", [decorated, added])
@pytest.mark.parametrize("spec", WITHOUT_ZONE, ids=repr)
def test_a_schedule_without_a_zone_takes_the_jobs_then_the_schedulers(
    spec: Any, draft: Drafted
) -> None:
    assert first(draft("UTC", schedule=spec)) == UTC_NINE
    assert first(draft("Europe/Berlin", schedule=spec)) == BERLIN_NINE
    assert first(draft("Europe/Berlin", schedule=spec, timezone="Asia/Kolkata")) == KOLKATA_NINE
    assert first(parse(spec)) == UTC_NINE


@pytest.mark.parametrize("draft", [decorated, added])
@pytest.mark.parametrize("spec", IN_BERLIN, ids=repr)
def test_a_schedule_keeps_its_zone_and_another_beside_it_is_refused(
    spec: Any, draft: Drafted
) -> None:
    assert first(draft("Asia/Kolkata", schedule=spec)) == BERLIN_NINE
    assert first(draft("UTC", schedule=spec, timezone="Europe/Berlin")) == BERLIN_NINE
    for other in ("UTC", "Asia/Kolkata"):
        with pytest.raises(InvalidSchedule, match=f"Europe/Berlin.*{other}.*leave out one"):
            draft("Europe/Berlin", schedule=spec, timezone=other)


def test_moments_with_an_offset_stay_where_they_are() -> None:
    rule = rrule("DTSTART:20300101T080000Z\nRRULE:FREQ=DAILY")
    for spec in ("2030-01-01T09:00+01:00", at("2030-01-01T09:00+01:00"), at(BERLIN_NINE), rule):
        schedule = decorated("UTC", schedule=spec, timezone="Asia/Kolkata")
        assert first(schedule) == BERLIN_NINE
        assert schedule is not None
        assert schedule.timezone == "Asia/Kolkata"


async def test_an_edit_keeps_the_jobs_zone_unless_it_names_another() -> None:
    scheduler = Scheduler("memory://", timezone="Europe/Berlin")

    @scheduler.job()
    def handler() -> None: ...

    async with scheduler:
        await scheduler.add_job("a", handler=handler, schedule="1d", timezone="Asia/Kolkata")
        job = await scheduler.update_job("a", schedule=cron("0 9 * * *"))
        assert first(job.schedule) == KOLKATA_NINE
        job = await scheduler.update_job("a", schedule=at("2030-01-01T09:00"))
        assert first(job.schedule) == KOLKATA_NINE
        job = await scheduler.update_job("a", schedule=cron("0 9 * * *", "Europe/Berlin"))
        assert first(job.schedule) == BERLIN_NINE
        job = await scheduler.update_job("a", timezone="UTC")
        assert first(job.schedule) == UTC_NINE
        with pytest.raises(InvalidSchedule, match="leave out one"):
            await scheduler.update_job(
                "a", schedule=cron("0 9 * * *", "Europe/Berlin"), timezone="Asia/Kolkata"
            )
        await scheduler.add_job("b", handler=handler, schedule="1d")
        job = await scheduler.update_job("b", schedule="0 9 * * *")
        assert first(job.schedule) == BERLIN_NINE
