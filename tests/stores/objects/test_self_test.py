"""`open` refuses storage that ignores conditions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from mainspring.core.clock import SystemClock
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.objects.bucket import Bucket
from mainspring.stores.objects.self_test import MARKER, VALID_FOR
from mainspring.stores.objects.store import make_bucket
from tests.support.servers.s3_stub import Conditions, Fault, S3Stub
from tests.support.servers.seaweedfs import environment


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as stub:
        yield stub


def bucket_of(stub: S3Stub) -> Bucket:
    return make_bucket(f"s3://some-bucket/jobs?endpoint={stub.url}")


async def opened(stub: S3Stub, *, create: bool = True) -> Bucket:
    bucket = bucket_of(stub)
    await bucket.open(create=create)
    await bucket.close()
    return bucket


async def test_storage_that_obeys_passes_and_keeps_only_the_marker(stub: S3Stub) -> None:
    bucket = await opened(stub)
    assert list(stub.objects) == [f"jobs/{MARKER}"]
    assert bucket.requests["put"] < 30


async def test_the_next_open_costs_one_read(stub: S3Stub) -> None:
    await opened(stub)
    assert dict((await opened(stub)).requests) == {"get": 1}


@pytest.mark.parametrize(
    ("conditions", "complaint"),
    [
        (Conditions.IGNORED, "object that does not exist"),
        (Conditions.ONLY_CREATE, "object that does not exist"),
        (
            Conditions.RACY,
            r"of 2 writers that created the same object at the same time, the storage answered 2",
        ),
    ],
)
async def test_storage_that_disobeys_is_refused_and_gets_no_marker(
    stub: S3Stub, conditions: Conditions, complaint: str
) -> None:
    stub.conditions = conditions
    for _ in range(2):
        with pytest.raises(StoreError, match=complaint) as raised:
            await opened(stub)
        assert not isinstance(raised.value, StoreUnavailable)
        assert "two workers would run the same job" in str(raised.value)
    assert stub.objects == {}


async def test_storage_behind_a_proxy_that_repeats_writes_is_accepted(stub: S3Stub) -> None:
    """Each write is done, and its repeat refused, because the condition no longer holds."""
    repeated = Fault(412, "PreconditionFailed", done=True)
    stub.fail("PUT", *[repeated] * 100)
    await opened(stub)
    assert list(stub.objects) == [f"jobs/{MARKER}"]


async def test_storage_that_refuses_a_write_without_reason_is_refused(stub: S3Stub) -> None:
    stub.fail("PUT", Fault(412, "PreconditionFailed"))
    with pytest.raises(StoreError, match="refused a write whose condition was true"):
        await opened(stub)


async def test_storage_that_has_no_conditions_is_refused(stub: S3Stub) -> None:
    stub.fail("PUT", Fault(501, "NotImplemented"))
    with pytest.raises(StoreError, match="has no conditional writes"):
        await opened(stub)


async def test_a_bucket_that_was_copied_to_another_server_is_tested_there(stub: S3Stub) -> None:
    await opened(stub)
    with S3Stub(Conditions.IGNORED) as other:
        other.objects.update(stub.objects)
        with pytest.raises(StoreError, match="cannot be used"):
            await opened(other)


async def test_a_marker_counts_for_a_day(stub: S3Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(stub)
    stub.conditions = Conditions.IGNORED  # somebody put another server in its place
    await opened(stub)
    later = SystemClock().now() + VALID_FOR + timedelta(minutes=1)
    monkeypatch.setattr(SystemClock, "now", lambda self: later)
    with pytest.raises(StoreError, match="cannot be used"):
        await opened(stub)


async def test_a_damaged_marker_is_replaced_after_a_test(stub: S3Stub) -> None:
    stub.objects[f"jobs/{MARKER}"] = b'{"test": 1, "endpo'
    await opened(stub)
    assert dict((await opened(stub)).requests) == {"get": 1}


async def test_a_store_that_was_never_tested_is_tested_before_it_is_used(stub: S3Stub) -> None:
    stub.objects["jobs/head"] = b"{}"
    stub.conditions = Conditions.IGNORED
    with pytest.raises(StoreError, match="cannot be used"):
        await opened(stub, create=False)


async def test_a_folder_with_other_objects_is_no_store(stub: S3Stub) -> None:
    stub.objects["jobs/thesis.tex"] = b"..."
    await opened(stub, create=False)
    assert list(stub.objects) == ["jobs/thesis.tex"]


async def test_storage_that_cannot_be_reached_is_an_error_at_once() -> None:
    bucket = make_bucket("s3://some-bucket/jobs?endpoint=http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match="refused the connection") as raised:
        await bucket.open()
    assert bucket.requests["get"] == 1
    assert "s3://some-bucket/jobs" in str(raised.value)
    assert "Check the endpoint of the URL" in str(raised.value)
