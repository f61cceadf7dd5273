"""Messages of real failures, at real servers, once over all processes and through `kill -9`."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from standardwebhooks import Webhook

from mainspring import Client, RunContext, Scheduler
from mainspring.contrib import notify
from mainspring.contrib.notify import notifier
from mainspring.contrib.notify.notifier import Notifier, _log_failure
from mainspring.contrib.notify.targets import Url
from mainspring.core.clock import to_us
from tests.support.mail_server import mail_server
from tests.support.webhook_endpoint import Endpoint, endpoint, response, self_signed

SECRET = "whsec_" + "c2VjcmV0" * 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "POLL", 0.2)
    monkeypatch.setattr(notifier, "AFTER_EVENT", 0.05)
    monkeypatch.setattr(notifier, "FIRST_WAIT", timedelta(seconds=0.1))


def url_target(server: Endpoint, **more: Any) -> dict[str, dict[str, Any]]:
    return {"team": {"url": server.url, **more}}


def texts(server: Endpoint) -> list[str]:
    return [json.loads(request.body)["text"] for request in server.requests]


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def run_flaky(scheduler: Scheduler, *outcomes: bool) -> None:
    for fails in outcomes:
        run = await scheduler.enqueue("flaky", {"fails": fails})
        await scheduler.wait(run.id, 30)


def with_flaky(store: Any = "memory://", **options: Any) -> Scheduler:
    scheduler = Scheduler(store, **options)

    @scheduler.job(id="flaky")
    async def flaky(fails: bool) -> None:
        if fails:
            raise ValueError("no <!channel> & more")

    return scheduler


async def test_a_failure_and_the_recovery_arrive_at_a_url_signed() -> None:
    scheduler = with_flaky()
    async with endpoint() as server:
        headers = {"Authorization": "Bearer t0ken"}
        notify.install(scheduler, url_target(server, secret=SECRET, headers=headers))
        async with scheduler:
            await run_flaky(scheduler, False, True)
            await until(lambda: len(server.requests) == 1)
            await run_flaky(scheduler, False)
            await until(lambda: len(server.requests) == 2)
    failed, recovered = texts(server)
    assert failed.startswith("flaky: 1 run failed; the last was ")
    assert failed.endswith("ValueError: no <!channel> & more")
    assert recovered == "flaky: has recovered: its last run succeeded"
    for request in server.requests:
        assert request.headers["authorization"] == "Bearer t0ken"
        assert Webhook(SECRET).verify(request.body, request.headers)


async def test_slack_gets_a_text_that_pings_nobody() -> None:
    scheduler = with_flaky()
    async with endpoint() as server:
        notify.install(scheduler, {"team": {"slack": server.url}})
        async with scheduler:
            await run_flaky(scheduler, True)
            await until(lambda: server.requests)
    text = json.loads(server.requests[0].body)["text"]
    assert text.startswith("*Mainspring: flaky*\nflaky: 1 run failed")
    assert text.endswith("no &lt;!channel&gt; &amp; more")


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_a_mail_goes_out_encrypted_with_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, security: str
) -> None:
    tls, certificate = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    scheduler = with_flaky()
    async with mail_server(tls, wrapped=security == "tls", password="s3cret") as mail:
        target = {
            **{"email": ["ops@example.org", "b@example.org"], "from": "jobs@example.org"},
            **{"host": "localhost", "port": mail.port, "security": security},
            **{"user": "jobs", "password": "s3cret"},
        }
        notify.install(scheduler, {"ops": target})
        async with scheduler:
            await run_flaky(scheduler, True)
            await until(lambda: mail.mails)
    [sent] = mail.mails
    assert (sent["Subject"], sent["To"]) == ("Mainspring: flaky", "ops@example.org, b@example.org")
    assert sent["From"] == "jobs@example.org"
    assert sent.get_content().startswith("flaky: 1 run failed; the last was ")
    assert mail.logins == ["jobs"]


async def test_a_server_whose_certificate_is_not_trusted_gets_no_mail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls, _ = self_signed(tmp_path)
    scheduler = with_flaky()
    async with mail_server(tls, password="s3cret") as mail:
        target = {"email": "ops@example.org", "from": "a@example.org", "host": "localhost"}
        login = {"user": "jobs", "password": "s3cret"}
        notify.install(scheduler, {"ops": {**target, **login, "port": mail.port}})
        async with scheduler:
            await run_flaky(scheduler, True)
            await until(lambda: "the target ops fails" in caplog.text)
    assert (mail.mails, mail.logins) == ([], [])


async def test_a_failing_target_is_tried_again_and_disturbs_no_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its log says why, without the secret in its URL; the other target gets its message."""
    answers = [response(500), response(302, b"", "Location: /elsewhere"), b"no HTTP\r\n\r\n"]
    scheduler = with_flaky()
    async with (
        endpoint(lambda request: answers.pop(0) if answers else response()) as bad,
        endpoint() as good,
    ):
        targets = {"bad": {"slack": f"{bad.url}/s3cret"}, "good": {"url": good.url}}
        notify.install(scheduler, targets)
        async with scheduler:
            await run_flaky(scheduler, True)
            await until(lambda: len(good.requests) == 1)
            await run_flaky(scheduler, False, False)
            await until(lambda: len(bad.requests) == 4)
            assert (await scheduler.health()).status == "healthy"
    assert caplog.text.count("the target bad fails, and is tried again") == 3
    assert "HTTP Error 500" in caplog.text
    assert "s3cret" not in caplog.text
    assert len(good.requests) <= 2


