"""Reads, writes and caches parts: objects of a store that are written once and never changed."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.objects.bucket import Blob, Bucket, Retries
from mainspring.stores.objects.schema import decode_body, encode_body, encode_tables, part_name

MOST_KEPT = 64
"""Decoded parts that a client keeps. A segment of 1,000 runs takes about 2 MB."""

AT_ONCE = 8
"""Parts that are read or written at the same time."""

LARGE_BODY = 256 * 1024
"""Bytes from which a body is encoded or decoded in a thread: zlib takes some milliseconds."""


class PartsNotLoaded(Exception):
    """An operation looked at parts that this client does not have: load them and try again."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        super().__init__(", ".join(self.names))


class PartMissing(Exception):
    """A part is not there. Another client has replaced it meanwhile, or it is lost."""


class PartCache:
    def __init__(self, bucket: Bucket, client: str, retries: Retries) -> None:
        self._bucket = bucket
        self._client = client
        self._retries = retries
        self._written = 0
        self._known: OrderedDict[str, Any] = OrderedDict()
        self.pinned: dict[str, Any] = {}
        """What was loaded for the operation that is evaluated now."""

    def get(self, name: str) -> Any:
        """A part that was loaded; raises `PartsNotLoaded` where it was not."""
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name]
        if name in self.pinned:
            return self.pinned[name]
        raise PartsNotLoaded([name])

    def has(self, name: str) -> bool:
        return name in self._known or name in self.pinned

    async def load(self, names: Iterable[str]) -> dict[str, Any]:
        """Read parts, and keep those that are used last. Raises `PartMissing`."""
        wanted = list(dict.fromkeys(names))
        loaded = {name: self._known[name] for name in wanted if name in self._known}
        for name, value in (await self.read([n for n in wanted if n not in loaded])).items():
            loaded[name] = value
            self._keep(name, value)
        return loaded

    async def read(self, names: Sequence[str]) -> dict[str, Any]:
        """Read parts, several at once, without keeping them. Raises `PartMissing`."""
        bodies: dict[str, Any] = {}
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            values = await asyncio.gather(*map(self._read, some))
            bodies.update(zip(some, values, strict=True))
        return bodies

    async def _read(self, name: str) -> Any:
        blob = await self._retries.repeat(lambda: self._bucket.get(name))
        if not isinstance(blob, Blob):
            raise PartMissing(name)
        if len(blob.data) < LARGE_BODY:
            return decode_body(name, blob.data, dict[str, Any])
        return await asyncio.to_thread(decode_body, name, blob.data, dict[str, Any])

    async def write(self, kind: str, seq: int, value: Any) -> str:
        """Write a new part, and give its name. After a failure it is written under another name:
        whatever became of the first one, nothing names it."""
        name = await self._write(kind, seq, await asyncio.to_thread(encode_body, value))
        self._keep(name, value)
        return name

    async def write_tables(
        self, kind: str, seq: int, tables: Mapping[str, Mapping[str, Any]], size: int
    ) -> tuple[str, ...]:
        """Write tables of records to as many new parts as they need, and give their names. `size`:
        how many bytes they have, about. After a failure nothing of them is left."""
        if size < LARGE_BODY:
            bodies = encode_tables(tables)
        else:
            bodies = await asyncio.to_thread(encode_tables, tables)
        names: list[str] = []
        for start in range(0, len(bodies), AT_ONCE):
            writes = [self._write(kind, seq, body) for body in bodies[start : start + AT_ONCE]]
            done = await asyncio.gather(*writes, return_exceptions=True)
            names += [result for result in done if isinstance(result, str)]
            if problems := [result for result in done if isinstance(result, BaseException)]:
                with suppress(StoreError):
                    await self._bucket.delete(names)
                raise problems[0]
        return tuple(names)

    async def _write(self, kind: str, seq: int, body: bytes) -> str:
        async def put() -> str:
            self._written += 1
            name = part_name(kind, seq, self._client, self._written)
            if await self._bucket.put(name, body, expected_etag=None) is None:
                raise StoreUnavailable(f"the object {name!r} is there already")
            return name

        return await self._retries.repeat(put)

    def _keep(self, name: str, value: Any) -> None:
        self._known[name] = value
        self._known.move_to_end(name)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)


def new_client() -> str:
    """A name that no other client has."""
    return secrets.token_hex(6)
