"""Faults of the storage and of the network, permissions, forks and the storage's clock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta

import pytest

from mainspring.errors import InvalidInput, StoreError, StoreUnavailable
from mainspring.stores.objects import obstore_bucket
from mainspring.stores.objects.bucket import Bucket
from mainspring.stores.objects.obstore_errors import Failure, StorageErrors
from mainspring.stores.objects.store import make_bucket
from mainspring.stores.objects.url import Address
from tests.support.servers.proxy import Line, Proxy
from tests.support.servers.s3_stub import Fault, S3Stub
from tests.support.servers.seaweedfs import BUCKET, READER, WRITER, environment


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as stub:
        yield stub


async def open_stub(stub: S3Stub, options: str = "") -> Bucket:
    bucket = make_bucket(f"s3://some-bucket/jobs?endpoint={stub.url}{options}")
    await bucket.open()
    return bucket


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
async def test_an_endpoint_with_a_password_is_refused_without_repeating_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://me:SeCrEt@127.0.0.1:1")
    with pytest.raises(InvalidInput, match=name) as refused:
        await make_bucket("s3://some-bucket/jobs").open()
    assert "SeCrEt" not in str(refused.value)


async def test_keys_in_the_url_are_used_with_a_warning_that_names_a_better_way(
    stub: S3Stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    bucket = make_bucket(f"s3://AKIA:SeCrEt@some-bucket/jobs?endpoint={stub.url}")
    await bucket.open()
    await bucket.close()
    used = {
        headers["authorization"] for _, _, headers in stub.requests if "authorization" in headers
    }
    assert used
    assert all("Credential=AKIA/" in header for header in used)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "AWS_ACCESS_KEY_ID" in warning
    assert "SeCrEt" not in warning + bucket.location


def test_a_wrong_key_of_azure_is_told_in_one_line() -> None:
    words = "Server failed to authenticate the request.\nRequestId:7b28\nTime:2026-11-17"
    body = f"<Code>AuthorizationFailure</Code><Message>{words}</Message>"
    errors = StorageErrors(Address.of("az://container/jobs?account=me"))
    told = str(errors.translate(Failure.of(OSError(f"status code: 403 {body}")), "get"))
    assert "does not accept the credentials: set AZURE_STORAGE_ACCOUNT_KEY" in told
    assert "\n" not in told


async def test_a_key_without_its_secret_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        await make_bucket("s3://some-bucket/jobs?endpoint=http://127.0.0.1:1").open()


def test_errors_show_no_user_of_an_address() -> None:
    failure = Failure.of(
        OSError("Error performing GET http://me:SeCrEt@127.0.0.1:1/b/k?x=1 in 1ms")
    )
    assert failure.text == "Error performing GET http://127.0.0.1:1 in 1ms"


# Answers of the storage


@pytest.mark.parametrize("expected", [False, True], ids=["create", "change"])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "SlowDown"),
        (503, "ServiceUnavailable"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (502, ""),
        (504, ""),
        (400, "RequestTimeout"),
        (409, "OperationAborted"),
        (304, ""),
        (0, ""),
    ],
)
async def test_a_write_without_a_clear_answer_is_unknown_and_sent_once(
    stub: S3Stub, status: int, code: str, expected: bool
) -> None:
    bucket = await open_stub(stub)
    etag = await bucket.put("a", b"1", expected_etag=None) if expected else None
    stub.requests.clear()
    stub.fail("PUT", Fault(status, code, done=True))
    with pytest.raises(StoreUnavailable):
        await bucket.put("a", b"2", expected_etag=etag)
    assert [method for method, _, _ in stub.requests] == ["PUT"]
    assert stub.objects["jobs/a"] == b"2"  # it was done, although the client cannot know


@pytest.mark.parametrize(
    ("status", "code"),
    [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict"), (404, "NoSuchKey")],
)
async def test_a_write_whose_condition_failed_is_lost(stub: S3Stub, status: int, code: str) -> None:
    bucket = await open_stub(stub)
    etag = await bucket.put("a", b"1", expected_etag=None)
    stub.fail("PUT", Fault(status, code))
    assert await bucket.put("a", b"2", expected_etag=etag) is None


async def test_reads_lists_and_deletes_of_a_busy_storage_are_unavailable(stub: S3Stub) -> None:
    bucket = await open_stub(stub)
    stub.fail("GET", Fault(503, "SlowDown"), Fault(429, "SlowDown"))
    stub.fail("POST", Fault(503, "SlowDown"))
    with pytest.raises(StoreUnavailable, match="wants fewer requests"):
        await bucket.get("a")
    with pytest.raises(StoreUnavailable, match="wants fewer requests"):
        await bucket.list_objects("a")
    with pytest.raises(StoreUnavailable, match="wants fewer requests"):
        await bucket.delete(["a"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(403, "RequestTimeTooSkewed"), "clock of this machine is wrong"),
        (Fault(403, "SignatureDoesNotMatch"), "does not accept the credentials"),
        (Fault(400, "ExpiredToken"), "does not accept the credentials"),
        (Fault(403, "AccessDenied"), r"s3:PutObject on some-bucket/jobs/\*"),
        (Fault(404, "NoSuchBucket"), "aws s3 mb s3://some-bucket"),
        (Fault(301, "PermanentRedirect"), "another region"),
        (Fault(400, "EntityTooLarge"), "refused a request"),
    ],
)
async def test_what_does_not_go_away_says_what_to_do(
    stub: S3Stub, fault: Fault, message: str
) -> None:
    bucket = await open_stub(stub)
    stub.fail("PUT", fault)
    with pytest.raises(StoreError, match=message) as raised:
        await bucket.put("a", b"1", expected_etag=None)
    assert not isinstance(raised.value, StoreUnavailable)


async def test_errors_hold_no_secrets(stub: S3Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-token-secret")
    bucket = await open_stub(stub)
    for fault in (Fault(403, "AccessDenied"), Fault(500), Fault(0), Fault(400, "ExpiredToken")):
        stub.fail("PUT", fault)
        with pytest.raises(StoreError) as raised:
            await bucket.put("a", b"1", expected_etag=None)
        error: BaseException | None = raised.value
        assert error is not None
        assert error.__cause__ is None
        assert error.__suppress_context__
        for secret in (WRITER.secret, "session-token-secret", "Signature="):
            assert secret not in str(error)


# The network, in front of a real server


async def test_a_silent_network_ends_in_a_bounded_time(seaweedfs_url: str) -> None:
    port = int(seaweedfs_url.rpartition(":")[2])
    async with Proxy(port) as proxy:
        name = f"silent-{os.urandom(6).hex()}"
        bucket = make_bucket(f"s3://{BUCKET}/{name}?endpoint=http://{proxy.address}&timeout=1")
        await bucket.open()
        etag = await bucket.put("a", b"1", expected_etag=None)
        proxy.turn(Line.SILENT)
        calls = (
            bucket.get("a"),
            bucket.put("a", b"2", expected_etag=etag),
            bucket.delete(["b"]),
            bucket.list_objects("a"),
            bucket.read_clock(),
        )
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in found] == [StoreUnavailable] * len(calls)
        proxy.turn(Line.CUT)  # what was held back is dropped
        proxy.turn(Line.WELL)
        await bucket.close()


# Permissions, on a real server


async def test_a_reader_is_told_which_permission_is_missing(
    object_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(READER).items():
        monkeypatch.setenv(name, value)
    bucket = make_bucket(object_storage_url)
    with pytest.raises(StoreError, match=f"s3:PutObject on {BUCKET}/test-"):
        await bucket.open()


async def test_wrong_keys_are_told(
    object_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(StoreError, match="does not accept the credentials") as raised:
        await make_bucket(object_storage_url).open()
    assert "wrong-secret" not in str(raised.value)


async def test_a_bucket_that_does_not_exist_is_told(seaweedfs_url: str) -> None:
    bucket = make_bucket(f"s3://no-such-bucket/jobs?endpoint={seaweedfs_url}")
    with pytest.raises(StoreError, match="there is no bucket 'no-such-bucket'"):
        await bucket.open()


async def test_a_list_of_several_pages_is_complete(
    object_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore_bucket, "_KEYS_PER_REQUEST", 10)
    bucket = make_bucket(object_storage_url)
    await bucket.open()
    keys = {f"many/{n:03}" for n in range(25)}
    await asyncio.gather(*(bucket.put(key, b"x", expected_etag=None) for key in keys))
    assert {listed.key for listed in await bucket.list_objects("many")} == keys
    assert bucket.requests["list"] == 3
    await bucket.close()


# Forks

FORKED = """
import asyncio, os, sys, traceback
from mainspring.errors import StoreError
from mainspring.stores.objects.store import make_bucket

