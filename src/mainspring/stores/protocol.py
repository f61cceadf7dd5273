"""The Store protocol: everything that the engine and the scheduler call on a store.

A store has these 18 members, and no other member is called. Rules for every store, checked by
`mainspring.testing.StoreConformance`:

1. The store's clock decides what is due, which lease has lapsed and which note has expired.
2. Every change is fenced: it is applied completely if the run still has every value that it
   expects, and otherwise not at all.
3. A slot fires exactly once; limits are exact, over all clients, at any moment.
4. Hints wake, polling guarantees.
5. Batch is the only shape: one item is a list of one. An empty list does nothing.
6. Reads (`info`, `now`, `find`, `counts`, `jobs`, `notes`) never write.
7. A record that cannot be read (damaged, or written by a newer version) never affects others. It is
   returned with `unreadable` set and with every field that can be read; `claim` never returns it.
   A change writes the fields that it sets and no others, so what cannot be read stays.

A method either does what it says, and what it wrote is durable when it returns, or it raises:

- `StoreUnavailable`: the store cannot be reached now. The call may have been done or not. Every
  call may be sent again. `add` and `commit` then return the answer that was lost; the docstrings
  of the other members say what a repeat returns. A repeated read reads again.
- another `StoreError`: the same, but it does not go away by itself (a full disk, a lost
  permission).
- `InvalidInput`: an argument cannot be stored, and nothing of the call was done.

If a caller is cancelled or dies, its call was done completely or not at all. The docstrings below
name the exceptions, and `maintain` of any other client repairs those.

Values are made and read by `stores/codec.py`: schedules, policies and webhooks as JSON. Payloads,
results and notes are JSON by `core/codec.py`. Times are aware and in UTC, to the microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from mainspring.core.model import (
    FINISHED,
    Job,
    Note,
    Page,
    Progress,
    Run,
    State,
    is_node_handler,
    replace,
)
from mainspring.core.policy import Overlap
from mainspring.core.statistics import WHOLE_STORE, Period, Totals
from mainspring.core.transitions import Change


class Added(Struct, frozen=True):
    """The run that is stored after an `add`: the one given, or the one that holds its key."""

    run: Run
    duplicate: bool = False


class Claim(Struct, frozen=True, kw_only=True):
    """Which runs a worker can take, and how many. `queues=None` takes every queue."""

    worker: str
    handlers: frozenset[str]
    limit: int
    lease: timedelta
    queues: frozenset[str] | None = None
    most: Mapping[str, int] = {}
    """At most this many runs of these jobs are taken. 0: none."""
    ahead: int = 0
    """Of `limit`, this many runs are claimed ahead of free capacity. They are only taken from jobs
    that have neither a concurrency limit nor a rate limit: runs of jobs with a limit may fill only
    `limit - ahead`."""
    turns: Mapping[int, str] = {}
    """For each priority, the job whose run the worker took last. The next job has the turn."""


class Claimed(Struct, frozen=True):
    """The runs that a claim took, in order. If it took none, `next_due` says when the next pending
    run that the claim could take falls due: later than now, or None if there is none. A run that is
    due already and was not taken is held back by a limit; if that is its rate limit, it counts as
    due when the limit lets it start."""

    runs: list[Run]
    next_due: datetime | None = None


class Held(Struct, frozen=True):
    """A run that a worker holds, and how far its handler has come."""

    id: str
    token: int
    progress: Progress | None = None


class Renewed(Struct, frozen=True):
    """A run that its worker still holds, and whether (and why) it is to be cancelled."""

    id: str
    cancel_requested: bool = False
    reason: str | None = None


class Firing(Struct, frozen=True, kw_only=True):
    """A slot's run (and those that follow it), and the job's advance past the slot.

    The first run is the slot's own; of an `each_node` job the first ones, one for each node. The
    runs that come after it are next, waiting, and last the skipped run that records earlier slots
    that were missed. If none of the slots runs, that record is the only run. `version` is the
    version at which the job was read: another node that fired first has changed it, and a new job
    of the same id has another one.
    """

    job_id: str
    version: int
    runs: tuple[Run, ...]
    overlap: Overlap
    next_run_at: datetime | None
    last_run_at: datetime | None
    valid_until: datetime | None = None
    """The store refuses the firing after this time: the plan was made for an earlier one."""

    @property
    def needs_all_unfinished(self) -> bool:
        """Whether overlap is decided by all unfinished runs of earlier slots, not by the newest:
        the slot replaces them, or there are several nodes."""
        if self.overlap is Overlap.ALLOW:
            return False
        return self.overlap is Overlap.REPLACE or is_node_handler(self.runs[0].handler)


class Fired(Struct, frozen=True):
    """Whether this call fired the slot, and the runs as they were stored (overlap may have skipped
    the slot's run).

    `replaced` are the earlier runs that this call has cancelled. Runs that were running are not
    among them: their workers end them.
    """

    done: bool
    runs: tuple[Run, ...] = ()
    replaced: tuple[Run, ...] = ()


class RunQuery(Struct, frozen=True, kw_only=True):
    """Newest first. `ids`: returns those of these runs that exist, each once, in any order, in one
    page. Then every other field but `brief` is ignored.
    `jobs`: the newest `limit` runs of each of these jobs, in one page: the jobs in any order, the
    runs of each newest first. It is combined with `states`, `tried`, `brief` and `limit` alone.
    `lapsed`: running with a lease that is over by the store's clock.
    `failing`: with a failed attempt since they were last made or revived, in whatever state.
    `tried`: with an attempt, over or under way.
    `set_aside`: pending, and passed over by claims because they could not be read; also those that
    can be read again by now, until `maintain` lets claims find them.
    `upstream`: runs that come after any of these runs and wait, or were skipped because an upstream
    run failed (reason `transitions.UPSTREAM_FAILED`).
    `brief`: leaves out payloads, results and attempts with their logs (they are empty, and `brief`
    of each run is set); a record in which only those cannot be read is given as readable.
    `since` (inclusive) and `until` (exclusive) bound `created_at`.
    `set_aside` is combined with `brief`, `limit` and `cursor` alone, `upstream` also with `states`,
    `lapsed` also with `job`, `states`, `since` and `until`. Other combinations are not defined."""

    ids: frozenset[str] | None = None
    job: str | None = None
    jobs: frozenset[str] | None = None
    states: frozenset[State] | None = None
    lapsed: bool = False
    failing: bool = False
    tried: bool = False
    set_aside: bool = False
    upstream: frozenset[str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    brief: bool = False
    limit: int = 100
    cursor: str | None = None


JobOrder = Literal["id", "next_run_at", "last_run_at", "updated_at"]


class JobQuery(Struct, frozen=True, kw_only=True):
    """By id, or by another field that `order` names, `descending` or not. Jobs without a value of
    that field come last either way, and those with equal values come by id. Only a list by id,
    ascending, has a `cursor`; the others are read by `offset`, which leaves out so many.
    `due`: enabled, with a slot at or before that moment; those come earliest first, whatever
    `order` says. `follows`: those that come after other jobs (`policy.after`). `queue`: those whose
    runs go to that queue. `text`: part of the id or the description, in upper or lower case.
    `with_total` asks for the page's `total`."""

    ids: frozenset[str] | None = None
    due: datetime | None = None
    follows: bool = False
    tag: str | None = None
    queue: str | None = None
    enabled: bool | None = None
    text: str | None = None
    order: JobOrder = "id"
    descending: bool = False
    limit: int = 100
    cursor: str | None = None
    offset: int = 0
    with_total: bool = False


class JobWrite(Struct, frozen=True):
    """An insert, an update or a delete of a job: done if the stored job still has the version
    expected (0: there is none; None: whatever it has). `job` is the job as it will be kept, with
    its new version; None deletes it."""

    id: str
    expected_version: int | None
    job: Job | None

    @classmethod
    def put(cls, job: Job) -> JobWrite:
        """Insert or replace a job that was read at `job.version` (0 for a new one)."""
        return cls(job.id, job.version, replace(job, version=job.next_version()))

    @classmethod
    def add(cls, job: Job) -> JobWrite:
        """Insert a job as it is, its version included, where none of its id is there."""
        return cls(job.id, 0, job)

    @classmethod
    def drop(cls, job_id: str, expected_version: int | None = None) -> JobWrite:
        return cls(job_id, expected_version, None)


class NoteQuery(Struct, frozen=True, kw_only=True):
    """Notes that have not expired, ordered by kind and name. `kind=None`: of every kind."""

    kind: str | None = None
    names: frozenset[str] | None = None
    limit: int = 100
    cursor: str | None = None


TTL_NOTE_KEPT = timedelta(days=1)
"""How long `maintain` leaves a note that was written with a `ttl` after it has expired."""


class NoteWrite(Struct, frozen=True):
    """An insert, an update or a delete of a note: done if the stored note still has the version
    expected (0: there is none, or it has expired; None: whatever it has). `note=None` deletes.

    With a `ttl` the store itself sets `expires_at`: so long from now, by its own clock, even if
    somebody sets that clock meanwhile. The store keeps counting the version of such a note for at
    least a day after it has expired, because elections number their terms by it.
    """

    kind: str
    name: str
    expected_version: int | None
    note: Note | None
    ttl: timedelta | None = None

    @classmethod
    def put(cls, note: Note, ttl: timedelta | None = None) -> NoteWrite:
        """Insert or replace a note that was read at `note.version` (0 for a new one)."""
        return cls(note.kind, note.name, note.version, note, ttl)

    @classmethod
    def drop(cls, kind: str, name: str, expected_version: int | None = None) -> NoteWrite:
        return cls(kind, name, expected_version, None)


class Due(Struct, frozen=True):
    """How many runs of a handler are due, and since when the oldest of them is."""

    count: int
    oldest: datetime

    def plus(self, other: Due | None) -> Due:
        if other is None:
            return self
        return Due(self.count + other.count, min(self.oldest, other.oldest))


class Counts(Struct, frozen=True):
    """How many unfinished runs each job has in each state, what is due of each handler and of each
    queue (there without runs that wait for one worker), and what was counted as runs ended:
    `totals` since a job was made, `periods` by the hour of a job, the oldest first. The entry
    `WHOLE_STORE` is the sum over all jobs, with a period for each minute.
    """

    runs: Mapping[str, Mapping[State, int]] = {}
    due: Mapping[str, Due] = {}
    totals: Mapping[str, Totals] = {}
    periods: Mapping[str, Sequence[Period]] = {}
    due_by_queue: Mapping[str, Due] = {}

    def total(self, state: State) -> int:
        """How many runs are in a state; of a state that ends a run, how many have ever ended so,
        also those that were revived, deleted or pruned since."""
        if state in FINISHED:
            return self.totals.get(WHOLE_STORE, Totals()).ended.get(state, 0)
        return sum(by_state.get(state, 0) for by_state in self.runs.values())

    @property
    def ended(self) -> dict[State, int]:
        """How many runs have ended in each state in the periods asked for, of all jobs."""
        sums: dict[State, int] = {}
        for period in self.periods.get(WHOLE_STORE, ()):
            for state, count in period.ended.items():
                sums[state] = sums.get(state, 0) + count
        return sums


class StoreInfo(Struct, frozen=True, kw_only=True):
    """What kind of store it is and what it supports. `location` is its URL without secrets."""

    kind: str
    location: str
    file: Path | None = None
    """The database file of an embedded store. Other files may be kept beside it."""
    shared: bool = True
    """Whether another process can open the same data."""
    no_transactions: str | None = None
    """Why `transaction` cannot be used; None where it can. Known once the store is open."""
    within: str | None = None
    """What `add` accepts as `within`, for messages; None: this store takes part in no transaction
    of its callers."""
    any_loop: bool = False
    """Whether its methods may be called on any event loop of any thread. Then an enqueue is sent
    from its caller's loop, which saves two of four hand-overs between threads."""
    setup_script: str | None = None
    """A script for an operator who wants to create by hand what `open` creates; None if there is
    none."""
    idle_poll: timedelta | None = None
    """How long an idle engine should wait between two looks at the store, where each look costs
    money or much time. It looks earlier when `wait` returns or a known run or slot falls due. None:
    looks are cheap, and the engine's own settings decide."""
    clock_error: timedelta = timedelta(0)
    """By how much the time that `now` gives may be earlier than the store's clock shows."""


class Transaction(Protocol):
    """Commits a handler's own writes and the completion of its run as one.

    Used where the handler runs: in another thread than the store's other calls, on another loop.
    It begins once and ends once, by `commit`, by `rollback` or, where the store limits its time,
    when that is up: from then on `commit` and the session raise `TransactionExpired`. A crash of
    the client rolls it back. One made with `blocking` is for plain code: its coroutines never
    suspend, they block the calling thread.
    """

    async def begin(self) -> Any:
        """Wait until the transaction may begin; return the session that the handler writes with.

        Raises `TransactionAborted` if the caller no longer holds the run, or it is to be cancelled,
        and `StoreUnavailable` if the store cannot be reached: then nothing has begun.
        """
        ...

    async def commit(self, change: Change) -> bool:
        """Apply the change and make it durable together with what the session wrote.

        False: an expectation of the change no longer holds, and nothing was written.
        `TransactionAborted`: nothing was written, and another try may succeed.
        `StoreUnavailable`: it may have been written or not; a fenced change of the same run, sent
        later, decides.
        """
        ...

    async def rollback(self) -> None:
        """Undo everything. Does nothing before `begin` and after the end."""
        ...

    def transient(self, error: BaseException) -> bool:
        """Whether an error of the session was caused by another transaction, so that another try
        may succeed."""
        ...


class Store(Protocol):
    """Where jobs, runs and notes are kept. The module's docstring has the rules for all members."""

    async def open(self, *, create: bool = True) -> None:
        """Connect, and make or migrate what is needed.

        Opening an open store does nothing; a closed one may be opened again. With `create=False`
        nothing is made, and `StoreMissing` is raised where nothing of Mainspring is there.
        `StoreTooNew`: a newer version wrote it. `StoreDamaged`: it is no store, or a broken one.
        Several clients may open, and so migrate, a store at once. After a crash the next `open`
        completes the migration or starts it again; no record is lost.
        """
        ...

    async def close(self) -> None:
        """Finish the calls that were accepted and release everything. A closed store may be closed
        again. `info` still answers. Every other call of a closed store raises `StoreError`, unless
        the store has released nothing (the memory store, which several clients may share)."""
        ...

    def info(self) -> StoreInfo:
        """What the store is and can do. Needs no open store and does no I/O."""
        ...

    async def now(self) -> datetime:
        """The store's own clock, in UTC.

        Where it is a wall clock that somebody may set, the store allows for the step: leases,
        notes with a `ttl` and retries last as long as they were meant to, and what is due stays
        due. The same holds for what a client computed before the clock was set back and sends
        afterwards: the `run_at` of a change is moved by its `decided_at`, and a new run that was
        due at its `created_at` is due.
        """
        ...

    async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
        """Insert runs. Returns one `Added` for each run, in order, with the run as a later read
        returns it: a tuple in a payload has become a list.

        A run whose id is there already is left as it is and reported as added. A run whose
        `dedupe_key` is held by a live run, or by one whose `dedupe_until` is still to come, is not
        inserted: the answer carries the holder, marked `duplicate`. Nor is one that comes `after`
        a run refused so in the same call: its workflow is there already.

        All or none: where one run cannot be kept (`InvalidInput`), none is inserted; and a client
        that reads a run can also read the runs of the same call that it comes `after`. A store that
        can write many records as one (memory, SQLite, object storage) also keeps this through a
        crash. On a store that cannot (MongoDB), a crash may leave the first of several independent
        runs; sending the call again completes it.

        `within`: a connection or session of the caller. The runs are added in its transaction, so
        they are there exactly if the caller commits. The statements are sent in the caller's thread
        or on the caller's loop, whichever loop the store belongs to. The ids are new, and the
        transaction must see each run that one comes `after` (else `RunNotFound`). `InvalidInput`
        for what is not accepted: another library's, of another database, closed, or without a
        transaction. The transaction can go on after both errors. Errors of the caller's connection
        are raised as its library raises them. `info().within` says what is accepted; a store that
        says nothing there is never given one.
        """
        ...

    async def claim(self, claim: Claim) -> Claimed:
        """Take up to `limit` due runs whose handler (and queue) the claim names, of no job
        more than `most` says; where there are none, say when to claim again.

        Higher priority first. Within a priority jobs take turns, in the order of their ids: the
        first job behind `turns[priority]` begins, and the first job follows the last. At its turn a
        job gives its due run with the earliest `run_at`, if its limits allow another one. When each
        job has had its turn, the next round begins, until `limit` is reached or no job has a run to
        give. On MongoDB clients that compete for runs take turns within a part of the runs each,
        and over all runs once a second (`mongodb/claim.py`).

        No job exceeds its `concurrency`, counted over running runs with a valid lease: its own, or
        those of all stored jobs that share its `concurrency_key` (a run of a job that was removed
        no longer counts for the others). No job exceeds its `rate`: within any span of that length,
        by the store's clock and over all clients, no more runs are taken than it says, also through
        crashes and restarts (`stores/limits.py` counts them). Each run is returned in the state
        `running`: its token and attempt are one higher, the store's clock has set `started_at` and
        `lease_until`, `worker` is that of the claim, and `began` is false.

        Not idempotent: each call takes other runs. Runs that a lost answer named are rescued when
        their lease has lapsed; those of a cancelled caller are released at once where possible.
        """
        ...

    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        """Extend the leases of runs that are still held to `lease` from now, and keep their
        progress.

        Returns one `Renewed` for each run that the caller still holds (same token, running), in
        order; it says whether the run is to be cancelled. A caller still holds a run whose lease
        has lapsed if no other client has claimed it, unless another run has used its capacity under
        a limit. A repeat renews again. A crash leaves each lease extended or not. Reads no payloads
        or logs.
        """
        ...

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        """Apply, in order and independently, each change whose `expect` still holds. Returns one
        bool for each change: whether it was applied.

        The store keeps the `change_id` of the last change that it applied to each run. For a change
        that is sent again it returns True and does not apply it twice, as long as no other change
        of its run was applied after it (claims and renewals do not count). A change that revives a
        finished run takes its dedupe key again, and is False where another run holds it. A change
        that deletes is False where the run has not finished, holds a dedupe key or is named by the
        `after` of an unfinished run, and True where the run is gone. A crash leaves each change
        applied or not.

        The `ending` of each change that was applied is counted (see `core/statistics.py`): once,
        in the order of the changes, and in the same write where the store can write many records
        as one. On a store that cannot (MongoDB), a client that dies between the two writes loses
        the counts of one call, never its changes; and no change is counted twice.
        """
        ...

    async def find(self, query: RunQuery) -> Page[Run]:
        """The runs that match, newest first, a page at a time. Costs what it gives, not what the
        store holds; `InvalidCursor` for a cursor that no page gave. Runs that change meanwhile may
        be on two pages or on none; those that do not are on exactly one."""
        ...

    async def counts(
        self, since: datetime | None = None, jobs: frozenset[str] | None = None
    ) -> Counts:
        """How many unfinished runs there are, by job and state, what is due, and the totals of all
        jobs together. With `jobs`, no runs are counted: only the totals of these jobs are read.
        With `since`, also the periods from that moment on; the first is the one it lies in.

        Ends are counted when they are stored: by `commit`, by `fire`, and by `add` of a run that
        has finished. What is read here costs the same however many runs have ended.
        """
        ...

    async def maintain(self, before: datetime | None, limit: int) -> int:
        """Repair what crashed clients left half done, delete expired notes, let claims find runs
        again that were set aside and can be read by now, and delete up to `limit` runs that
        finished before that moment, hold no dedupe key and are not named by the `after` of an
        unfinished run, which may still read their results. Counts of periods are deleted after
        `PERIODS_KEPT`, totals of jobs that are gone at once.

        Returns how many runs were deleted: where that is `limit`, there may be more. With
        `before=None` it only repairs what blocks running work. That is cheap and may be called
        often. Any number of clients may call it at once; after a crash the next call completes the
        rest.
        """
        ...

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """The jobs that match, in the order that the query names, a page at a time (those that are
        `due`: the earliest first, in one page).

        A page has a cursor only where the jobs are in ascending order of their ids. The cursor is
        the id of the page's last job, and still works if that job has been deleted since. In
        another order a cursor is ignored: give `offset`."""
        ...

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        """Insert, update or delete jobs by compare-and-set, each by itself and in order; say which
        were done. With a job its definition and its counts are deleted: its runs stay. A delete of
        a job that is not there is False and changes nothing.

        The writes of a call that are done are stored as one: a crash leaves all of them or none.
        (The counts of deleted jobs may be deleted a moment later.)

        A write that is sent again after its answer was lost is False: the stored job has the
        version that it wrote, and a version never repeats (see `Job.next_version`).
        """
        ...

    async def notes(self, query: NoteQuery) -> Page[Note]:
        """The notes that match and have not expired, by kind and name, a page at a time. A note
        whose value cannot be read has the value None. It never looks absent before it expires,
        because an election or a limit may rest on it. `InvalidCursor` for a cursor that no page
        gave."""
        ...

    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        """Insert, update or delete notes by compare-and-set, each by itself and in order.

        Returns for each the version that the note has now (0: it was deleted), or None if the
        stored note does not have the version expected, or if there was none to delete (one that has
        expired may count as there). A write that is sent again after its answer was lost is None,
        unless it expects any version. A crash leaves each write done or not.
        """
        ...

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        """Fire slots: insert each firing's runs and advance its job, as one.

        Not done where the job is gone or has another version, nor after `valid_until` (a node
        that slept between its plan and this call has to look again). Firings of one job in a
        call are a chain: where one is not done, those behind it are not either (an edit may
        have brought the job to the very version that the second expects). Overlap is decided
        in here, by `core.overlap.resolve_overlap`, on what the store holds at that moment.

        A firing that is sent again is not done: the job has advanced. A store that cannot write
        both as one inserts the runs first and then advances the job; the runs are visible, and may
        be claimed, only when the job has advanced, and `maintain` settles what a crash left.
        """
        ...

    async def wait(self, timeout: float) -> bool:
        """Return early (True) when something may have changed, by any client; False after
        `timeout` seconds. A hint, never a promise: callers poll as well. While the store is
        unavailable it waits for `timeout` and raises nothing."""
        ...

    def transaction(self, held: Held, limit: timedelta, *, blocking: bool = False) -> Transaction:
        """A transaction for the handler of a run that the caller holds: see `Transaction`. Where
        `info().no_transactions` gives a reason, it raises `NotImplementedError` with that reason.

        The caller rolls it back when `limit` has passed since it began. A store in which it blocks
        others (SQLite) does that itself too, so that no renewal waits for it longer than that.
        """
        ...
