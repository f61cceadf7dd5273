"""`TestScheduler`: a program's own scheduler on virtual time and in memory."""

from __future__ import annotations

import asyncio
import threading
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring import GiveUp, RunContext, Scheduler, State
from mainspring.errors import InvalidInput, InvalidState, NotStarted
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, Claimed
from mainspring.testing import TestScheduler

MIDNIGHT = "2026-03-28T00:00"
BERLIN = "Europe/Berlin"


def write_audit(ctx: RunContext, who: str) -> str:
    return f"{who} in {ctx.resources['region']}"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A program whose database cannot be made: a test that touches it fails."""
    url = f"sqlite:///{tmp_path}/no-such-folder/jobs.db"
    scheduler = Scheduler(url, timezone=BERLIN, resources={"mail": [], "region": "eu"})
    seen: list[Any] = []

    @scheduler.job("30 2 * * *", retries=2, retry_delay="10m")
    async def report(ctx: RunContext) -> str:
        await asyncio.sleep(90)
        if ctx.attempt == 1:
            raise ConnectionError("the mail server is away")
        ctx.resources["mail"].append(ctx.scheduled_at)
        await notify.enqueue(to="ada@example.org")
        return "sent"

    @scheduler.job
    def notify(to: str) -> str:
        audit.blocking.enqueue(who=to)
        return threading.current_thread().name

    audit = scheduler.job(isolation="process", queue="slow")(write_audit)

    @scheduler.job(after=["report"])
    async def archive(ctx: RunContext) -> str:
        return f"kept {ctx.results['report']}"

    yield SimpleNamespace(
        scheduler=scheduler, report=report, notify=notify, audit=audit, archive=archive, seen=seen
    )
    assert list(tmp_path.iterdir()) == []


async def test_a_program_runs_for_two_days_without_its_database(app: SimpleNamespace) -> None:
    async with TestScheduler(app.scheduler, start=MIDNIGHT) as test:
        assert test.now == datetime(2026, 3, 27, 23, tzinfo=UTC)
        ended = await test.tick("2d")
        # On 2026-03-29 there is no 02:30 in Berlin: the slot moves to 03:00 summer time.
        reports = test.assert_succeeded("report", times=2)
        assert [run.scheduled_at.isoformat() for run in reports] == [
            "2026-03-28T01:30:00+00:00",
            "2026-03-29T01:00:00+00:00",
        ]
        assert [(run.attempt, run.duration) for run in reports] == [(2, 90.0), (2, 90.0)]
        # Two attempts of 90 s with the retry's delay between them, and no jitter.
        assert reports[0].finished_at == reports[0].scheduled_at + timedelta(minutes=13)
        assert app.scheduler._resources["mail"] == [run.scheduled_at for run in reports]
        assert {run.result for run in test.assert_succeeded(app.archive)} == {"kept sent"}
        assert test.assert_succeeded(app.audit)[0].result == "ada@example.org in eu"
        assert test.runs("notify")[0].result.startswith("mainspring-handler")
        assert {run.id for run in ended} == {run.id for run in test.runs()}
        assert test.now == datetime(2026, 3, 29, 23, tzinfo=UTC)


async def test_the_scheduler_is_as_it_was_afterwards(app: SimpleNamespace) -> None:
    before = dict(vars(app.scheduler))
    async with TestScheduler(app.scheduler, resources={"mail": None}) as test:

        @test.scheduler.job
        async def extra() -> None: ...

        assert (await test.run("extra")).state is State.SUCCEEDED
        assert app.scheduler._resources == {"mail": None, "region": "eu"}
    assert vars(app.scheduler) == before
    assert not app.scheduler.started
    assert app.scheduler.code_job_ids == ["archive", "notify", "report", "write_audit"]


def test_a_plain_test_uses_the_blocking_form(app: SimpleNamespace) -> None:
    with TestScheduler(app.scheduler, start=MIDNIGHT).blocking as test:
        run = app.notify.blocking.enqueue("bob@example.org")
        assert test.runs(app.audit) == []
        assert test.tick()[0].id == run.id
        assert test.assert_succeeded(app.audit, times=1)[0].payload == {"who": "bob@example.org"}
        assert test.tick(until="2026-03-28T02:29:59") == []
        assert len(test.tick(until="2026-03-28T03:00")) == 4


class WithUnittest(unittest.IsolatedAsyncioTestCase):
    __test__ = False  # run by the test below: this suite is pytest's

    def setUp(self) -> None:
        self.scheduler = Scheduler("memory://")

        @self.scheduler.job("@hourly")
        async def tidy() -> None: ...

    async def test_async(self) -> None:
        async with TestScheduler(self.scheduler) as test:
            await test.tick("3h")
            test.assert_succeeded("tidy", times=3)


class WithPlainUnittest(WithUnittest):
    def test_plain(self) -> None:
        test = self.enterContext(TestScheduler(self.scheduler).blocking)
        test.tick("3h")
        test.assert_succeeded("tidy", times=3)


def test_it_works_in_unittest() -> None:
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(WithPlainUnittest)
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    assert (result.testsRun, result.wasSuccessful()) == (2, True)


# Time


async def test_nothing_runs_between_ticks() -> None:
    test = TestScheduler(start="2030-01-01T12:00Z")
    calls: list[datetime] = []

    @test.scheduler.job("@hourly")
    async def hourly() -> None:
        calls.append(test.now)

    async with test:
        now = test.now
        run = await hourly.enqueue()
        assert (await test.scheduler.get_run(run.id)).state is State.PENDING
        await asyncio.sleep(0.05)
        assert (calls, test.now) == ([], now)
        await test.tick()
        assert calls == [now]
        await test.tick("59m")
        assert len(calls) == 1
        await test.tick("1m")  # what is due at the very end runs too
        assert calls[1:] == [now + timedelta(hours=1)]


async def test_delays_and_sleeps_take_exactly_their_virtual_time() -> None:
    test = TestScheduler()

    @test.scheduler.job(timeout="1h")
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with test:
        await nap.options(delay="1h").enqueue(seconds=600)
        await test.tick("1h")
        [run] = test.runs("nap", state="running")
        await test.tick("599s")
        assert not (await test.scheduler.get_run(run.id)).finished
        [ended] = await test.tick("1s")
        assert ended.duration == 600
        late = await test.run(nap, {"seconds": 7200})
        assert "timeout" in (late.error or "").lower() or late.state is State.FAILED
        assert late.duration == 3600


async def test_time_leaps_from_slot_to_slot_where_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two and a half million seconds of polls and sweeps would take minutes."""
    test = TestScheduler()
    claims: list[object] = []
    claim = MemoryStore.claim

    async def count_claims(store: MemoryStore, given: Claim) -> Claimed:
        claims.append(given)
        return await claim(store, given)

    monkeypatch.setattr(MemoryStore, "claim", count_claims)

    @test.scheduler.job("0 9 * * *")
    async def daily() -> None: ...

    async with test:
        await test.tick("30d")
        test.assert_succeeded(daily, times=30)
        assert len(claims) < 30 * 10


