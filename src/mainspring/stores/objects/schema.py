"""What a store keeps in its bucket: the names of the objects, their encoding, and the head.

    head                       small; compared and swapped by every write
    snapshot/SEQ-CLIENT-N      the live state after the write of that number
    delta/SEQ-CLIENT-N         one write that is too large for the head
    history/SEQ-CLIENT-N       a segment: many finished runs
    catalogue/SEQ-CLIENT-N     the list of segments
    periods/SEQ-CLIENT-N       the counts of a day

All but the head are written once under a name of their own, and never changed: they are *parts*.
A body is JSON, compressed with zlib where that pays.

The head names a snapshot of the live state and lists the writes since then, each as a delta. A
client applies the deltas that it does not have yet. It loads the snapshot only if the list does not
reach back to what the client has.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from mainspring.core.model import replace
from mainspring.errors import StoreDamaged, StoreTooNew
from mainspring.stores.codec import json_text

T = TypeVar("T")

FORMAT = 1
"""What this version writes. It refuses a newer format, whose parts may mean something else."""

HEAD = "head"

PART_KINDS = ("snapshot", "delta", "history", "catalogue", "periods")

SMALLEST_COMPRESSED = 2048
"""Bytes below which a body is kept as plain JSON."""

LEVEL = 1
"""Of zlib. Level 1 makes a head of 128 KiB in 2 ms, level 6 in 5 ms and 15 % smaller."""

PART_BYTES = 4 * 1024 * 1024
"""Bytes of JSON after which a snapshot or a delta goes on in another part. So no request is so
large that it cannot be done within its timeout."""

MOST_CLIENTS = 256
"""Clients whose last commit the head remembers."""

ACTIVE_FOR = 10_000_000
"""Microseconds. A client that made two writes within them counts as active."""

BYTES_BEFORE_SNAPSHOT = 16 * 1024
"""Bytes of deltas before the snapshot that stay in the head. A client that is a little behind
applies them, and needs not load the snapshot."""


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


# -- the head


class Entry(Struct, frozen=True, omit_defaults=True):
    """One write. `delta` is JSON, which only clients read that lack it. If it is large, it is null
    here and in parts of its own."""

    seq: int
    delta: msgspec.Raw
    parts: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(bytes(self.delta)) + 16


class LastWrite(Struct, frozen=True, array_like=True):
    """The last write of a client. Its nonce tells the client that an unanswered write was done."""

    seq: int
    nonce: str
    at: int = 0
    """When it was made, in microseconds, by the storage's time or the machine's."""
    before: int = 0
    """When the client made the write before that; 0: it was its first."""


class Head(Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    id: str = ""
    """Of the store; made with it."""
    seq: int = 0
    """The number of the last write."""
    snapshot: tuple[str, ...] = ()
    """The parts that hold the state after write `snapshot_seq`; none: it was empty then."""
    snapshot_seq: int = 0
    entries: tuple[Entry, ...] = ()
    commits: dict[str, LastWrite] = field(default_factory=dict)
    """By client. The oldest are left out; all commits after `commits_since` are here."""
    commits_since: int = 0
    time: int = 0
    """The storage's time at the last write, in microseconds; 0 where it is a machine's clock."""
    collections: int = 0
    """How often garbage was collected. A part that was prepared before may be gone."""

    @property
    def tail(self) -> list[Entry]:
        """The writes after the snapshot."""
        return [entry for entry in self.entries if entry.seq > self.snapshot_seq]

    @property
    def tail_size(self) -> int:
        return sum(entry.size for entry in self.tail)

    def reaches(self, seq: int) -> bool:
        """Whether the entries lead on from the state after that write."""
        return seq <= self.seq and (seq == self.seq or self.entries[0].seq <= seq + 1)

    def descends_from(self, known: Head) -> bool:
        """Whether this head was written after the known one, in the same store. If not, a backup
        was restored, or the store was made anew.

        The client that made the last write of the known head tells: its last write is that one or
        a later one. In a store that was restored it is an older one. That client itself notices
        the same, and does not write again."""
        if self.seq < known.seq or self.id != known.id:
            return False
        for client, commit in known.commits.items():
            if commit.seq == known.seq:
                last = self.commits.get(client)
                if last is None:  # left out since
                    return self.commits_since >= known.seq
                return last.seq > known.seq or last == commit
        return True

    def parts(self) -> set[str]:
        """The parts that the head itself names."""
        return {*self.snapshot, *(name for entry in self.entries for name in entry.parts)}

    def active_writers(self) -> int:
        """How many clients write again and again. A script that made one write is not among them,
        nor a client that is idle or gone."""
        now = max((write.at for write in self.commits.values()), default=0)
        return sum(0 < write.before > now - ACTIVE_FOR for write in self.commits.values())

    def with_write(self, entry: Entry, client: str, nonce: str, time: int, at: int = 0) -> Head:
        """The head with one more write. `time` is the storage's, `at` the same by this client's
        estimate."""
        last = self.commits.get(client)
        commit = LastWrite(entry.seq, nonce, at, 0 if last is None else last.at)
        commits = {**self.commits, client: commit}
        since = self.commits_since
        if len(commits) > MOST_CLIENTS:
            oldest = min(commits, key=lambda name: commits[name].seq)
            since = max(since, commits.pop(oldest).seq)
        return replace(
            self,
            seq=entry.seq,
            entries=(*self.entries, entry),
            commits=commits,
            commits_since=since,
            time=max(self.time, time),
        )

    def with_snapshot(self, parts: tuple[str, ...], seq: int) -> Head:
        """The head with a newer snapshot: the entries that it makes superfluous are left out."""
        kept = [entry for entry in self.entries if entry.seq > seq]
        room = BYTES_BEFORE_SNAPSHOT
        for entry in reversed([entry for entry in self.entries if entry.seq <= seq]):
            room -= entry.size
            if room < 0 or entry.parts:
                break
            kept.insert(0, entry)
        return replace(self, snapshot=parts, snapshot_seq=seq, entries=tuple(kept))


def encode_head(head: Head) -> bytes:
    return encode_body(head)


class _Format(Struct):
    format: int


def decode_head(data: bytes) -> Head:
    """Raises `StoreTooNew` or `StoreDamaged`."""
    try:
        head = decode_body(HEAD, data, Head)
    except StoreDamaged:
        _refuse_newer(decode_body(HEAD, data, _Format).format)
        raise
    _refuse_newer(head.format)
    expected = [head.seq - at for at in range(len(head.entries))][::-1]
    missing = head.tail and head.tail[0].seq != head.snapshot_seq + 1
    if [entry.seq for entry in head.entries] != expected or missing:
        raise StoreDamaged(f"the object {HEAD!r} is damaged: writes are missing in it")
    if not head.tail and head.seq != head.snapshot_seq:
        raise StoreDamaged(f"the object {HEAD!r} is damaged: its last writes are missing")
    return head


def _refuse_newer(known: int) -> None:
    if known > FORMAT:
        raise StoreTooNew(
            f"a newer version of Mainspring wrote this store (format {known}; this version reads up"
            f" to {FORMAT}): upgrade this program"
        )
