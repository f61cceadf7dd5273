"""Tests that every field, every type of value and unusual text is returned as it was stored."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct

from mainspring.core import transitions
from mainspring.core.model import (
    Attempt,
    Job,
    Note,
    Outcome,
    Owner,
    Progress,
    Run,
    Sealed,
    SigningSecret,
    Source,
    State,
    Webhook,
    replace,
)
from mainspring.core.policy import (
    AfterFailure,
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
)
from mainspring.core.schedules import Schedule, at, cron, every, rrule
from mainspring.stores.election import elect
from mainspring.stores.protocol import Claim, JobQuery, NoteQuery, RunQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import (
    claim_runs,
    drop_job,
    drop_note,
    drop_runs,
    get_runs,
    put_job,
    put_note,
)

AT = datetime(2030, 3, 31, 1, 59, 59, 123457, tzinfo=UTC)

RUN = Run(
    id="run@20300331T015959.123457Z",
    job_id="job",
    handler="work",
    created_at=AT,
    scheduled_at=AT + timedelta(microseconds=1),
    run_at=AT + timedelta(microseconds=2),
    source=Source.START,
    queue="slow lane ☃",
    priority=0,
    payload={"b": [1, {"c": None}], "a": "é"},
    state=State.FAILED,
    attempt=7,
    failures=3,
    lapses=2,
    token=9_007_199_254_740_993,
    began=True,
    start_by=AT + timedelta(days=1),
    started_at=AT + timedelta(seconds=1),
    finished_at=AT + timedelta(seconds=2),
    worker="host:1:abc",
    lease_until=AT + timedelta(seconds=30),
    cancel_requested=True,
    result={"ok": False},
    error="ValueError: no",
    reason="gave up",
    progress=Progress(0.5, 3, "half"),
    dedupe_key="k\u0000é",
    dedupe_until=AT + timedelta(hours=1),
    after=("up-1", "up-2"),
    after_any=True,
    trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=x",
    attempts=(
        Attempt(1, "w1", AT, AT, Outcome.LOST),
        Attempt(
            2,
            "w2",
            AT,
            AT + timedelta(microseconds=5),
            Outcome.TIMED_OUT,
            "boom",
            "Traceback:\n  ☃",
            ("one", "two\nlines", ""),
            {"response": {"status": 500, "body": "NUL \x00 ☃"}, "$date": 1, "one": {"$uuid": "x"}},
        ),
    ),
)

POLICY = Policy(
    retries=4,
    backoff=Backoff(BackoffKind.LINEAR, timedelta(seconds=0.25), 3.5, timedelta(minutes=7), 0.5),
    retry_on=("ValueError", "app.errors.Gone"),
    give_up_on=("KeyError",),
    timeout=timedelta(seconds=1.5),
    priority=9,
    queue="q ☃",
    concurrency=3,
    concurrency_key="shared",
    overlap=Overlap.QUEUE,
    misfire=Misfire(MisfireKind.ALL, timedelta(seconds=5), 7),
    start_deadline=timedelta(hours=2),
    delivery=Delivery.EFFECT_ONCE,
    isolation=Isolation.PROCESS,
    memory_limit=2**33,
    rate=Rate(100, timedelta(minutes=1)),
    rate_key="shared",
    breaker=Breaker(2, timedelta(minutes=3)),
    after=("first", "second"),
    after_failure=AfterFailure.RUN,
    run_on_start=True,
    each_node=True,
    retention=timedelta(days=400),
    history=250,
)

JOB = Job(
    id="a.job:of-all_fields",
    handler="work",
    created_at=AT,
    updated_at=AT + timedelta(microseconds=1),
    payload=[{"x": Decimal("1.10")}],
    schedule=every("5m", start=AT),
    policy=POLICY,
    enabled=False,
    next_run_at=AT + timedelta(microseconds=3),
    last_run_at=AT - timedelta(days=1),
    owner=Owner.FILE,
    file="shop",
    description="what it does\nand why ☃",
    tags=("b", "a", "b"),
    metadata={"team": {"name": "ops"}, "at": AT},
    webhook=Webhook(
        url="https://example.org/hook?at={{timestamp}}",
        method="PUT",
        headers={"X-Team": "ops ☃"},
        secret_headers={"Authorization": Sealed("k1", "c2VhbGVk")},
        body={"$date": "2030-01-01", "nested": [{"$uuid": 2**60}, None, 1.5, "NUL \x00"]},
        success=((200, 204), (304, 304)),
        retry_on=((429, 429), (500, 599)),
        signing=(SigningSecret(Sealed("k1", "bmV3")), SigningSecret(Sealed("k0", "b2xk"), AT)),
    ),
    origins={"retries": "job", "timeout": "defaults"},
    stated_enabled=False,
)

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    -0.1,
    1e300,
    "",
    "text",
    "NUL \x00 and \x7f",
    "emoji 🦊 and \u2028",
    "lone surrogate \ud800",
    [],
    {},
    [[], [{}], None],
    {"": 0, "a b": 1, "$": 2},
    {"$datetime": "mine"},
    {"$$datetime": {"$date": 1}},
    {"nested": {"deep": [{"er": [1, 2.5, "x", False, None]}]}},
    datetime(2030, 1, 1, 12, 30, 0, 7, tzinfo=UTC),
    datetime(2030, 1, 1, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    datetime(2030, 1, 1),
    date(1999, 12, 31),
    UUID("12345678-1234-5678-1234-567812345678"),
    Decimal("0.10"),
    b"\x00\xff bytes",
    {"mixed": [date(2030, 1, 1), {"id": UUID(int=1)}, b""]},
]

SCHEDULES: list[Schedule] = [
    cron("30 2 * * 1-5", "Europe/Berlin"),
    cron("*/10 0 0 L * ? 2031"),
    every("90s"),
    every("5m", after="end", start=AT, jitter="20s"),
    every("1h30m", start=AT, jitter="20s"),
    at(AT + timedelta(days=1)),
    rrule("FREQ=MONTHLY;BYDAY=-1FR;COUNT=9", start=AT),
]


class RoundTripTests(Suite):
    async def test_every_field_of_a_run_is_stored(self, store: Store) -> None:
        _differs_everywhere(
            RUN, self.run(), {"unreadable", "brief", "handler", "job_id", "duplicate"}
        )
        [added] = await store.add([RUN])
        assert (added.run, added.duplicate) == (RUN, False)
        assert await self.one(store, RUN.id) == RUN
        assert (await store.find(RunQuery())).items == [RUN]

    async def test_every_field_of_a_job_is_stored(self, store: Store) -> None:
        _differs_everywhere(JOB, self.job(), {"handler", "version", "unreadable"})
        assert await put_job(store, JOB) is True
        kept = await self.read_job(store, JOB.id)
        assert kept == replace(JOB, version=JOB.next_version())

    async def test_every_field_of_a_policy_is_stored(self, store: Store) -> None:
        _differs_everywhere(POLICY, Policy(), set())
        await put_job(store, self.job(policy=POLICY))
        assert (await self.read_job(store)).policy == POLICY

    @pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
    async def test_every_kind_of_schedule_is_stored(self, store: Store, schedule: Schedule) -> None:
        await put_job(store, self.job(schedule=schedule))
        kept = (await self.read_job(store)).schedule
        assert kept == schedule
        assert kept is not None
        assert kept.next(AT) == schedule.next(AT)

    @pytest.mark.parametrize("value", VALUES, ids=lambda v: ascii(v)[:40])
    async def test_every_type_of_payload_and_result_is_stored(
        self, store: Store, value: Any
    ) -> None:
        await store.add([self.run(payload=value)])
        [run] = await self.claim(store)
        assert _same(run.payload, value)
        assert await store.commit([transitions.succeeded(run, self.start, value)]) == [True]
        done = await self.one(store)
        assert _same(done.payload, value)
        assert _same(done.result, value)

    async def test_the_payload_and_metadata_of_a_job_are_stored(self, store: Store) -> None:
        payload = {str(n): value for n, value in enumerate(VALUES)}
        await put_job(store, self.job(payload=payload, metadata=payload))
        job = await self.read_job(store)
        assert _same(job.payload, payload)
        assert _same(dict(job.metadata), payload)

    @pytest.mark.parametrize(
        "text", ["", " ", "NUL \x00 x", "☃🦊", "$where", "x" * 1000], ids=ascii
    )
    async def test_unusual_text_is_stored_in_every_text_field(
        self, store: Store, text: str
    ) -> None:
        held = await self.running(store, f"id-{text}", dedupe_key=f"key-{text}")
        failure = transitions.Failure(f"error-{text}", f"trace-{text}")
        details = transitions.AttemptDetails(log=(text, f"log-{text}"))
        failed = transitions.failed(held, self.start, failure, details, f"why-{text}")
        assert await store.commit([failed]) == [True]
        assert await self.one(store, held.id) == failed.after(held)
        assert await elect(store, f"name-{text}", f"holder-{text}", self.ticks(9)) is not None

    async def test_an_error_text_that_is_not_unicode_is_stored(self, store: Store) -> None:
        """A file name with invalid bytes in an error message must not keep a run from ending."""
        text = "no such file: caf\udce9.txt"
        run = await self.running(store)
        failure, details = transitions.Failure(text, text), transitions.AttemptDetails(log=(text,))
        failed = transitions.failed(run, self.start, failure, details, text)
        assert await store.commit([failed]) == [True]
        assert await store.commit([failed]) == [True]
        kept = await self.one(store)
        assert kept.state is State.FAILED
        for told in (kept.error, kept.reason, kept.attempts[0].traceback, kept.attempts[0].log[0]):
            assert told is not None
            assert told.startswith("no such file: caf")

    async def test_ids_are_compared_exactly(self, store: Store) -> None:
        ids = ["a", "A", "a ", "á", "a\u0301", "ａ"]
        await store.add(self.runs(*ids))
        assert set(await get_runs(store, ids)) == set(ids)

    async def test_times_in_other_zones_are_the_same_moments(self, store: Store) -> None:
        zone = timezone(timedelta(hours=-7))
        await store.add([self.run(run_at=self.start.astimezone(zone))])
        assert (await self.one(store)).run_at == self.start
        assert await self.claim_ids(store) == ["run"]

    async def test_times_far_in_the_past_and_future_are_stored(self, store: Store) -> None:
        far = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
        old = datetime(1970, 1, 1, tzinfo=UTC)
        await store.add([self.run("far", run_at=far), self.run("old", run_at=old)])
        assert [r.run_at for r in (await get_runs(store, ["far", "old"])).values()] == [far, old]
        assert await self.claim_ids(store) == ["old"]


def _same(left: Any, right: Any) -> bool:
    """Equal, and of the same types: 1 is not True, 1.0 is not 1."""
    return left == right and repr(_shape(left)) == repr(_shape(right))


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return type(value).__name__


def _differs_everywhere(value: Any, plain: Any, but: set[str]) -> None:
    """The example must not forget a field that was added since."""
    names = value.__struct_fields__ if isinstance(value, Struct) else value.__slots__
    same = {name for name in names if getattr(value, name) == getattr(plain, name)}
    assert same <= but, f"the suite's example leaves {same - but} at its default"


ODD = ["$ne", "a.b.$", '{"$gt": ""}', "%_'\";--", ".*\\", "`a/b` é☃🦊", "x" * 500]


_each = pytest.mark.parametrize("odd", ODD, ids=ascii)


class NameTests(Suite):
    def odd_run(self, odd: str, number: int) -> Run:
        return self.run(
            f"{odd}{number}",
            job_id=odd,
            handler=odd,
            queue=odd,
            dedupe_key=f"{odd}{number}",
            payload={odd: odd},
        )

    @_each
    async def test_odd_names_of_runs(self, store: Store, odd: str) -> None:
        """Ids, jobs, handlers, queues, workers, keys, cursors."""
        await store.add([self.odd_run(odd, n) for n in range(3)])
        await store.add([self.run("plain", dedupe_key="plain")])
        mine = {"worker": odd, "handlers": frozenset({odd}), "queues": frozenset({odd})}
        claim: Any = {**mine, "lease": self.ticks(30)}
        held = sorted(await claim_runs(store, Claim(limit=9, **claim)), key=lambda run: run.id)
        assert [(run.id, run.worker, run.payload) for run in held] == [
            (f"{odd}{n}", odd, {odd: odd}) for n in range(3)
        ]
        assert len(await self.renew(store, *held)) == 3
        now = await store.now()
        ends = [transitions.succeeded(run, now, {odd: odd}) for run in held[:2]]
        assert await store.commit(ends) == [True, True]
        assert (await self.one(store, f"{odd}0")).result == {odd: odd}
        assert await self.states(store, odd, f"{odd}2") == [None, State.RUNNING]
        assert await self.all_ids(store, job=odd, limit=1) == [f"{odd}{n}" for n in (2, 1, 0)]
        assert (await store.find(RunQuery(job=f"{odd}0"))).items == []
        assert (await store.counts()).runs[odd] == {State.RUNNING: 1}
        counted = await store.counts(jobs=frozenset({odd, f"{odd}0"}))
        assert {name: total.ended for name, total in counted.totals.items()} == {
            odd: {State.SUCCEEDED: 2}
        }
        again = [replace(self.odd_run(odd, n), id=f"again{n}") for n in range(3)]
        added = await store.add(again)
        assert [(answer.run.id, answer.duplicate) for answer in added] == [
            ("again0", False),
            ("again1", False),
            (f"{odd}2", True),
        ]
        assert await drop_runs(store, [f"{odd}0", odd]) == 1

    @_each
    async def test_odd_names_of_jobs(self, store: Store, odd: str) -> None:
        """Ids, tags, metadata, limits, and search text."""
        limit = Policy.make(concurrency=1, concurrency_key="shared")
        odd_job = self.job(odd, tags=(odd,), metadata={odd: 1}, policy=limit)
        assert await put_job(store, odd_job)
        assert await put_job(store, self.job("plain", description=f"so {odd} is"))
        for query, found in (
            (JobQuery(ids=frozenset({odd})), [odd]),
            (JobQuery(tag=odd), [odd]),
            (JobQuery(text=odd), sorted([odd, "plain"])),
            (JobQuery(text=f"{odd}x"), []),
            (JobQuery(cursor=odd, limit=9), ["plain"] if odd < "plain" else []),
        ):
            jobs = (await store.jobs(query)).items
            assert [job.id for job in jobs] == found
        [kept] = (await store.jobs(JobQuery(tag=odd))).items
        assert (kept.metadata, kept.policy) == ({odd: 1}, limit)
        await store.add([self.odd_run(odd, n) for n in range(2)])
        assert len(await self.claim(store, handlers=frozenset({odd}))) == 1
        assert await drop_job(store, odd)

    @_each
    async def test_odd_names_of_notes_and_terms(self, store: Store, odd: str) -> None:
        assert await put_note(store, Note(kind=odd, name=odd, value={odd: 1})) == 1
        [note] = (await store.notes(NoteQuery(kind=odd, names=frozenset({odd})))).items
        assert (note.name, note.value) == (odd, {odd: 1})
        page = await store.notes(NoteQuery(kind=odd, limit=1))
        assert (await store.notes(NoteQuery(kind=odd, cursor=page.cursor))).items == []
        assert [note.kind for note in (await store.notes(NoteQuery())).items] == [odd]
        assert await drop_note(store, odd, odd)
        assert await elect(store, odd, odd, self.ticks(5)) == 1
        assert await elect(store, odd, "another", self.ticks(5)) is None

    async def test_a_name_with_a_nul_finds_nothing(self, store: Store) -> None:
        """No name contains a NUL (the scheduler refuses it). The part before it must not match."""
        nul = "plain\0x"
        await put_job(store, self.job("plain", tags=("plain",)))
        await put_note(store, Note(kind="key", name="plain", value=1))
        await store.add([self.run("plain")])
        [run] = await self.claim(store)
        await self.succeed(store, run)
        for query in (JobQuery(ids=frozenset({nul})), JobQuery(tag=nul), JobQuery(text=nul)):
            assert (await store.jobs(query)).items == []
        assert (await store.notes(NoteQuery(kind="key", names=frozenset({nul})))).items == []
        assert not await drop_note(store, "key", nul)
        assert not await drop_job(store, nul)
        assert await self.states(store, nul, "plain") == [None, State.SUCCEEDED]
        assert await drop_runs(store, [nul]) == 0
        both = JobQuery(ids=frozenset({nul, "plain"}))
        assert [job.id for job in (await store.jobs(both)).items] == ["plain"]