async def test_a_target_that_never_answers_is_given_up_and_delays_no_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifier, "LONGEST_SEND", 0.2)
    scheduler = with_flaky()
    async with endpoint() as server:
        server.hold = asyncio.Event()
        notify.install(scheduler, url_target(server))
        async with scheduler:
            await run_flaky(scheduler, True)
            await until(lambda: "no answer within 0.2 s" in caplog.text)
            await run_flaky(scheduler, False)
            await asyncio.sleep(1)
        assert len(server.requests) == 1  # no second try while the first may still be accepted
        server.hold.set()


async def test_a_target_that_never_answers_delays_no_other() -> None:
    scheduler = with_flaky()
    async with endpoint() as bad, endpoint() as good:
        bad.hold = asyncio.Event()
        targets = {"bad": {"url": bad.url}, "good": {"url": good.url}}
        notify.install(scheduler, targets)
        async with scheduler:
            await run_flaky(scheduler, True)
            await until(lambda: bad.requests and good.requests)
            await run_flaky(scheduler, False)
            await until(lambda: len(good.requests) == 2)
            assert len(bad.requests) == 1
            bad.hold.set()


async def test_a_stop_waits_until_the_message_is_sent_and_noted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = with_flaky(url)
    async with endpoint() as server:
        server.hold = asyncio.Event()
        notify.install(scheduler, url_target(server))
        await scheduler.start()
        await run_flaky(scheduler, True)
        await until(lambda: server.requests)
        stop = asyncio.ensure_future(scheduler.stop())
        await asyncio.sleep(0.3)
        server.hold.set()
        await stop
    async with Client(url) as client:
        note = await client.note(notifier.KIND, "team")
    assert note is not None
    assert (note.value["sent"], note.value.get("until")) == (1, None)


async def test_the_same_words_at_another_time_have_another_id() -> None:
    scheduler = with_flaky()
    async with endpoint() as server:
        notify.install(scheduler, url_target(server), on=["recovery"])
        async with scheduler:
            for count in (1, 2):
                await run_flaky(scheduler, True)
                await told_failing(scheduler)
                await run_flaky(scheduler, False)
                await until(lambda count=count: len(server.requests) == count)
    first, second = server.requests
    assert first.body == second.body
    assert first.headers["webhook-id"] != second.headers["webhook-id"]


async def told_failing(scheduler: Scheduler) -> None:
    async with asyncio.timeout(30):
        while "failing" not in str(await scheduler.note(notifier.KIND, "team")):
            await asyncio.sleep(0.05)


async def test_a_mail_that_was_taken_is_sent_once_whatever_the_server_says_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = with_flaky()
    async with mail_server() as mail:
        mail.refused, mail.farewell = "b@example.org", "421 gone"
        addresses = {"email": ["a@example.org", "b@example.org"], "from": "jobs@example.org"}
        server = {"host": "127.0.0.1", "port": mail.port, "security": "none"}
        notify.install(scheduler, {"ops": {**addresses, **server}})
        async with scheduler:
            await run_flaky(scheduler, True)
            await until(lambda: mail.mails)
            await asyncio.sleep(0.5)
    assert len(mail.mails) == 1
    assert "the mail server refused 1 of the recipients" in caplog.text
    assert "fails" not in caplog.text


def test_the_log_hides_secrets_in_each_form_and_garbles_no_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Url(url="http://a/b", headers={"A": "pass\\word", "B": "r"})
    for error in (ValueError("pass\\word"), ValueError(repr("pass\\word"))):
        _log_failure("team", target, error, timedelta(seconds=1))
    assert "word" not in caplog.text
    assert "ValueError: ********" in caplog.text


async def test_missed_slots_are_found_behind_many_other_skipped_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, now = Scheduler("memory://"), datetime.now(UTC)

    async def list_runs(cursor: str | None, **_: Any) -> Any:
        last = cursor == "3"
        run = SimpleNamespace(job_id="tick", created_at=now, result={"count": 7})
        run.reason = "misfire" if last else "overlap"
        return SimpleNamespace(items=[run], cursor=None if last else str(int(cursor or 0) + 1))

    monkeypatch.setattr(scheduler, "list_runs", list_runs)
    settings = notify.read_settings({"targets": {"team": {"url": "http://a"}}})
    gaps = await Notifier(scheduler, settings, "team")._read_gaps(now)
    assert gaps == {"tick": [(to_us(now), 7)]}