url = sys.argv[1]

async def main():
    bucket = make_bucket(url)
    await bucket.open()
    child = os.fork()
    if child == 0:
        answers = []
        for call in (lambda: bucket.get("a"), lambda: make_bucket(url).open()):
            try:
                call().send(None)
            except StoreError as error:
                answers.append(str(error))
        os.write(1, " | ".join(answers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    await bucket.close()

asyncio.run(main())
"""


def test_a_fork_gets_an_error_and_does_not_hang(object_storage_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), object_storage_url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    used, opened = done.stdout.split(" | ")
    assert "was opened before this process was forked" in used
    assert "in use in the process that this one was forked from" in opened


# The storage's clock


@pytest.mark.parametrize("offset", [0, -3600, 86_400])
async def test_the_clock_is_the_storages_and_its_error_is_bounded(
    stub: S3Stub, offset: int
) -> None:
    machine = stub.clock
    stub.clock = lambda: machine() + offset
    bucket = await open_stub(stub)
    first = await bucket.read_clock()
    assert first is not None
    true = bucket.clock.now() + timedelta(seconds=offset)
    passed = timedelta(seconds=bucket.clock.monotonic() - first.read_at)
    assert first.earliest + passed <= true <= first.latest + passed + timedelta(milliseconds=1)
    await bucket.close()


@pytest.mark.parametrize("headers", [{"Date": ""}, {"Age": "3"}, {"Date": "yesterday"}])
async def test_an_answer_without_a_date_of_its_own_is_no_reading(
    stub: S3Stub, headers: dict[str, str]
) -> None:
    bucket = await open_stub(stub)
    stub.headers = headers
    with pytest.raises(StoreUnavailable, match="date"):
        await bucket.read_clock()
    await bucket.close()
