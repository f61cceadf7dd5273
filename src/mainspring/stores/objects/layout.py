"""The names and the encoding of the objects in a bucket.

    head                       small; compared and swapped by every write
    snapshot/SEQ-CLIENT-N      the live state after the write of that number
    delta/SEQ-CLIENT-N         one write that is too large for the head
    history/SEQ-CLIENT-N       a segment: many finished runs
    catalogue/SEQ-CLIENT-N     the list of segments
    periods/SEQ-CLIENT-N       the counts of a day

All but the head are written once under a name of their own, and never changed: they are *parts*.
A body is JSON, compressed with zlib where that pays.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from mainspring.errors import StoreDamaged
from mainspring.stores.codec import json_text

T = TypeVar("T")

HEAD = "head"

PART_KINDS = ("snapshot", "delta", "history", "catalogue", "periods")

SMALLEST_COMPRESSED = 2048
"""Bytes below which a body is kept as plain JSON."""

LEVEL = 1
"""Of zlib. Level 1 makes a head of 128 KiB in 2 ms, level 6 in 5 ms and 15 % smaller."""


PART_BYTES = 4 * 1024 * 1024
"""Bytes of JSON after which a snapshot or a delta goes on in another part. So no request is so
large that it cannot be done within its timeout."""


def part_name(kind: str, seq: int, client: str, number: int) -> str:
    """A name that no other part has: a client numbers what it writes."""
    return f"{kind}/{seq:012d}-{client}-{number}"


_PART_NAME = re.compile(rf"({'|'.join(PART_KINDS)})/[0-9]{{12,}}-[0-9a-f]{{12}}-[0-9]+")


def is_part_name(key: str) -> bool:
    """Whether `part_name` can have made this name. Everything else below the prefix belongs to
    somebody else, and is never deleted."""
    return _PART_NAME.fullmatch(key) is not None


def encode_body(value: Any) -> bytes:
    return _compress(_json(value))


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json_text(value).encode()


def _compress(body: bytes) -> bytes:
    return zlib.compress(body, LEVEL) if len(body) >= SMALLEST_COMPRESSED else body


def encode_tables(tables: Mapping[str, Mapping[str, Any]]) -> list[bytes]:
    """The bodies of the parts that together hold these tables. It encodes record by record: in a
    thread it then lets go of the interpreter's lock in between."""
    bodies: list[bytes] = []
    chunk: dict[str, list[bytes]] = {}
    size = 0
    for table, records in tables.items():
        for key, record in records.items():
            text = b"%b:%b" % (_json(key), _json(record))
            chunk.setdefault(table, []).append(text)
            size += len(text)
            if size >= PART_BYTES:
                bodies.append(_tables_body(chunk))
                chunk, size = {}, 0
    if chunk or not bodies:
        bodies.append(_tables_body(chunk))
    return bodies


def _tables_body(chunk: Mapping[str, list[bytes]]) -> bytes:
    tables = (b"%b:{%b}" % (_json(name), b",".join(texts)) for name, texts in chunk.items())
    return _compress(b'{"tables":{%b}}' % b",".join(tables))


def decode_body(key: str, data: bytes, kind: type[T]) -> T:
    """Raises `StoreDamaged` where it is nothing that a store has written."""
    try:
        return msgspec.json.decode(data if data[:1] == b"{" else zlib.decompress(data), type=kind)
    except (msgspec.MsgspecError, zlib.error, ValueError) as error:
        raise StoreDamaged(
            f"the object {key!r} cannot be read ({error}): it is not Mainspring's, or it is"
            " damaged. Restore it from a backup, or name another prefix in the URL"
        ) from error
