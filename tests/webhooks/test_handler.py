"""The outcome of a run for each response of its endpoint, with real calls on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from mainspring import Backoff, Event, State
from mainspring.core.clock import SystemClock
from mainspring.errors import InvalidInput
from mainspring.stores.memory import MemoryStore
from mainspring.webhooks import WebhookSettings, new_signing_secret
from mainspring.webhooks.handler import retry_after
from tests.support.webhook_endpoint import (
    call,
    called,
    endpoint,
    response,
    scheduler,
    serving,
)


async def test_a_program_that_blocks_its_loop_keeps_no_call_waiting() -> None:
    """Calls are made on the engine's own loop."""
    called_at: list[float] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            called_at.append(time.monotonic())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        async with scheduler() as mainspring:
            url = f"http://127.0.0.1:{server.server_port}/"
            await mainspring.add_job("call", webhook={"url": url})
            run = await mainspring.enqueue("call", delay=0.3)
            ends = time.monotonic() + 20
            while not called_at and time.monotonic() < ends:
                time.sleep(0.01)  # noqa: ASYNC251 - that is what it is about
            assert called_at
            assert (await mainspring.wait(run.id, timeout=30)).state is State.SUCCEEDED
        server.shutdown()


async def test_a_call_succeeds_and_is_kept_with_its_attempt() -> None:
    async with (
        endpoint(lambda _: response(201, b'{"ok":true}', "X-Id: 7")) as end,
        scheduler() as mainspring,
    ):
        webhook = {
            "url": end.url + "?at={{scheduledAt}}",
            "headers": {"X-Try": "{{attempt}}", "Authorization": "Bearer top-secret"},
            "body": {"event": "tick", "id": "{{executionId}}", "job": "{{jobId}}"},
        }
        run = await called(mainspring, webhook)
    assert run.state is State.SUCCEEDED
    assert run.result == {"status": 201}
    [sent] = end.requests
    assert sent.method == "POST"
    assert sent.target.startswith("/hook?at=20")
    assert sent.headers["authorization"] == "Bearer top-secret"
    assert sent.headers["x-try"] == "1"
    assert sent.headers["idempotency-key"] == run.id
    assert sent.headers["accept-encoding"] == "identity"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["user-agent"].startswith("Mainspring/")
    assert json.loads(sent.body) == {"event": "tick", "id": run.id, "job": "call"}
    detail = run.attempts[0].detail
    assert detail["request"]["headers"]["Authorization"] == "********"
    assert json.loads(detail["request"]["body"]) == json.loads(sent.body)
    assert detail["response"]["status"] == 201
    assert detail["response"]["body"] == '{"ok":true}'
    assert detail["response"]["truncated"] is False
    assert ["X-Id", "7"] in detail["response"]["headers"]
    assert detail["response"]["address"] == "127.0.0.1"
    assert detail["duration_ms"] > 0
    assert "top-secret" not in repr(run)


async def test_signatures_verify_with_an_independent_library_and_stay_over_retries() -> None:
    answers = iter([response(500), response(200)])
    secret = new_signing_secret()
    async with endpoint(lambda _: next(answers)) as end, scheduler() as mainspring:
        webhook = {"url": end.url, "body": {"n": 1}, "signing_secret": secret}
        run = await called(mainspring, webhook, retries=1, retry_delay="10ms")
    assert run.state is State.SUCCEEDED
    first, second = end.requests
    for sent in (first, second):
        assert Verifier(secret).verify(sent.body, sent.headers) == {"n": 1}
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    with pytest.raises(Exception, match="No matching signature"):
        Verifier(new_signing_secret()).verify(first.body, first.headers)


async def test_while_a_secret_is_rotated_both_verify() -> None:
    secret = new_signing_secret()
    async with endpoint() as end, scheduler() as mainspring:
        await mainspring.add_job("call", webhook={"url": end.url, "signing_secret": secret})
        shown = await mainspring.rotate_secret("call", old_valid_for="1h")
        await call(mainspring)
        last = await mainspring.rotate_secret("call", old_valid_for=0)
        await call(mainspring)
    both, only = end.requests
    for known in (secret, shown):
        assert _verifies(known, both)
    assert _verifies(last, only)
    assert not _verifies(shown, only)
    assert len(both.headers["webhook-signature"].split()) == 2


def _verifies(secret: str, sent: Any) -> bool:
    """Without the library's reading of the body as JSON: these have none."""
    moment = datetime.fromtimestamp(int(sent.headers["webhook-timestamp"]), UTC)
    signed = Verifier(secret).sign(sent.headers["webhook-id"], moment, sent.body.decode())
    return signed in sent.headers["webhook-signature"].split()


