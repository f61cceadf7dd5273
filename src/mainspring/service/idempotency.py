"""`Idempotency-Key`: a request that is sent again makes nothing new.

The note is written before the job, and says which id the job will have. So a crash between the
two is harmless: whoever sends the key again goes on with the same id, and finds the job or makes
it. Two who send it at once meet at that id. Where a run is made, they meet at its dedupe key.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mainspring.core.model import Job, Note
from mainspring.errors import Conflict, InvalidInput, JobNotFound, MainspringError, NotFound
from mainspring.scheduler import Scheduler
from mainspring.service.problems import Problem

__all__ = ["REFUSALS", "Once"]

KIND = "idempotency"
HELD = timedelta(hours=24)
LONGEST = 255
REFUSALS = (Problem, InvalidInput, NotFound, Conflict)
"""What is said of the request itself: nothing was made of it."""


class Once:
    """One key in use. `answer` is there where the job, or the run, was made before."""

    def __init__(self, scheduler: Scheduler, note: Note) -> None:
        self._scheduler = scheduler
        self._note = note

    @classmethod
    async def begin(
        cls, scheduler: Scheduler, caller: str, key: str, body: bytes, job_id: str
    ) -> Once:
        if not 1 <= len(key) <= LONGEST or not key.isprintable():
            raise Problem(400, f"an Idempotency-Key is 1 to {LONGEST} printable characters")
        name = hashlib.sha256(f"{caller}\0{key}".encode(errors="replace")).hexdigest()
        print_of_body = hashlib.sha256(body).hexdigest()
        now = await scheduler.now()
        note = Note(
            kind=KIND,
            name=name,
            value={"body": print_of_body, "job": job_id, "begun": now, "answer": None},
            expires_at=now + HELD,
        )
        version = await scheduler.put_note(note)
        found = await scheduler.note(KIND, name)
        if found is None:  # it expired between the two: as if it were new
            return cls(scheduler, note)
        if version is None and found.value["body"] != print_of_body:
            raise Problem(
                422, "this Idempotency-Key was used with another body: take a new key for it"
            )
        return cls(scheduler, found)

    @property
    def job_id(self) -> str:
        return str(self._note.value["job"])

    @property
    def dedupe(self) -> dict[str, Any]:
        """What holds the run that is made under this key, for as long as the key is known."""
        name, body = self._note.name, self._note.value["body"]
        return {"dedupe_key": f"{KIND}:{name}:{body}", "dedupe_for": HELD}

    @property
    def answer(self) -> dict[str, Any] | None:
        answer: dict[str, Any] | None = self._note.value["answer"]
        return answer

    async def finish(self, answer: dict[str, Any]) -> None:
        """Keep the answer (without secrets). Should that fail, the job is there all the same."""
        value = {**self._note.value, "answer": answer}
        await self._scheduler.put_note(
            Note(
                kind=KIND,
                name=self._note.name,
                value=value,
                version=self._note.version,
                expires_at=self._note.expires_at,
            )
        )

    async def found_instead(
        self, error: MainspringError | Problem, asked_for: Callable[[Job], bool]
    ) -> Job:
        """The job could not be made now. If it is there since this key began, and is what was
        `asked_for`, it is this key's own: made by a request before, whose answer was lost. If not
        (somebody else took the id), a refusal frees the key; whatever else went wrong, the job
        may be there nevertheless, or yet come."""
        if not isinstance(error, REFUSALS):
            raise error
        with contextlib.suppress(JobNotFound):
            job = await self._scheduler.get_job(self.job_id)
            begun: datetime = self._note.value["begun"]
            if job.created_at >= begun and asked_for(job):
                return job
        await self.free()
        raise error

    async def free(self) -> None:
        """The request was refused: the key may be used for another."""
        await self._scheduler.remove_note(KIND, self._note.name)
