"""The values that all layers share: jobs, runs, attempts, notes, and pages of them.

All are frozen: a change is a new value. All times are aware and in UTC. Runs and their parts
are left out of the cyclic garbage collector (`gc=False`): they hold plain data without cycles, and
the collector's passes over thousands of them took a tenth of a worker's time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import reprlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace as replace  # re-exported: how a job or run is changed

from mainspring.core.clock import EPOCH, to_us
from mainspring.core.policy import Origin, Policy
from mainspring.core.schedules import Schedule
from mainspring.errors import InvalidInput

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")  # Python 3.13 has defaults; here only type checkers need it

MAX_ATTEMPTS_KEPT = 20
_JOB_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")


class State(StrEnum):
    """The state of a run. `due` is not a state: a due run is pending, with `run_at` in the past."""

    WAITING = "waiting"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


LIVE = frozenset({State.WAITING, State.PENDING, State.RUNNING})
FINISHED = frozenset(State) - LIVE


class Source(StrEnum):
    """What made a run. Only `SCHEDULE` runs are subject to overlap."""

    SCHEDULE = "schedule"
    ENQUEUE = "enqueue"
    TRIGGER = "trigger"
    START = "start"
    AFTER = "after"
    BACKFILL = "backfill"


class Outcome(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    RELEASED = "released"


class Owner(StrEnum):
    """Who may edit a job: the code that decorates it, the file that lists it, or callers of the
    API."""

    CODE = "code"
    API = "api"
    FILE = "file"


class Progress(Struct, frozen=True, gc=False):
    """How far a handler has come, as it said by `ctx.progress(done, total, message)`."""

    done: float
    total: float | None = None
    message: str = ""


class Attempt(Struct, frozen=True, gc=False):
    """The record of one attempt of a run.

    `detail` is what the handler set as `ctx.detail`: for webhooks the request and the response.
    `cpu_seconds` is the CPU time that the handler used in its thread or its process, or None where
    it is not known. `peak_memory` is in bytes, and known of handlers with a process of their own.
    """

    number: int
    worker: str
    started_at: datetime
    finished_at: datetime
    outcome: Outcome
    error: str | None = None
    traceback: str | None = None
    log: tuple[str, ...] = ()
    detail: Any = None
    cpu_seconds: float | None = None
    peak_memory: int | None = None


class Run(Struct, Generic[R], frozen=True, kw_only=True, gc=False):
    """One occurrence of a job: tried up to `retries + 1` times, ended once.

    `Run[R]` has the result of a handler that returns `R`; `Run` alone is `Run[Any]`.
    """

    id: str
    job_id: str
    handler: str
    created_at: datetime
    scheduled_at: datetime
    run_at: datetime
    source: Source = Source.ENQUEUE
    queue: str = "default"
    priority: int = 5
    payload: Any = None
    state: State = State.PENDING
    attempt: int = 0
    failures: int = 0
    lapses: int = 0
    token: int = 0
    began: bool | None = None
    """Whether the begin of the handler is on record. A claim sets False. Only for runs that must
    not begin unrecorded (see `transitions.records_begin`) does False mean that the handler did not
    begin. None: not running, or claimed by a version that kept no such record."""
    start_by: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False
    result: R = None  # type: ignore[assignment]  # before the end, and of a run that fails
    error: str | None = None
    reason: str | None = None
    progress: Progress | None = None
    dedupe_key: str | None = None
    dedupe_until: datetime | None = None
    after: tuple[str, ...] = ()
    after_any: bool = False
    attempts: tuple[Attempt, ...] = ()
    trace: str | None = None
    """The W3C trace context of the code that enqueued it: `traceparent`, and after a space
    `tracestate` (see core/trace_context.py). None: there was none."""
    duplicate: bool = False
    unreadable: str | None = None
    """Why this version cannot read the record (it is damaged, or a newer version wrote it). Such
    a run is set aside: it never starts, and what could not be read is empty here."""
    brief: bool = False
    """Whether it was read for a list: without `payload`, `result` and `attempts`."""

    def __repr__(self) -> str:
        outcome = self.error or self.reason
        if self.state is State.SUCCEEDED and self.result is not None:
            outcome = reprlib.repr(self.result)
        told = f" ({outcome})" if outcome else ""
        return f"<Run {self.id} of {self.job_id}: {self.state}{told}>"

    @property
    def duration(self) -> float | None:
        """Seconds of the last attempt, once the run has ended. None also for a run that was read
        for a list and ended between two attempts: a list does not say how long the last one took.
        """
        started_at, finished_at = self.started_at, self.finished_at
        if started_at is None or finished_at is None:
            return None
        if self.attempts:
            started_at, finished_at = self.attempts[-1].started_at, self.attempts[-1].finished_at
        elif self.brief and (self.worker is None or self.state is State.SKIPPED):
            return None
        # The wall clock may have been set back meanwhile.
        return max(0.0, (finished_at - started_at).total_seconds())

    @property
    def finished(self) -> bool:
        """Whether the run has ended: succeeded, failed, cancelled or skipped."""
        return self.state in FINISHED

    def is_held(self, now: datetime) -> bool:
        """Whether a worker holds the run: it is running, and its lease has not lapsed."""
        if self.state is not State.RUNNING or self.lease_until is None:
            return False
        return self.lease_until > now


class Sealed(Struct, frozen=True):
    """An encrypted secret, with the id of its key (see webhooks/vault.py)."""

    key: str
    box: str

    def __repr__(self) -> str:
        return "********"


class SigningSecret(Struct, frozen=True):
    """A secret that signs a webhook's requests. `until`: when a replaced one expires."""

    sealed: Sealed
    until: datetime | None = None