@pytest.mark.parametrize("status", [302, 404, 429, 500, 503])
async def test_every_answer_outside_the_success_codes_is_retried(status: int) -> None:
    async with (
        endpoint(lambda _: response(status, b"", "Location: /other")) as end,
        scheduler() as mainspring,
    ):
        run = await called(mainspring, end.url, retries=2, retry_delay="5ms")
    assert run.state is State.FAILED
    assert len(end.requests) == 3
    assert {sent.target for sent in end.requests} == {"/hook"}, "no redirect was followed"
    assert run.error is not None
    assert f"the endpoint answered {status}" in run.error


async def test_retry_on_narrows_what_is_retried() -> None:
    async with endpoint(lambda _: response(404)) as end, scheduler() as mainspring:
        webhook = {"url": end.url, "retry_on": ["5xx", 429]}
        run = await called(mainspring, webhook, retries=3, retry_delay="5ms")
        assert run.state is State.FAILED
        assert len(end.requests) == 1
        end.answer = lambda _: response(502)
        run = await call(mainspring)
        assert len(end.requests) == 5


async def test_success_codes_are_the_jobs_own() -> None:
    async with endpoint(lambda _: response(404)) as end, scheduler() as mainspring:
        run = await called(mainspring, {"url": end.url, "success": ["2xx", 404]})
    assert (run.state, run.result) == (State.SUCCEEDED, {"status": 404})


async def test_gone_fails_without_a_retry_and_pauses_the_job() -> None:
    async with endpoint(lambda _: response(410)) as end, scheduler() as mainspring:
        run = await called(mainspring, end.url, retries=5, schedule="0 0 1 1 *")
        job = await mainspring.get_job("call")
    assert run.state is State.FAILED
    assert "the job is paused" in str(run.error)
    assert len(end.requests) == 1
    assert (job.enabled, job.next_run_at) == (False, None)


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
@pytest.mark.parametrize("status", [500, 410])
async def test_a_new_job_does_not_inherit_the_outcome_of_the_deleted_job(
    status: int, kept: str, tmp_path: Path
) -> None:
    """No call to the new endpoint with the new secrets, no pause for what the old one said."""
    store = "memory://" if kept == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    async with (
        endpoint(lambda _: response(status)) as old,
        endpoint() as new,
        scheduler(store=store) as mainspring,
    ):
        old.hold = asyncio.Event()
        await mainspring.add_job("call", webhook=old.url, retries=5, retry_delay="1ms")
        run = await mainspring.trigger("call", {"from": "the old job"})
        await old.arrived.wait()
        await mainspring.remove_job("call")
        webhook = {"url": new.url, "headers": {"Authorization": "Bearer of-the-new-job"}}
        made = await mainspring.add_job("call", webhook=webhook, schedule="0 0 1 1 *")
        old.hold.set()
        run = await mainspring.wait(run.id, timeout=30)
        assert await mainspring.get_job("call") == made
    assert (len(old.requests), len(new.requests)) == (1, 0)
    if status == 410:
        assert run.state is State.FAILED
        assert "paused" not in str(run.error)
    else:
        assert (run.state, run.reason) == (State.CANCELLED, "job removed")


async def test_an_endpoint_that_is_no_longer_the_jobs_does_not_pause_it() -> None:
    async with endpoint(lambda _: response(410)) as old, scheduler() as mainspring:
        old.hold = asyncio.Event()
        await mainspring.add_job("call", webhook=old.url)
        run = await mainspring.trigger("call")
        await old.arrived.wait()
        await mainspring.update_job("call", webhook={"url": "https://example.org/moved"})
        old.hold.set()
        assert (await mainspring.wait(run.id, timeout=30)).state is State.FAILED
        assert (await mainspring.get_job("call")).enabled


