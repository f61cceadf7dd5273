"""The conformance suite on object storage: on buckets in memory, on a directory, and on S3.

On S3 time is moved by a clock that takes the place of the server's, so that the suite need not
sleep.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from mainspring.stores.codec import JOB, RUN, Table
from mainspring.stores.objects import self_test
from mainspring.stores.objects.bucket import Blob
from mainspring.stores.objects.directory_bucket import DirectoryBucket
from mainspring.stores.objects.schema import HEAD, Entry, decode_head, encode_head
from mainspring.stores.objects.state import note_key
from mainspring.stores.objects.store import ObjectStore
from mainspring.stores.objects.url import Address
from mainspring.stores.protocol import Store
from mainspring.testing import StoreConformance
from mainspring.testing.conformance.base import Repair
from tests.support.objects.given_time_bucket import GivenTimeBucket
from tests.support.objects.memory_bucket import MemoryBucket, Objects


class OnBucket(StoreConformance):
    async def write(self, store: Store, table: str, key: str, patch: dict[str, Any]) -> None:
        """Change a record behind the store's back, by a write of its own.

        The store's snapshots are written in the background, so the head may change between the
        read and the write. Then this writes again, as any other writer would.
        """
        assert isinstance(store, ObjectStore)
        delta = msgspec.Raw(msgspec.json.encode({table: {key: patch}}))
        while True:
            stored = await store.bucket.get(HEAD)
            assert isinstance(stored, Blob)
            head = decode_head(stored.data)
            head = head.with_write(Entry(head.seq + 1, delta), "tester", str(head.seq), 0)
            if await store.bucket.put(HEAD, encode_head(head), expected_etag=stored.etag):
                return

    async def record(self, store: Store, table: str, key: str) -> dict[str, Any]:
        assert isinstance(store, ObjectStore)
        await store.group_commit.refresh()
        record = store.group_commit.state.get(table, key)
        assert record is not None
        return record

    async def damage_run(self, store: Store, run_id: str, part: str) -> Repair:
        return await self._damage(store, "runs", run_id, part)

    async def damage_job(self, store: Store, job_id: str, part: str) -> Repair:
        return await self._damage(
            store, "jobs", job_id, "handler" if part == "definition" else part
        )

    async def damage_note(self, store: Store, kind: str, name: str) -> None:
        await self._damage(store, "notes", note_key(kind, name), "value")

    async def damage_every_field(
        self, store: Store, kind: str, record_id: str
    ) -> AsyncIterator[str]:
        table: Table[Any] = RUN if kind == "run" else JOB
        for name in table.fields:
            if name != "id":  # it is the key of the record, too
                repair = await self._damage(store, f"{kind}s", record_id, name)
                yield name
                await repair()

    async def _damage(self, store: Store, table: str, key: str, part: str) -> Repair:
        """Put an object in place of a field's value, which no field of a record has."""
        damaged = {"damaged": True}
        whole = (await self.record(store, table, key)).get(part)
        await self.write(store, table, key, {part: damaged})

        async def repair() -> None:
            if (await self.record(store, table, key)).get(part) == damaged:
                await self.write(store, table, key, {part: whole})

        return repair


class OnMemoryBucket(OnBucket):
    reads_clock = True
    limits: Mapping[str, Any] = {}

    def make_store(self) -> Store:
        self.objects: Objects = getattr(self, "objects", None) or Objects(self.clock)
        return ObjectStore(MemoryBucket(self.objects), **self.limits)


@pytest.mark.thorough
class TestMemoryBucket(OnMemoryBucket):
    pass


class TestSmallParts(OnMemoryBucket):
    """With limits so small that every other write makes a snapshot, and every other end a
    segment."""

    limits: Mapping[str, Any] = {"tail_bytes": 300, "most_finished": 2}


class TestDirectory(OnBucket):
    reads_clock = True

    def make_store(self) -> Store:
        return ObjectStore(DirectoryBucket(self.place / "bucket", self.clock))


class OnServer(OnBucket):
    """On the server at `url`."""

    reads_clock = True
    url: str

    @pytest.fixture(autouse=True)
    def _trust_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def trust(*arguments: object, **options: object) -> None: ...

        # The self-test would be half of all requests.
        monkeypatch.setattr(self_test, "check_conditions", trust)

    def make_store(self) -> Store:
        return ObjectStore(GivenTimeBucket(Address.of(self.url), self.clock))


@pytest.mark.thorough
class TestSeaweedFs(OnServer):
    @pytest.fixture(autouse=True)
    def _server(self, object_storage_url: str) -> None:
        self.url = object_storage_url