class Webhook(Struct, frozen=True, kw_only=True):
    """The request that a webhook job sends, and which responses count as success.

    `mainspring.webhooks.definition` makes it from what a user writes. Codes are ranges, both ends
    included; `retry_on=None` retries every answer outside `success`.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, Sealed] = field(default_factory=dict)
    body: Any = None
    success: tuple[tuple[int, int], ...] = ((200, 299),)
    retry_on: tuple[tuple[int, int], ...] | None = None
    signing: tuple[SigningSecret, ...] = ()


class Job(Struct, frozen=True, kw_only=True):
    """A stored definition: handler, payload, schedule and policy; of a webhook, its request.

    `version` grows with every write and is what `put_jobs` compares. It never repeats, even if the
    job is removed and another one is made under its id (see `next_version`). `unreadable` says
    why this program cannot read the record, as for a run: such a job fires nothing and none of its
    runs start until it can be read again.
    """

    id: str
    handler: str
    created_at: datetime
    updated_at: datetime
    payload: Any = None
    schedule: Schedule | None = None
    policy: Policy = field(default_factory=Policy)
    enabled: bool = True
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    version: int = 0
    owner: Owner = Owner.API
    file: str | None = None
    """The name of the file that lists the job, if a file does."""
    description: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: Webhook | None = None
    origins: Mapping[str, str] | None = None
    """By policy option: `job` where the job itself gives it, `defaults` where it comes from the
    defaults of the scheduler that stored the job. What is missing here is built in. None: a version
    stored the job that did not keep this."""
    stated_enabled: bool | None = None
    """The value of `enabled` that the job's definition states, as it was last applied. None: it
    states none, and `enabled` is the operator's alone."""
    unreadable: str | None = None

    def __repr__(self) -> str:
        told = [self._when()] + ([] if self.enabled else ["paused"])
        return f"<Job {self.id}: {', '.join(told)}>"

    def _when(self) -> str:
        if self.schedule is not None:
            return self.schedule.describe()
        return f"after {', '.join(self.policy.after)}" if self.policy.after else "when enqueued"

    def policy_origins(self) -> dict[str, str] | None:
        """Where each value of the policy comes from (an `Origin`); None where that is not known."""
        if self.origins is None:
            return None
        names = (part.name for part in dataclasses.fields(Policy))
        return {name: self.origins.get(name, str(Origin.BUILT_IN)) for name in names}

    def next_version(self) -> int:
        """The version after the next write: one higher.

        A new job starts at its creation in microseconds. If versions started at 1, a job that is
        removed and made again would soon have a version of the earlier one, and a process that
        stalled after it read that one could still fire its slots or write its definition back.
        """
        return self.version + 1 if self.version else max(1, to_us(self.created_at))

    def not_before(self, now: datetime) -> datetime:
        """The moment after which the next slot is searched. A clock that was set back must not
        repeat slots that have fired."""
        return now if self.last_run_at is None else max(now, self.last_run_at)

    def upcoming(self, count: int, now: datetime) -> list[datetime]:
        """The next slots of an enabled job. The first is the one that is stored: it may be a slot
        of the schedule that the job had before its interval was made longer."""
        if self.schedule is None or self.next_run_at is None:
            return []
        first = self.next_run_at
        if self.schedule.after_end:
            return [first][:count]
        return [first, *self.schedule.upcoming(count - 1, max(first, self.not_before(now)))]

    def definition(self) -> Job:
        """The job without the fields that firing changes: equal until somebody edits it."""
        return replace(self, next_run_at=None, last_run_at=None, updated_at=EPOCH, version=0)


