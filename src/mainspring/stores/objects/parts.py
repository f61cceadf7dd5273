"""Parts: objects that are written once and never changed. A client keeps those it used last."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from mainspring.errors import StoreUnavailable
from mainspring.stores.objects.bucket import Blob, Bucket
from mainspring.stores.objects.layout import decode_body, encode_body, part_name

__all__ = ["PartGone", "Parts", "PartsNeeded", "new_client"]

MOST_KEPT = 64
"""Decoded parts that a client keeps. A segment of 1,000 runs takes about 2 MB."""

AT_ONCE = 8


class PartsNeeded(Exception):
    """An operation looked at parts that this client does not have: load them and try again."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        super().__init__(", ".join(self.names))


class PartGone(Exception):
    """A part is not there. Another client has replaced it meanwhile, or it is lost."""


class Parts:
    def __init__(self, bucket: Bucket, client: str) -> None:
        self._bucket = bucket
        self._client = client
        self._written = 0
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._pinned: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """A part that was loaded; raises `PartsNeeded` where it was not."""
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name]
        if name in self._pinned:
            return self._pinned[name]
        raise PartsNeeded([name])

    def has(self, name: str) -> bool:
        return name in self._known or name in self._pinned

    def unpin(self) -> None:
        """Let go of what was loaded for one operation, but for the parts that were used last."""
        self._pinned.clear()

    async def load(self, names: Iterable[str]) -> None:
        """Read parts, and keep them at least until `unpin`. Raises `PartGone`."""
        missing = [name for name in dict.fromkeys(names) if not self.has(name)]
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            for name, value in zip(some, await asyncio.gather(*map(self.read, some)), strict=True):
                self._pinned[name] = value
                self._keep(name, value)

    async def read(self, name: str) -> Any:
        """Read a part without keeping it."""
        found = await self._bucket.get(name)
        if not isinstance(found, Blob):
            raise PartGone(name)
        return decode_body(name, found.data, dict[str, Any])

    async def write(self, kind: str, seq: int, value: Any, *, keep: bool = True) -> str:
        """Write a new part, and give its name. After a failure it is written under another name:
        whatever became of the first one, nothing names it."""
        body = encode_body(value)
        for _ in range(3):
            self._written += 1
            name = part_name(kind, seq, self._client, self._written)
            try:
                done = await self._bucket.put(name, body, expected_etag=None)
            except StoreUnavailable as error:
                problem = error
                continue
            if done is not None:
                if keep:
                    self._keep(name, value)
                return name
            problem = StoreUnavailable(f"the object {name!r} is there already")
        raise problem

    def _keep(self, name: str, value: Any) -> None:
        self._known[name] = value
        self._known.move_to_end(name)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)


def new_client() -> str:
    """A name that no other client has."""
    return secrets.token_hex(6)