async def test_retry_after_is_honoured_and_capped() -> None:
    """And no less than the backoff: an endpoint that says 0 would be called without a pause."""
    waits = iter(["1", "86400", "0"])
    ended: list[Event] = []
    cap = WebhookSettings(allow=["127.0.0.1"], retry_after_cap="2s")

    def busy(_: Any) -> bytes:
        return response(503, b"", f"Retry-After: {next(waits, '0')}")

    async with endpoint(busy) as end, scheduler(webhooks=cap) as mainspring:
        mainspring.on("run.retrying", ended.append)
        backoff = Backoff("fixed", "700ms", jitter=False)
        await called(mainspring, end.url, retries=3, backoff=backoff)
    asked = []
    for event in ended:
        assert event.run is not None
        ended_at = event.run.attempts[-1].finished_at
        asked.append(round((event.run.run_at - ended_at).total_seconds(), 1))
    assert asked == [1, 2, 0.7]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([("Retry-After", "120")], 120),
        ([("retry-after", " 5 ")], 5),
        ([("Retry-After", "Tue, 01 Jan 2030 00:01:00 GMT")], 60),
        (
            [
                ("Retry-After", "Tue, 01 Jan 2030 05:00:30 GMT"),
                ("Date", "Tue, 01 Jan 2030 05:00:00 GMT"),
            ],
            30,
        ),
        ([("Retry-After", "Mon, 31 Dec 2029 00:00:00 GMT")], 0),
        ([("Retry-After", "99999999999999999999999")], 10**9),
        ([("Retry-After", "soon")], None),
        ([("Retry-After", "-5")], None),
        ([("Retry-After", "١٢")], None),
        ([("Retry-After", "Tue, 99 Jan 2030 00:00:00 GMT")], None),
        ([], None),
    ],
)
def test_reading_retry_after(headers: list[tuple[str, str]], seconds: float | None) -> None:
    wait = retry_after(headers, datetime(2030, 1, 1, tzinfo=UTC))
    assert wait == (None if seconds is None else timedelta(seconds=seconds))


async def test_a_trigger_may_bring_its_own_body() -> None:
    async with endpoint() as end, scheduler() as mainspring:
        await mainspring.add_job("call", webhook={"url": end.url, "body": {"a": 1}})
        for body in ({"b": "{{attempt}}"}, "plain {{jobId}}", None):
            run = await mainspring.trigger("call", body)
            await mainspring.wait(run.id, timeout=10)
        with pytest.raises(InvalidInput, match=r"\{\{nope\}\}, which is not a template name"):
            await mainspring.trigger("call", {"x": "{{nope}}"})
    assert [sent.body for sent in end.requests] == [b'{"b":"1"}', b"plain call", b'{"a":1}']
    assert end.requests[1].headers["content-type"] == "text/plain; charset=utf-8"


async def test_another_process_reads_the_definition_as_it_is_now() -> None:
    """An edit and a trigger by one process; the worker is another, which knows the old one."""
    async with (
        endpoint() as old,
        endpoint() as new,
        scheduler() as worker,
        scheduler(store=worker.store, workers=0) as producer,
    ):
        await producer.add_job("call", webhook=old.url)
        await worker.wait((await producer.trigger("call")).id, timeout=10)
        await producer.update_job("call", webhook=new.url)
        await worker.wait((await producer.trigger("call")).id, timeout=10)
    assert (len(old.requests), len(new.requests)) == (1, 1)


async def test_a_timeout_is_by_the_wall_clock_and_keeps_what_was_sent() -> None:
    async with endpoint() as end, scheduler() as mainspring:
        end.hold = asyncio.Event()
        run = await called(mainspring, end.url, timeout="200ms")
    assert run.state is State.FAILED
    assert run.attempts[0].outcome == "timed_out"
    assert str(run.error) == "RunTimeout: the endpoint did not answer within 200 milliseconds"
    assert run.attempts[0].detail["request"]["url"] == end.url
    assert run.attempts[0].detail["response"] is None


async def test_a_redirect_names_the_address_to_use() -> None:
    target = "https://example.org/new?token=sk_live_0123456789"
    redirect = response(301, b"", f"Location: {target}")
    async with endpoint(lambda _: redirect) as end, scheduler() as mainspring:
        webhook = {"url": end.url, "headers": {"Authorization": "Bearer sk_live_0123456789"}}
        run = await called(mainspring, webhook)
    assert str(run.error) == (
        "WebhookFailed: the endpoint answered 301 Moved Permanently to"
        " https://example.org/new?token=********; redirects are not followed: give the final"
        " address"
    )


async def test_https_to_a_plain_port_is_told_in_plain_words() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(response(400))
        await writer.drain()

    async with serving(plain) as port, scheduler() as mainspring:
        run = await called(mainspring, f"https://127.0.0.1:{port}/")
    assert str(run.error) == (
        f"WebhookFailed: no secure connection to 127.0.0.1:{port}: the port does not speak TLS"
        " (did you mean http://?)"
    )


async def test_a_cancelled_call_is_broken_off() -> None:
    async with endpoint() as end, scheduler() as mainspring:
        end.hold = asyncio.Event()
        await mainspring.add_job("call", webhook=end.url)
        run = await mainspring.trigger("call")
        await end.arrived.wait()
        assert await mainspring.cancel(run.id)
        run = await mainspring.wait(run.id, timeout=10)
    assert run.state is State.CANCELLED
    assert run.attempts[0].detail["request"]["method"] == "POST"