async def test_runs_blocked_by_a_limit_go_on_when_it_is_free() -> None:
    test = TestScheduler()

    @test.scheduler.job(concurrency=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with test:
        await slow.enqueue_many([{}] * 3)
        await test.tick()
        assert len(test.runs(slow, state="running")) == 1
        await test.tick("3m")
        test.assert_succeeded(slow, times=3)


async def test_a_tick_finishes_the_workflows_that_it_starts() -> None:
    scheduler = Scheduler("memory://")
    names = [f"step{n}" for n in range(12)]
    for at, name in enumerate(names):
        scheduler.job(id=name, after=names[at - 1 : at] if at else ())(_nothing)
    scheduler.job("@hourly", id="root")(_nothing)
    scheduler.job(id="leaf", after="root")(_nothing)
    scheduler.job(id="last", after="leaf")(_nothing)
    async with TestScheduler(scheduler, start="2030-01-01T00:00Z") as test:
        assert f"{names[1]} has no run: it runs after {names[0]}" in test.describe()
        await scheduler.trigger(names[0])
        began = test.now
        ended = await test.tick()
        assert [run.job_id for run in ended] == names
        assert {run.run_at for run in ended} == {run.finished_at for run in ended} == {began}
        assert test.now == began
        await test.tick("1h")
        for name in ("root", "leaf", "last"):
            [run] = test.assert_succeeded(name, times=1)
            assert run.finished_at == test.now


async def _nothing() -> None: ...


async def test_a_handler_may_wait_for_another_run() -> None:
    test = TestScheduler()

    @test.scheduler.job(retries=1, retry_delay="5m")
    async def flaky(ctx: RunContext) -> int:
        if ctx.attempt == 1:
            raise OSError("not yet")
        return 7

    @test.scheduler.job
    async def waits() -> Any:
        run = await flaky.enqueue()
        return (await test.scheduler.wait(run.id)).result

    async with test:
        assert (await test.run(waits)).result == 7
        assert test.now >= datetime(2030, 1, 1, 0, 5, tzinfo=UTC)


async def test_real_sockets_and_threads_answer_before_time_passes() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.005)
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)  # on the test's loop, in real time
    port = server.sockets[0].getsockname()[1]
    test = TestScheduler()

    @test.scheduler.job(timeout="30s")
    async def call() -> str:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
        await asyncio.to_thread(time.sleep, 0.05)
        return line.decode()

    async with server, test:
        await call.enqueue()
        [run] = await test.tick("1h")
        assert run.result == "hello\n"
        assert (run.duration or 0) < 10