async def test_missed_slots_and_an_open_breaker_are_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    first = Scheduler(url)
    async with endpoint() as server:

        def jobs(scheduler: Scheduler) -> None:
            @scheduler.job("1s", misfire={"kind": "skip", "grace": "1s"})
            async def tick() -> None: ...

            @scheduler.job(breaker={"failures": 1, "reset": "1h"})
            async def broken(ctx: RunContext) -> None:
                raise ValueError("down")

            notify.install(scheduler, url_target(server), on=["missed", "breaker"])

        jobs(first)
        async with first:
            await until(lambda: True)
            async with asyncio.timeout(30):
                while await first.note(notifier.KIND, "team") is None:
                    await asyncio.sleep(0.05)
        await asyncio.sleep(4)
        second = Scheduler(url)
        jobs(second)
        async with second:
            await until(lambda: "slot" in "".join(texts(server)))
            await second.enqueue("broken")
            await until(lambda: "breaker" in "".join(texts(server)))
    told = "\n".join(texts(server))
    assert "tick: no process fired " in told
    assert "broken: its circuit breaker is open" in told
    assert "failed" not in told


async def test_many_jobs_that_fail_at_once_make_one_message() -> None:
    scheduler = Scheduler("memory://")

    async def fail() -> None:
        raise ValueError("database down")

    for number in range(30):
        scheduler.job(id=f"job-{number:02}")(fail)
    async with endpoint() as server:
        notify.install(scheduler, url_target(server))
        async with scheduler:
            runs = [await scheduler.enqueue(f"job-{n:02}") for n in range(30)]
            for run in runs:
                await scheduler.wait(run.id, 30)
            document: dict[str, Any] = {}

            def all_told() -> bool:
                for request in server.requests:
                    document.update(json.loads(request.body)["jobs"])
                return len(document) == 30

            await until(all_told)
    assert len(server.requests) <= 3
    longest = max(texts(server), key=len)
    assert len(longest.splitlines()) <= notifier.MOST_JOBS + 1


async def test_what_was_before_a_target_was_added_is_no_news(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with with_flaky(url) as scheduler:
        await run_flaky(scheduler, True, True)
    await asyncio.sleep(0.01)
    async with endpoint() as server:
        scheduler = with_flaky(url)
        notify.install(scheduler, url_target(server))
        async with scheduler:
            await run_flaky(scheduler, False, True)
            await until(lambda: server.requests)
    assert "1 run failed" in texts(server)[0]


WORKER = """
import asyncio, sys
from mainspring import Scheduler
from mainspring.contrib.notify import notifier

notifier.POLL, notifier.HELD = 0.3, notifier.timedelta(seconds=2)
scheduler = Scheduler("sqlite:///jobs.db", jobs="mainspring.toml")

@scheduler.job(id="flaky")
async def flaky(fails: bool) -> None:
    if fails:
        raise ValueError("no")

scheduler.run()
"""


@contextmanager
def workers(folder: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    (folder / "worker.py").write_text(WORKER)
    started = [subprocess.Popen([sys.executable, "worker.py"], cwd=folder) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_two_processes_send_each_message_once(tmp_path: Path) -> None:
    async with endpoint() as server:
        write_file(tmp_path, server.url)
        with workers(tmp_path, 2):
            async with Client(f"sqlite:///{tmp_path}/jobs.db") as client:
                await ready(client, 2)
                for _ in range(3):
                    run = await client.enqueue("flaky", {"fails": True})
                    await client.wait(run.id, 60)
                    await until(lambda: len(server.requests) % 2 == 1)
                    run = await client.enqueue("flaky", {"fails": False})
                    await client.wait(run.id, 60)
                    await until(lambda: len(server.requests) % 2 == 0)
                await asyncio.sleep(2)
    assert [("recovered" in text) for text in texts(server)] == [False, True] * 3
    assert len({request.headers["webhook-id"] for request in server.requests}) == 6


async def test_a_message_survives_the_death_of_the_process_that_sends_it(tmp_path: Path) -> None:
    """The target has it and does not answer; the process is killed. Another one sends it again,
    with the same id."""
    async with endpoint() as server:
        server.hold = asyncio.Event()
        write_file(tmp_path, server.url)
        with workers(tmp_path, 1) as [doomed]:
            async with Client(f"sqlite:///{tmp_path}/jobs.db") as client:
                await ready(client, 1)
                run = await client.enqueue("flaky", {"fails": True})
                await client.wait(run.id, 60)
                await until(lambda: server.requests)
                doomed.send_signal(signal.SIGKILL)
                server.hold.set()
                with workers(tmp_path, 2):
                    await until(lambda: len(server.requests) == 2)
                    await asyncio.sleep(3)
    assert len(server.requests) == 2
    first, second = server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


def write_file(folder: Path, url: str) -> None:
    (folder / "mainspring.toml").write_text(
        f'[notify]\nthrottle = 0\n[notify.targets.team]\nurl = "{url}"\n'
    )


async def ready(client: Client, count: int) -> None:
    async with asyncio.timeout(60):
        while (
            len(await client.list_workers()) < count
            or await client.note(notifier.KIND, "team") is None
        ):
            await asyncio.sleep(0.1)
