"""Arguments are stored as JSON and come back as what their annotations say, or are refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from mainspring import Client, Scheduler, State
from mainspring.core.codec import encode
from mainspring.errors import InvalidArguments, InvalidInput, InvalidPayload
from tests.support import typed_jobs
from tests.support.engine import ended
from tests.support.scheduler_fixtures import Make
from tests.support.typed_jobs import Color, Line, Order, Plan, Point, User

ID = UUID("6f1b0c1e-0000-4000-8000-000000000001")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
ORDER = Order(ID, NOON, [Line("a", Decimal("1.50"), 2)], Color.BLUE)

GIVEN: list[dict[str, Any]] = [
    {"order": ORDER},
    {"user": User(name="Ada", age=36, born=date(1815, 12, 10))},
    {"users": [User(name="Ada", age=36), User(name="Bob", age=3)]},
    {"color": Color.BLUE},
    {"point": Point(1, 2)},
    {"when": NOON, "span": timedelta(minutes=5)},
    {"tags": {"a"}, "pair": (1, "b")},
    {"path": Path("/tmp/x")},
    {"mode": "slow", "small": 7, "text": "words"},
]
SENT: list[dict[str, Any]] = [
    {
        "order": {
            "id": str(ID),
            "placed": "2030-01-01T12:00:00Z",
            "lines": [{"sku": "a", "price": "1.50", "count": 2}],
            "color": "blue",
        }
    },
    {"user": {"name": "Ada", "age": 36, "born": "1815-12-10"}},
    {"users": [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 3}]},
    {"color": "blue"},
    {"point": {"x": 1, "y": 2}},
    {"when": "2030-01-01T12:00:00Z", "span": "PT5M"},
    {"tags": ["a"], "pair": [1, "b"]},
    {"path": "/tmp/x"},
    {"mode": "slow", "small": 7, "text": "words"},
]


@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_arguments_come_back_as_their_annotations_say(make: Make, isolation: Any) -> None:
    scheduler = make()
    take = scheduler.job(isolation=isolation)(typed_jobs.take)
    async with scheduler:
        runs = await take.enqueue_many(GIVEN)
        runs += [await scheduler.enqueue("take", payload) for payload in SENT]
        await scheduler.add_job("again", handler=take, payload=GIVEN[0])
        runs += [await scheduler.trigger("again"), await scheduler.trigger("again", GIVEN[1])]
        for run, given in zip(runs, [*GIVEN, *GIVEN, *GIVEN[:2]], strict=True):
            done = await ended(scheduler, run)
            assert done.result == typed_jobs.take(**given), done.error
            plain = json.loads(encode(done.payload))  # JSON, with nothing of the program in it
            assert set(plain) == set(given)


async def test_the_context_has_the_payload_as_it_is_stored(make: Make) -> None:
    scheduler = make()
    job = scheduler.job()(typed_jobs.take_with_context)
    async with scheduler:
        run = await job.enqueue(ORDER)
        assert (await ended(scheduler, run)).result == ["Order", "dict"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"order": {"id": "x", "placed": "2030-01-01T00:00:00Z"}}, "order.id: invalid UUID"),
        ({"order": {"id": str(ID)}}, "order: object missing required field placed"),
        ({"user": {"name": "Ada", "age": -1}}, "user.age: Input should be greater than or equal"),
        ({"users": [{"name": "Ada"}]}, "users.0.age: Field required"),
        ({"color": "green"}, "color: invalid enum value 'green'"),
        ({"when": "soon"}, "when: invalid RFC3339"),
        ({"point": {"x": "1"}}, "point.x: expected int, got str"),
        ({"mode": "medium"}, "mode: invalid enum value 'medium'"),
        ({"small": 11}, "small: expected int <= 10"),
        ({"text": 5}, "text: expected str, got int"),
        ({"text": 5, "small": "x"}, "text: expected str, got int; small: expected int, got str"),
    ],
)
async def test_what_does_not_fit_is_refused_at_enqueue(given: dict[str, Any], words: str) -> None:
    scheduler = Scheduler("memory://")
    take = scheduler.job()(typed_jobs.take)
    async with scheduler:
        for refused in (
            take.enqueue(**given),
            take.enqueue_many([{}, given]),
            scheduler.enqueue("take", given),
            scheduler.trigger("take", given),
            scheduler.add_job("b", handler=take, payload=given, schedule="1h"),
        ):
            with pytest.raises(InvalidArguments) as caught:
                await refused
            assert words in str(caught.value)
            assert "wrong arguments for take(" in str(caught.value)
        assert (await scheduler.list_runs()).items == []


async def test_what_no_annotation_can_make_again_is_refused(make: Make) -> None:
    scheduler = make()
    loose = scheduler.job()(typed_jobs.loose)
    async with scheduler:
        run = await loose.enqueue(1, {"a": 2}, third=[3])
        assert (await ended(scheduler, run)).result == ["int", "dict", "list"]
        for given in ({"first": ORDER, "second": {}}, {"first": 1, "second": {}, "third": ORDER}):
            with pytest.raises(InvalidPayload, match="it holds an Order"):
                await loose.enqueue(**given)


@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_values_of_types_that_json_cannot_make_are_passed_as_they_are(
    make: Make, isolation: Any
) -> None:
    scheduler = make()
    given: dict[str, Any] = {
        "numbers": [1],
        "queue": [2],
        "path": "/tmp/x",
        "named": {"name": "a"},
        "nested": [[3]],
        "required": [4],
    }
    take = scheduler.job("1h", payload=given, isolation=isolation)(typed_jobs.take_unknown_types)
    async with scheduler:
        for run in (await take.enqueue(**given), await scheduler.trigger("take_unknown_types")):
            done = await ended(scheduler, run)
            assert done.result == list(given.values()), done.error


async def test_an_enum_of_other_values_than_strings_or_integers_is_refused(make: Make) -> None:
    scheduler = make()
    job = scheduler.job()(typed_jobs.take_plan)
    async with scheduler:
        with pytest.raises(InvalidArguments, match="either all str or all int values"):
            await job.enqueue(Plan.PRO)


@pytest.mark.parametrize("isolation", ["auto", "thread", "process"])
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"frist": 1, "second": {}}, "missing first; unknown frist; did you mean 'first'"),
        ([1], "the payload must be an object, not list"),
        (None, "missing first, second"),
        ({"first": 1, "second": {}, "color": "green"}, "invalid enum value 'green'"),
    ],
)
async def test_a_payload_that_can_never_fit_fails_its_run_at_once(
    isolation: Any, payload: Any, words: str
) -> None:
    """As of a producer, or the CLI, which has no handler to ask."""
    scheduler = Scheduler("memory://", workers=1)
    producer = Scheduler(scheduler.store, workers=0)
    scheduler.job(retries=5, isolation=isolation)(typed_jobs.needs_two)
    async with scheduler, producer:
        run = await producer.enqueue("needs_two", payload)
        done = await ended(scheduler, run)
    assert (done.state, done.attempt, done.attempts[0].traceback) == (State.FAILED, 1, None)
    assert (done.error or "").startswith("ArgumentsRefused: wrong arguments for needs_two")
    assert words in (done.error or "")


async def test_a_default_needs_not_fit_its_annotation(make: Make) -> None:
    scheduler = make()

    @scheduler.job
    def work(count: int = None, name: str = None) -> list[Any]:  # type: ignore[assignment]  # noqa: RUF013
        return [count, name]

    async with scheduler:
        run = await work.enqueue(count=None, name="a")  # type: ignore[arg-type]
        assert (await ended(scheduler, run)).result == [None, "a"]


async def test_a_worker_refuses_plain_arguments_of_a_wrong_type(tmp_path: Path) -> None:
    """A client without the handler, as the command line is one, could not check them."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url)
    called: list[int] = []

    @scheduler.job(retries=3)
    def double(n: int, factor: float = 2) -> float:
        called.append(n)
        return n * factor

    async with scheduler, Client(url) as client:
        wrong = await client.enqueue("double", {"n": "x"})
        right = await client.enqueue("double", {"n": 4, "factor": 3})
        failed = await ended(scheduler, wrong)
        assert (failed.state, failed.attempt) == (State.FAILED, 1)
        assert "n: expected int, got str" in str(failed.error)
        assert (await ended(scheduler, right)).result == 12
    assert called == [4]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_is_no_handler(is_async: bool) -> None:
    """A call would make a generator and run nothing of it."""
    scheduler = Scheduler("memory://")

    def rows() -> Iterator[int]:
        yield 1

    async def pages() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(InvalidInput, match=r"is a generator.*Write it without `yield`"):
        scheduler.job(pages if is_async else rows)