async def test_time_moves_forwards_and_by_the_test_alone() -> None:
    test = TestScheduler()

    @test.scheduler.job
    async def meddler() -> None:
        await test.tick("1h")

    async with test:
        with pytest.raises(InvalidInput, match="time passes forwards only"):
            await test.tick(until="2029-12-31T00:00Z")
        with pytest.raises(InvalidInput, match="not both"):
            await test.tick("1h", until="2030-01-02T00:00Z")
        with pytest.raises(InvalidInput, match="until is a datetime or text such as"):
            await test.tick(until="tomorrow")
        run = await test.run(meddler)
        assert "moved by the test, not by a handler" in (run.error or "")


# What happened


async def test_messages_show_what_happened_instead() -> None:
    test = TestScheduler()

    @test.scheduler.job("@hourly")
    async def broken() -> None:
        raise GiveUp("the disk is full")

    @test.scheduler.job("@hourly", overlap="skip")
    async def slow() -> None:
        await asyncio.sleep(5400)

    @test.scheduler.job("0 0 1 2 *")
    async def yearly() -> None: ...

    async with test:
        await test.tick("2h")
    # The results can be read after the end, too.
    test.assert_skipped(slow, times=1, reason="overlap")
    test.assert_not_run("yearly")
    test.assert_failed(broken, times=2, error="disk is full")
    with pytest.raises(AssertionError) as error:
        test.assert_succeeded(broken)
    told = str(error.value)
    assert told.startswith("expected at least 1 succeeded of 'broken', found 0 and 2 failed\n")
    assert "At 2030-01-01 02:00:00 UTC there are 2 runs:" in told
    assert "broken failed: for 2030-01-01 01:00:00 UTC, 1 attempt" in told
    assert 'raise GiveUp("the disk is full")' in told
    with pytest.raises(AssertionError, match="next slot is at 2030-02-01 00:00:00 UTC"):
        test.assert_succeeded(yearly)
    with pytest.raises(AssertionError, match="failed, but not with 'out of memory'"):
        test.assert_failed(broken, error="out of memory")
    with pytest.raises(AssertionError, match="'broken' was not expected to run, but did"):
        test.assert_not_run(broken)
    with pytest.raises(AssertionError, match="no job 'brokn'; did you mean 'broken'"):
        test.runs("brokn")


async def test_wait_gives_up_with_the_state_of_the_run() -> None:
    test = TestScheduler()

    @test.scheduler.job
    async def endless() -> None:
        await asyncio.Event().wait()

    async with test:
        run = await endless.enqueue()
        with pytest.raises(
            AssertionError, match=r"within 1 hour run \w+ has not ended(.|\n)*endless runn"
        ):
            await test.wait(run, within="1h")


async def test_the_schedulers_own_wait_lets_time_pass_in_a_test() -> None:
    test = TestScheduler()

    @test.scheduler.job(retries=1, retry_delay="10m")
    async def flaky(ctx: RunContext) -> int:
        if ctx.attempt == 1:
            raise OSError("not yet")
        return 7

    async with test:
        run = await flaky.enqueue()
        with pytest.raises(TimeoutError):
            await test.scheduler.wait(run.id, timeout="5m")
        assert (await test.scheduler.wait(run.id)).result == 7
        assert test.now == datetime(2030, 1, 1, 0, 10, tzinfo=UTC)
    plain = TestScheduler().blocking

    @plain.scheduler.job
    async def nap() -> None:
        await asyncio.sleep(60)

    def use() -> float | None:
        with plain:
            run = nap.blocking.enqueue()
            return plain.scheduler.blocking.wait(run.id, timeout="2m").duration

    assert await asyncio.to_thread(use) == 60


async def test_a_thread_that_never_ends_fails_the_tick() -> None:
    test = TestScheduler(thread_timeout="200ms")
    release = threading.Event()

    @test.scheduler.job
    def stuck() -> None:
        release.wait(30)

    async with test:
        await stuck.enqueue()
        with pytest.raises(AssertionError, match=r"worked for 0\.2 s of real time"):
            await test.tick()
        release.set()


