"""What every bucket promises, on a real S3 server and on a directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.errors import StoreError
from mainspring.stores.objects.bucket import UNCHANGED, Blob, Bucket
from mainspring.stores.objects.store import make_bucket

WRITERS = 32


@pytest.fixture(params=["directory", "seaweedfs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return f"file://{tmp_path}/bucket"
    found: str = request.getfixturevalue("object_storage_url")
    return found


@pytest.fixture
async def bucket(url: str) -> AsyncIterator[Bucket]:
    bucket = make_bucket(url)
    await bucket.open()
    yield bucket
    await bucket.close()


async def content(bucket: Bucket, key: str) -> bytes | None:
    found = await bucket.get(key)
    assert found is not UNCHANGED
    assert not isinstance(found, type(UNCHANGED))
    return None if found is None else found.data


async def test_an_object_is_read_as_it_was_written(bucket: Bucket) -> None:
    for data in (b"", b"text", bytes(range(256)) * 5_000):
        key = f"a/{len(data)}"
        etag = await bucket.put(key, data, expected_etag=None)
        assert etag is not None
        assert await bucket.get(key) == Blob(data, etag)


async def test_a_read_says_that_nothing_changed(bucket: Bucket) -> None:
    etag = await bucket.put("a", b"1", expected_etag=None)
    assert await bucket.get("a", etag) is UNCHANGED
    changed = await bucket.put("a", b"2", expected_etag=etag)
    assert changed is not None
    assert await bucket.get("a", etag) == Blob(b"2", changed)
    assert await bucket.get("a", changed) is UNCHANGED
    assert await bucket.get("nothing", etag) is None


async def test_a_change_of_an_older_version_is_refused(bucket: Bucket) -> None:
    first = await bucket.put("a", b"1", expected_etag=None)
    assert first is not None
    second = await bucket.put("a", b"2", expected_etag=first)
    assert second not in (None, first)
    assert await bucket.put("a", b"3", expected_etag=first) is None
    assert await content(bucket, "a") == b"2"


async def test_a_change_of_an_object_that_is_gone_is_refused(bucket: Bucket) -> None:
    etag = await bucket.put("a", b"1", expected_etag=None)
    await bucket.delete(["a"])
    assert await bucket.put("a", b"2", expected_etag=etag) is None
    assert await bucket.get("a") is None
    assert await bucket.put("a", b"2", expected_etag=None) is not None


async def test_deleting_takes_objects_that_are_gone_for_deleted(bucket: Bucket) -> None:
    keys = [f"many/{n:04}" for n in range(40)]
    await asyncio.gather(*(bucket.put(key, b"x", expected_etag=None) for key in keys))
    await bucket.delete([*keys[:30], "never", "never/below"])
    await bucket.delete([])
    assert sorted(listed.key for listed in await bucket.list_objects("many")) == keys[30:]
    assert await bucket.get(keys[0]) is None


async def test_a_list_has_what_is_in_a_folder_and_below_it(bucket: Bucket) -> None:
    inside = {*(f"h/{n:03}" for n in range(25)), "h/sub/1"}
    await asyncio.gather(
        *(bucket.put(key, b"abc", expected_etag=None) for key in [*inside, "h.x", "ha/1", "i/h/1"])
    )
    assert {listed.key for listed in await bucket.list_objects("h")} == inside
    assert len(await bucket.list_objects("h", 10)) == 10
    assert await bucket.list_objects("nothing") == []
    everything = {listed.key for listed in await bucket.list_objects("")}
    own = {key for key in everything if not key.startswith("conditions")}
    assert own == {*inside, "h.x", "ha/1", "i/h/1"}


async def test_of_many_writers_exactly_one_wins_each_round(bucket: Bucket, url: str) -> None:
    # SeaweedFS needs ten seconds for a round, and more on a busy machine.
    patient = f"{url}&timeout=120s" if "?" in url else url
    buckets = [make_bucket(patient) for _ in range(4)]
    for each in buckets:
        await each.open()
    etag: str | None = None
    for round in range(2 if bucket.kind == "s3" else 6):
        contents = [f"round {round}, writer {n}".encode() for n in range(WRITERS)]
        answers = await asyncio.gather(
            *(
                buckets[n % len(buckets)].put("head", data, expected_etag=etag)
                for n, data in enumerate(contents)
            )
        )
        [winner] = [n for n, answer in enumerate(answers) if answer is not None]
        etag = answers[winner]
        found = await bucket.get("head")
        assert found == Blob(contents[winner], str(etag))
    for each in buckets:
        await each.close()


async def test_readers_see_whole_objects_while_others_write(bucket: Bucket) -> None:
    contents = [bytes([65 + n]) * 300_000 for n in range(8)]
    etag = await bucket.put("a", contents[0], expected_etag=None)
    done = asyncio.Event()

    async def read() -> int:
        reads = 0
        while not done.is_set():
            found = await content(bucket, "a")
            assert found in contents
            reads += 1
        return reads

    readers = [asyncio.create_task(read()) for _ in range(3)]
    for data in contents[1:]:
        etag = await bucket.put("a", data, expected_etag=etag)
        assert etag is not None
    done.set()
    assert all(await asyncio.gather(*readers))


async def test_a_closed_bucket_says_so_and_may_be_opened_again(url: str) -> None:
    bucket = make_bucket(url)
    with pytest.raises(StoreError, match="not open"):
        await bucket.get("a")
    await bucket.open()
    await bucket.put("a", b"1", expected_etag=None)
    await bucket.close()
    await bucket.close()
    with pytest.raises(StoreError, match="not open"):
        await bucket.put("a", b"2", expected_etag=None)
    await bucket.open()
    assert await content(bucket, "a") == b"1"
    await bucket.close()
