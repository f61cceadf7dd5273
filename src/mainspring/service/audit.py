"""The audit log: which key changed what, when. The store keeps an entry of each change.

Entries are written after the answer, so no request waits for them; a process that is killed at that
moment loses what it has not written yet. They are notes that expire, newest first by name.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import datetime, timedelta

from msgspec import Struct, structs

from mainspring.core import note_kinds
from mainspring.core.clock import EPOCH, to_us
from mainspring.core.model import Note, Page
from mainspring.core.plurals import plural
from mainspring.errors import MainspringError
from mainspring.scheduler.client import Client

log = logging.getLogger("mainspring.service")

RETENTION = timedelta(days=90)
MOST_WAITING = 10_000
"""Entries that may wait for a store that is away."""

LONGEST_DETAIL = 500

_LAST = 2**63 - 1


class AuditEntry(Struct, frozen=True, kw_only=True):
    """A change that was done. `key_id` and `key_name` are None where no key was needed,
    `created_id` where the request created nothing that it did not name in its path, `detail` where
    the path says it all."""

    at: datetime = EPOCH
    """When it was written; the log sets it."""
    key_id: str | None
    key_name: str | None
    address: str | None
    method: str
    path: str
    status: int
    created_id: str | None = None
    detail: str | None = None


class AuditLog:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: list[AuditEntry] = []
        self._writing: asyncio.Task[None] | None = None
        self._dropped = 0

    def record(self, entry: AuditEntry) -> None:
        """Write an entry soon."""
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        self._waiting.append(entry)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    async def flush(self) -> None:
        """Wait until all entries are written, or lost because the store is away."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                now = await self._client.now()
                await asyncio.gather(*(self._client.put_note(_note(now, entry)) for entry in batch))
            except MainspringError as error:
                log.error("the audit log lost %s: %s", _entries(len(batch)), error)
            if self._dropped:
                log.error("the audit log lost %s: too many wait", _entries(self._dropped))
                self._dropped = 0

    async def list(self, limit: int = 50, cursor: str | None = None) -> Page[AuditEntry]:
        """Entries, newest first, without those that cannot be read."""
        page = await self._client.list_notes(note_kinds.AUDIT, limit=limit, cursor=cursor)
        entries = [entry for note in page.items if (entry := _read(note)) is not None]
        return Page(entries, page.cursor)


def _entries(count: int) -> str:
    return plural(count, "entry", "entries")


def _read(note: Note) -> AuditEntry | None:
    try:
        return AuditEntry(**note.value)
    except TypeError:
        log.warning("the entry %s of the audit log cannot be read", note.name)
        return None


def _note(now: datetime, entry: AuditEntry) -> Note:
    """The name sorts newer entries first."""
    name = f"{_LAST - to_us(now):016x}-{secrets.token_hex(4)}"
    value = structs.asdict(entry) | {
        "at": now,
        "path": entry.path[:500],
        "detail": entry.detail and entry.detail[:LONGEST_DETAIL],
    }
    return Note(kind=note_kinds.AUDIT, name=name, value=value, expires_at=now + RETENTION)