class Page(Struct, Generic[T], frozen=True):
    """Some items, and the cursor that fetches the next ones (None at the end). `total`: how many
    match in all, where that was asked."""

    items: list[T]
    cursor: str | None = None
    total: int | None = None


class Note(Struct, frozen=True, kw_only=True):
    """A small named value kept beside jobs and runs: an API key, an idempotency record.

    `version` is what `put_notes` compares. Past `expires_at`, by the store's clock, it is gone.
    """

    kind: str
    name: str
    value: Any = None
    version: int = 0
    expires_at: datetime | None = None


def check_job_id(job_id: object, what: str = "a job id", field: str = "id") -> str:
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        raise InvalidInput(
            f"is 1 to 200 letters, digits and . _ : - characters, not {job_id!r}",
            subject=what,
            field=field,
            given=job_id,
        )
    if job_id in (".", ".."):
        raise InvalidInput(
            f"cannot be {job_id!r}: in an address it means a folder, so no client could reach the"
            " job",
            subject=what,
            field=field,
            given=job_id,
        )
    return job_id


def check_key(text: str, what: str, field: str | None = None) -> str:
    """Refuse text that cannot be a key: SQLite's JSON ends a text at a NUL, and no store can encode
    a lone surrogate."""
    if "\0" in text:
        raise InvalidInput(
            f"{what} cannot contain the character NUL, as {text!r} does", field=field, given=text
        )
    if not text.isascii() and text != text.encode(errors="replace").decode():
        raise InvalidInput(
            f"{what} cannot contain invalid Unicode, as {text!r} does", field=field, given=text
        )
    return text


def slot_run_id(job_id: str, slot: datetime) -> str:
    """The id of a slot's run. It is made from job and slot, so a slot never has two runs (no job id
    contains `@`)."""
    slot = slot.astimezone(UTC)  # a wall-clock hour may occur twice, its instant only once
    text = slot.strftime("%Y%m%dT%H%M%S")
    if slot.microsecond:
        text += f".{slot.microsecond:06d}".rstrip("0")
    return f"{job_id}@{text}Z"


def slot_of(text: str) -> datetime | None:
    """The slot in the id of its run: the reverse of `slot_run_id`. None: it is no time."""
    for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S.%fZ"):
        with contextlib.suppress(ValueError):
            return datetime.strptime(text, form).replace(tzinfo=UTC)
    return None


def new_run_id(now: datetime, rng: random.Random) -> str:
    """An id for an enqueued run: not guessable; ordered by time, which keeps indexes compact."""
    return f"{to_us(now) // 1000:012x}{rng.getrandbits(80):020x}"


# Runs of an `each_node` job. Whatever makes a run makes one for each worker that is alive. Its
# handler is `@` and the worker's id, and its id ends with the same. Each worker claims its own node
# handler beside the handlers of its program, so no other takes the run. Apart from that it is a run
# like any other.

NO_NODE = "no live worker can run it"
"""The reason of the skipped run that is made where an `each_node` job has no node to run on."""


def node_handler(worker: str) -> str:
    """The handler of the node runs of a worker. No handler of a program begins with `@`."""
    return f"@{worker}"


def is_node_handler(handler: str) -> bool:
    return handler.startswith("@")


def node_of(run: Run) -> str | None:
    """The worker that a node run is for; None for any other run."""
    return run.handler[1:] if is_node_handler(run.handler) else None


def without_node(run: Run) -> str:
    """The id that the runs of all nodes begin with; that of any other run."""
    return run.id.removesuffix(run.handler) if is_node_handler(run.handler) else run.id


def on_each_node(run: Run, nodes: Iterable[str], now: datetime) -> tuple[Run, ...]:
    """The run, once for each of these workers. Ids and dedupe keys are made from the worker's id
    too, so each worker has the run at most once. Without a worker it is skipped."""
    handlers = [node_handler(node) for node in nodes]
    if not handlers:
        return (replace(run, state=State.SKIPPED, finished_at=now, reason=NO_NODE),)
    return tuple(
        replace(
            run,
            id=f"{run.id}{handler}",
            handler=handler,
            dedupe_key=None if run.dedupe_key is None else f"{run.dedupe_key}{handler}",
        )
        for handler in handlers
    )