async def test_a_busy_host_holds_no_capacity_and_burns_no_attempts() -> None:
    """One call at a time to a slow host; a job of another host passes by those that wait."""
    limited = WebhookSettings(allow=["127.0.0.1"], per_host=1)
    async with endpoint() as slow, endpoint() as quick:
        slow.hold = asyncio.Event()
        async with scheduler(webhooks=limited, workers=2) as mainspring:
            await mainspring.add_job("slow", webhook=slow.url)
            await mainspring.add_job("quick", webhook=quick.url)
            runs = [await mainspring.trigger("slow") for _ in range(4)]
            await slow.arrived.wait()
            passed = await mainspring.trigger("quick")
            await mainspring.wait(passed.id, timeout=20)
            assert len(slow.requests) == 1
            slow.hold.set()
            ended = [await mainspring.wait(run.id, timeout=30) for run in runs]
    assert {run.state for run in ended} == {State.SUCCEEDED}
    assert {len(run.attempts) for run in ended} == {1}
    assert {run.attempt for run in ended} == {1}


async def test_a_host_that_does_not_answer_keeps_no_other_host_waiting() -> None:
    """Of whatever priority the jobs of the other host are, and however long its backlog is."""
    async with endpoint() as slow, endpoint() as quick:
        slow.hold = asyncio.Event()
        async with scheduler(workers=4) as mainspring:
            await mainspring.add_job("slow", webhook=slow.url)
            await mainspring.add_job("urgent", webhook=quick.url, priority=9)
            await mainspring.add_job("other", webhook=quick.url, priority=1)
            runs = await mainspring.enqueue_many("slow", [None] * 200)
            await slow.arrived.wait()
            for job in ("urgent", "other"):
                passed = await mainspring.trigger(job)
                await mainspring.wait(passed.id, timeout=20)
            assert len(slow.requests) == 3
            slow.hold.set()
            ended = [await mainspring.wait(run.id, timeout=30) for run in runs]
    assert {run.state for run in ended} == {State.SUCCEEDED}
    assert {run.attempt for run in ended} == {1}
    assert len(slow.requests) == 200


async def test_a_higher_priority_goes_first_at_a_busy_host() -> None:
    limited = WebhookSettings(allow=["127.0.0.1"], per_host=1)
    async with endpoint() as slow:
        slow.hold = asyncio.Event()
        async with scheduler(webhooks=limited, workers=2) as mainspring:
            await mainspring.add_job("low", webhook=f"{slow.url}/low")
            await mainspring.add_job("high", webhook=f"{slow.url}/high", priority=9)
            runs = await mainspring.enqueue_many("low", [None] * 30)
            await slow.arrived.wait()
            high = await mainspring.trigger("high")
            slow.hold.set()
            for run in [high, *runs]:
                await mainspring.wait(run.id, timeout=30)
    # One call was under way, and a run of low priority may have been claimed to follow it.
    assert any("high" in request.target for request in slow.requests[:4])


async def test_the_largest_of_everything_is_kept_within_bounds() -> None:
    """Whatever was said, how the call ended stands."""
    odd = '"\\\n' * 30_000
    answer = response(200, odd.encode(), *(f"X-{n}: {'é' * 3_000}" for n in range(90)))
    async with endpoint(lambda _: answer) as end, scheduler() as mainspring:
        webhook = {
            "url": end.url + "?" + "q" * 1_900,
            "headers": {f"X-{n}": '"' * 7_900 for n in range(4)},
            "body": odd,
        }
        run = await called(mainspring, webhook)
    assert run.state is State.SUCCEEDED
    detail = run.attempts[0].detail
    assert detail["request"]["truncated"] is detail["response"]["truncated"] is True
    assert len(detail["request"]["body"]) == len(detail["response"]["body"]) == 16_384
    assert len(json.dumps(detail["response"]["headers"], ensure_ascii=False)) < 10_000


async def test_the_signatures_time_is_the_stores() -> None:
    """A worker whose clock is an hour off is believed all the same."""

    class Wrong(SystemClock):
        def now(self) -> datetime:
            return super().now() + timedelta(hours=1)

    secret = new_signing_secret()
    async with endpoint() as end, scheduler(store=MemoryStore(), clock=Wrong()) as mainspring:
        webhook = {"url": end.url, "body": {"n": 1}, "signing_secret": secret}
        await called(mainspring, webhook)
    assert Verifier(secret).verify(end.requests[0].body, end.requests[0].headers) == {"n": 1}
