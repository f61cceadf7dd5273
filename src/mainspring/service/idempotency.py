"""`Idempotency-Key`: a request that is sent again creates nothing new.

A note is written before the job, and holds the id that the job will have. So a crash between the
two is harmless: the next request with the key uses the same id, and finds the job or creates it.
Two requests at once use the same id, and the store accepts one job. A trigger uses a dedupe key
instead.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mainspring.core import note_kinds
from mainspring.core.model import Job, Note
from mainspring.errors import Conflict, InvalidInput, JobNotFound, MainspringError, NotFound
from mainspring.scheduler.client import Client
from mainspring.service.problems import ApiError

KEPT_FOR = timedelta(hours=24)
LONGEST_KEY = 255
REFUSALS = (ApiError, InvalidInput, NotFound, Conflict)
"""Errors that refuse the request: nothing was created."""


class IdempotentRequest:
    """A request with an Idempotency-Key. `answer` is set if an earlier one created the job or
    run."""

    def __init__(self, client: Client, note: Note) -> None:
        self._client = client
        self._note = note

    @classmethod
    async def begin(
        cls, client: Client, caller: str, key: str, body: bytes, job_id: str
    ) -> IdempotentRequest:
        if not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
            raise ApiError(
                400,
                f"an Idempotency-Key is 1 to {LONGEST_KEY} printable characters, not {len(key)}"
                + ("" if key.isprintable() else " with unprintable ones"),
            )
        name = hashlib.sha256(f"{caller}\0{key}".encode(errors="replace")).hexdigest()
        body_hash = hashlib.sha256(body).hexdigest()
        now = await client.now()
        note = Note(
            kind=note_kinds.IDEMPOTENCY,
            name=name,
            value={"body": body_hash, "job": job_id, "begun": now, "answer": None},
            expires_at=now + KEPT_FOR,
        )
        version = await client.put_note(note)
        stored = await client.note(note_kinds.IDEMPOTENCY, name)
        if stored is None:  # it expired in between: the key counts as new
            return cls(client, note)
        if stored.value is None:
            raise ApiError(
                409,
                "the record of this Idempotency-Key cannot be read, so it is unknown whether the"
                " earlier request was done: look for its job or run, then use a new key",
            )
        if version is None and stored.value["body"] != body_hash:
            raise ApiError(
                422, "this Idempotency-Key was used with another body: use a new key for this one"
            )
        return cls(client, stored)

    @property
    def job_id(self) -> str:
        return str(self._note.value["job"])

    @property
    def dedupe(self) -> dict[str, Any]:
        """The options that let one run be made for this key, for as long as the key is kept."""
        name, body = self._note.name, self._note.value["body"]
        return {"dedupe_key": f"{note_kinds.IDEMPOTENCY}:{name}:{body}", "dedupe_for": KEPT_FOR}

    @property
    def answer(self) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = self._note.value["answer"]
        return answer

    async def finish(self, answer: dict[str, Any]) -> None:
        """Keep the answer, without secrets. If that fails, the job exists all the same."""
        value = {**self._note.value, "answer": answer}
        await self._client.put_note(
            Note(
                kind=note_kinds.IDEMPOTENCY,
                name=self._note.name,
                value=value,
                version=self._note.version,
                expires_at=self._note.expires_at,
            )
        )

    async def recover(
        self, error: MainspringError | ApiError, is_created_by: Callable[[Job], bool]
    ) -> Job:
        """The job that an earlier request with this key created, whose answer was lost.

        Called when creating the job failed. A job counts if it was created after the key was first
        used and `is_created_by` this request's body. Otherwise a refusal frees the key and is
        raised again. Any other error is raised again and keeps the key: the job may exist."""
        if not isinstance(error, REFUSALS):
            raise error
        with contextlib.suppress(JobNotFound):
            job = await self._client.get_job(self.job_id)
            begun: datetime = self._note.value["begun"]
            if job.created_at >= begun and is_created_by(job):
                return job
        await self.free()
        raise error

    async def free(self) -> None:
        """Let another request use the key: this one was refused."""
        await self._client.remove_note(note_kinds.IDEMPOTENCY, self._note.name)
