"""Proves that a bucket obeys conditions, before anything depends on it.

Some servers that speak S3 ignore `If-Match` and `If-None-Match`, or let two writers win that come
at the same moment. On such a server two workers would run the same job. So `open` tries it with a
few small objects, and leaves a marker:

    PREFIX/conditions                {"test": 1, "endpoint": "…", "passed_at": "…"}
    PREFIX/conditions-test/NONCE…    the objects of a test; deleted at its end

The marker spares other clients the test for a day. It counts only at the endpoint where the test
was passed: a bucket that was copied to another server is tested there.

A part of the test that the storage refuses for now, or does not answer, is done again with other
objects. Objects of a test that was cut off are deleted by `maintain`, by their age.

A test cannot prove that a server never lets two writers win. It makes two writers race on the
same object, several times, for both kinds of conditions.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from mainspring.errors import StoreError, StoreUnavailable, StoreUnreachable, StoreUnsuitable
from mainspring.stores.objects.bucket import RETRY_FOR, UNCHANGED, Blob, Bucket, Retries
from mainspring.stores.objects.schema import HEAD

VERSION: Final = 1
MARKER: Final = "conditions"
FOLDER: Final = "conditions-test"
VALID_FOR: Final = timedelta(days=1)
WRITERS: Final = 2
"""More would wait for each other: SeaweedFS needs seconds for a race of eight."""
ROUNDS: Final = 4
_TEST_OBJECT: Final = re.compile(rf"{FOLDER}/[0-9a-f]{{16}}-[0-9]+")


class Marker(msgspec.Struct, frozen=True):
    """What the last test found."""

    test: int
    endpoint: str
    passed_at: datetime


class ConditionViolated(Exception):
    """What the storage did wrong."""


def is_test_object(key: str) -> bool:
    """Whether a test can have made an object of this name."""
    return _TEST_OBJECT.fullmatch(key) is not None


async def check_conditions(
    bucket: Bucket, endpoint: str, *, create: bool = True, retry_for: float = RETRY_FOR
) -> None:
    """Raise `StoreError` if the storage does not obey conditions.

    Done once a day for each store and endpoint. With `create=False` nothing is written where there
    is no store. Requests are repeated for `retry_for` seconds; storage that cannot be reached at
    all is an error at once.
    """
    retries = Retries(bucket.clock, random.Random(), retry_for)
    answer = await retries.repeat(lambda: bucket.get(MARKER), unless=StoreUnreachable)
    blob = answer if isinstance(answer, Blob) else None
    if blob is not None and _is_valid(blob.data, endpoint, bucket.clock.now()):
        return
    if not create and await retries.repeat(lambda: bucket.get(HEAD)) is None:
        return
    try:
        await test(bucket, retries)
    except (StoreUnsuitable, StoreUnavailable):
        raise
    except StoreError:
        # An account that may only read cannot test, and depends on no condition.
        if blob is not None and _is_valid(blob.data, endpoint):
            return
        raise
    marker = msgspec.json.encode(Marker(VERSION, endpoint, bucket.clock.now()))
    etag = None if blob is None else blob.etag
    # Another client may have written it meanwhile: then it has passed the same test.
    await retries.repeat(lambda: bucket.put(MARKER, marker, expected_etag=etag))


async def test(bucket: Bucket, retries: Retries) -> None:
    """The test itself. Each part of it has objects of its own."""
    nonce = secrets.token_hex(8)
    keys: list[str] = []

    def new_key() -> str:
        keys.append(f"{FOLDER}/{nonce}-{len(keys)}")
        return keys[-1]

    parts: list[Callable[[], Awaitable[None]]] = [
        lambda: _test_one_writer(bucket, new_key(), new_key()),
        *([lambda: _test_race(bucket, new_key())] * ROUNDS),
    ]
    try:
        for part in parts:
            await retries.repeat(part)
    except ConditionViolated as error:
        with suppress(StoreError):  # what it did wrong matters more than what is left
            await bucket.delete(keys)
        raise StoreUnsuitable(
            f"{bucket.location} cannot be used: {error}. Without conditional writes two workers"
            " would run the same job. Use storage that has them (Amazon S3, Google Cloud Storage,"
            " Azure, Cloudflare R2, MinIO, SeaweedFS 4 and others), or another store"
        ) from None
    except StoreError:
        with suppress(StoreError):
            await bucket.delete(keys)
        raise
    await retries.repeat(lambda: bucket.delete(keys))


def _is_valid(data: bytes, endpoint: str, now: datetime | None = None) -> bool:
    """Whether the test was passed at this endpoint. With `now`: also within the last day."""
    try:
        marker = msgspec.json.decode(data, type=Marker)
    except msgspec.MsgspecError:
        return False
    known = (marker.test, marker.endpoint) == (VERSION, endpoint)
    return known and (now is None or abs(now - marker.passed_at) < VALID_FOR)


async def _test_one_writer(bucket: Bucket, key: str, absent: str) -> None:
    first, second = b"first " + key.encode(), b"second " + key.encode()
    etag = await _put_expecting_success(bucket, key, first, None)
    if await bucket.put(absent, second, expected_etag=etag) is not None:
        raise ConditionViolated("it accepted a change of an object that does not exist")
    await _pause(bucket)
    if await bucket.put(key, second, expected_etag=None) is not None:
        raise ConditionViolated(
            "it accepted a second object of the same name (it ignores If-None-Match)"
        )
    await _check_content(bucket, key, first, etag)
    if await bucket.get(key, etag) is not UNCHANGED:
        raise ConditionViolated(
            "it sends objects that have not changed (it ignores If-None-Match of GET)"
        )
    await _pause(bucket)
    changed = await _put_expecting_success(bucket, key, second, etag)
    if changed == etag:
        raise ConditionViolated("an object with other content has the same entity tag (ETag)")
    await _pause(bucket)
    if await bucket.put(key, first, expected_etag=etag) is not None:
        raise ConditionViolated("it accepted a change of an older version (it ignores If-Match)")
    await _check_content(bucket, key, second, changed)


async def _test_race(bucket: Bucket, key: str) -> None:
    etag = None
    for kind in ("created", "changed"):
        contents = [f"{kind} by {n} {key}".encode() for n in range(WRITERS)]
        await _pause(bucket)
        tags = await asyncio.gather(
            *(bucket.put(key, content, expected_etag=etag) for content in contents)
        )
        winners = [n for n, tag in enumerate(tags) if tag is not None]
        if len(winners) > 1:
            raise ConditionViolated(
                f"of {WRITERS} writers that {kind} the same object at the same time, the storage"
                f" answered {len(winners)} that they succeeded"
            )
        if not winners:
            return  # each hindered the others, which is allowed
        [winner] = winners
        etag = tags[winner]
        await _check_content(bucket, key, contents[winner], etag)


async def _put_expecting_success(
    bucket: Bucket, key: str, data: bytes, expected: str | None
) -> str:
    etag = await bucket.put(key, data, expected_etag=expected)
    if etag is not None:
        return etag
    # A proxy may have sent the request twice: the first was done, and the second refused.
    stored = await bucket.get(key)
    if not isinstance(stored, Blob) or stored.data != data:
        raise ConditionViolated("it refused a write whose condition was true")
    return stored.etag


async def _check_content(bucket: Bucket, key: str, data: bytes, etag: str | None) -> None:
    stored = await bucket.get(key)
    if not isinstance(stored, Blob) or stored.data != data:
        raise ConditionViolated("a read did not give what was written last")
    if stored.etag != etag:
        raise ConditionViolated(
            "a read and a write gave different entity tags (ETag) of one version"
        )


async def _pause(bucket: Bucket) -> None:
    if bucket.write_interval:
        await asyncio.sleep(bucket.write_interval)