async def test_hooks_and_listeners_of_the_program_are_called() -> None:
    scheduler = Scheduler("memory://")
    heard: list[Any] = []
    scheduler.on("run.*", lambda event: heard.append(event.name))

    def on_error(ctx: RunContext, error: BaseException) -> None:
        heard.append((str(error), ctx.will_retry))

    @scheduler.job(on_error=on_error, on_success=lambda ctx, result: heard.append(result))
    async def work(ok: bool) -> str:
        if not ok:
            raise OSError("no")
        return "done"

    async with TestScheduler(scheduler) as test:
        await work.enqueue(ok=True)
        await work.enqueue(ok=False)
        await test.tick()
    assert {"done", ("no", False)} <= set(heard)
    assert heard.count("run.succeeded") == heard.count("run.failed") == 1
    count = len(heard)
    await asyncio.sleep(0)
    assert len(heard) == count


async def test_an_app_that_starts_the_scheduler_itself_finds_it_started() -> None:
    scheduler = Scheduler("memory://")

    @scheduler.job
    async def work() -> int:
        return 1

    async with TestScheduler(scheduler) as test:
        async with scheduler:  # as a lifespan does
            assert (await test.run(work)).result == 1
        assert (await test.run(work)).result == 1
    async with scheduler:
        with pytest.raises(InvalidState, match="not started"):
            await TestScheduler(scheduler).start()


async def test_before_the_start_and_after_the_end_it_says_how_to_start() -> None:
    test = TestScheduler()
    with pytest.raises(NotStarted, match="async with TestScheduler"):
        await test.tick()
    async with test:
        with pytest.raises(InvalidState, match=r"await test\.tick"):
            test.blocking.tick()
    with pytest.raises(NotStarted):
        await test.tick()
    with pytest.raises(InvalidState, match="make a new one"):
        await test.start()


# Webhooks


async def test_webhooks_are_recorded_and_answered_by_the_test() -> None:
    scheduler = Scheduler("memory://")
    async with TestScheduler(scheduler) as test:
        await scheduler.add_job(
            "ping",
            webhook={
                "url": "https://api.example.org/ping?at={{timestamp}}",
                "headers": {"Authorization": "Bearer secret"},
                "body": {"job": "{{jobId}}"},
            },
            schedule="0 * * * *",
            retries=2,
            retry_delay="1m",
        )
        test.webhooks.answer("https://api.example.org/*", 503, times=1)
        test.webhooks.answer("https://api.example.org/*", error="nobody listens", times=1)
        test.webhooks.answer("https://other.example.org/*", 404)
        await test.tick("1h")
        [first] = test.webhooks.requests
        assert (first.method, first.json) == ("POST", {"job": "ping"})
        assert first.url == "https://api.example.org/ping?at=2030-01-01T01%3A00%3A00.000Z"
        assert first.headers["Authorization"] == "Bearer secret"
        assert "webhook-signature" in first.headers
        await test.tick("10m")
        [run] = test.assert_succeeded("ping", times=1)
        assert [attempt.error for attempt in run.attempts] == [
            "WebhookFailed: nobody listens",
            "WebhookFailed: the endpoint answered 503 Service Unavailable",
            None,
        ]
        assert run.result == {"status": 200}


async def test_a_slow_endpoint_takes_virtual_time() -> None:
    scheduler = Scheduler("memory://")
    async with TestScheduler(scheduler) as test:
        await scheduler.add_job("slow", webhook="https://api.example.org/", timeout="30s")
        test.webhooks.answer(delay="20s", body={"ok": True})
        assert (await test.run("slow")).duration == 20
        test.webhooks.answer(delay="2m")
        assert (await test.run("slow")).state is State.FAILED


async def test_slots_fire_though_the_program_fires_none_itself() -> None:
    scheduler = Scheduler("memory://", enabled=False)

    @scheduler.job("5m")
    async def tick() -> None: ...

    async with TestScheduler(scheduler) as test:
        await test.tick("1h")
        assert len(test.runs("tick")) == 12
    assert not scheduler.enabled


async def test_what_is_around_an_attempt_is_around_it_in_a_test_too() -> None:
    who = ContextVar("who", default="nobody")
    threads: set[int] = set()

    @contextmanager
    def as_job(ctx: RunContext) -> Iterator[None]:
        who.set(ctx.job_id)
        threads.add(threading.get_ident())
        yield

    scheduler = Scheduler("memory://", around=as_job)

    @scheduler.job
    def plain() -> str:
        assert threading.get_ident() in threads
        return who.get()

    @scheduler.job
    async def later() -> str:
        return who.get()

    async with TestScheduler(scheduler) as test:
        for job in ("plain", "later"):
            assert (await test.run(job)).result == job
