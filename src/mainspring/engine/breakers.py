"""Circuit breakers of jobs: one state for each job, which all nodes share.

The state is a note in the store, changed by compare-and-set. Closed: runs start, and failures in a
row are counted over all nodes. Open: no run starts until the reset time is over by the store's
clock. Half-open: one run is the trial; its outcome closes the breaker or opens it again. The trial
is a run and its token, so the run's own record says whether it is still under way: a trial whose
worker dies ends with its lease. docs/decisions/0018-shared-breakers.md says why it is so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec import Struct, ValidationError, convert

from mainspring.core import transitions
from mainspring.core.clock import to_us
from mainspring.core.durations import duration
from mainspring.core.model import Job, Note, Run, State, replace
from mainspring.core.policy import Breaker
from mainspring.engine.context import EngineContext
from mainspring.errors import Conflict
from mainspring.stores.paging import all_items, pages
from mainspring.stores.protocol import JobQuery, NoteQuery, NoteWrite, RunQuery, Store

__all__ = [
    "NOTE_KIND",
    "PUT_OFF_REASON",
    "BreakerEvent",
    "BreakerNotes",
    "BreakerStatus",
    "Breakers",
    "Circuit",
    "JobOutcome",
    "breaker_status",
    "breaker_statuses",
    "close_breaker",
    "forget_breakers",
    "open_breakers",
    "start_put_off",
]

NOTE_KIND = "breaker"
"""The kind of the notes; the name of each is the id of its job."""

PUT_OFF_REASON = "its circuit breaker is open"
"""The reason of a pending run that a breaker has put off."""

NOTE_TTL = timedelta(days=366)
"""How long a state is kept that nothing changes. The end of the reset time is the end of its note
minus this span: the store sets the end of a note with a `ttl` by its own clock, and moves it when
somebody sets that clock. Stored notes depend on this value."""

LONGEST_RESET = timedelta(days=36_600)
"""A longer reset time counts as this one, so that its end is a date."""

TRIAL_SNOOZE = timedelta(seconds=1)
"""How long a run is put off, at least, while another one is the trial."""

TRIAL_GAP, LONGEST_TRIAL_SNOOZE = timedelta(milliseconds=20), timedelta(seconds=30)
"""The runs of a job that one worker puts off during a trial become due again so far apart, and at
most so much later. A backlog that was due again all at once each second costs half a processor at
2,000 runs. The worker whose trial closes the breaker makes all of them due at once."""

TRIES = 10
"""How often a compare-and-set is tried. Each lost try means that another node succeeded."""

MOST_KNOWN = 10_000

BreakerEvent = Literal["opened", "half_open", "closed"]
BreakerNotes = Mapping[str, Note | None]
"""The notes of some jobs, by their ids."""
Trial = tuple[str, int]
"""The id of a run, and the token of its attempt."""


class Circuit(Struct, frozen=True):
    """The state of one breaker. `until`: when the reset time is over, while it is open. `earlier`:
    the trial before this one. It may have ended a moment ago, and its outcome is counted then."""

    state: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    until: datetime | None = None
    trial: Trial | None = None
    earlier: Trial | None = None
    version: int = 0

    def after(self, outcomes: Sequence[JobOutcome]) -> tuple[Circuit, dict[str, BreakerEvent]]:
        """The state after these outcomes, and which run changed it how. While the breaker is not
        closed only the outcomes of its trials count: the others began before it opened."""
        circuit, events = self, dict[str, BreakerEvent]()
        for one in outcomes:
            run = one.run
            if circuit.state == "closed":
                failures = 0 if one.ok else circuit.failures + 1
                circuit = replace(circuit, failures=failures)
                if failures >= one.breaker.failures:
                    circuit = replace(circuit, state="open")
                    events[run.id] = "opened"
            elif (run.id, run.token) in (circuit.trial, circuit.earlier):
                circuit = replace(
                    circuit,
                    state="closed" if one.ok else "open",
                    failures=0 if one.ok else circuit.failures + 1,
                    trial=None,
                    earlier=None,
                )
                events[run.id] = "closed" if one.ok else "opened"
        return circuit, events


class JobOutcome(Struct, frozen=True):
    """How an attempt of a job with a breaker ended."""

    run: Run
    job: Job
    breaker: Breaker
    ok: bool


class StoredCircuit(Struct, frozen=True):
    """The value of a note. `job`: when its job was created, in microseconds."""

    job: int
    state: Literal["closed", "open", "half_open"]
    failures: int
    trial: Trial | None = None
    earlier: Trial | None = None


class BreakerStatus(Struct, frozen=True):
    """What a breaker does now: `state` is "closed", "open" or "half_open". `failures` in a row have
    been counted over all nodes. `until`: when the reset time of an open breaker is over. `trial`:
    the run that tries whether a half-open one can be closed; None before such a run has begun."""

    state: Literal["closed", "open", "half_open"]
    failures: int
    until: datetime | None = None
    trial: str | None = None


async def breaker_status(store: Store, job: Job) -> BreakerStatus | None:
    """The state of a job's breaker as all nodes see it; None if the job has no breaker. It costs
    one read of the store, and another one if the breaker is not closed."""
    return (await breaker_statuses(store, [job])).get(job.id)


async def breaker_statuses(store: Store, jobs: Iterable[Job]) -> dict[str, BreakerStatus]:
    """The same for each of these jobs that has a breaker, by id, at the same cost."""
    jobs = [job for job in jobs if job.policy.breaker is not None]
    if not jobs:
        return {}
    circuits = await _read(store, jobs)
    is_closed = all(circuits[job.id].state == "closed" for job in jobs)
    now = None if is_closed else await store.now()
    return {job.id: _status(circuits[job.id], now) for job in jobs}


def _status(circuit: Circuit, now: datetime | None) -> BreakerStatus:
    state, until = circuit.state, circuit.until
    if state == "open" and until is not None and now is not None and until <= now:
        state, until = "half_open", None
    return BreakerStatus(state, circuit.failures, until, circuit.trial and circuit.trial[0])


async def open_breakers(store: Store) -> dict[str, BreakerStatus]:
    """The breakers that are not closed, by job. It reads the notes of all breakers that a run ever
    changed, a thousand at a time, and the jobs of those that are not closed."""
    notes = all_items(store.notes, NoteQuery(kind=NOTE_KIND, limit=1000))
    suspects = [note.name async for note in notes if not _is_closed(note)]
    found: dict[str, BreakerStatus] = {}
    for at in range(0, len(suspects), 1000):
        ids = frozenset(suspects[at : at + 1000])
        jobs = (await store.jobs(JobQuery(ids=ids, limit=len(ids)))).items
        found |= await breaker_statuses(store, jobs)
    return {job_id: one for job_id, one in sorted(found.items()) if one.state != "closed"}


def _is_closed(note: Note) -> bool:
    return isinstance(note.value, dict) and note.value.get("state") == "closed"


async def close_breaker(store: Store, job: Job) -> bool:
    """Close the breaker of a job and forget its failures; return whether it was not closed."""
    for _ in range(TRIES):
        circuit = (await _read(store, [job]))[job.id]
        closed = Circuit(version=circuit.version)
        if circuit == closed:
            return False
        [version] = await store.put_notes([_write(job, closed)])
        if version is not None:
            return circuit.state != "closed"
    raise Conflict(
        f"the breaker of job {job.id} was changed {TRIES} times while it was being closed; try"
        " again"
    )


async def forget_breakers(store: Store, job_ids: Iterable[str]) -> None:
    """Delete the states of jobs that are removed."""
    names = frozenset(job_ids)
    query = NoteQuery(kind=NOTE_KIND, names=names, limit=max(len(names), 1))
    found = (await store.notes(query)).items
    await store.put_notes([NoteWrite.drop(NOTE_KIND, note.name) for note in found])


async def start_put_off(store: Store, job_id: str) -> None:
    """Make the runs due that the breaker of the job has put off."""
    query = RunQuery(job=job_id, states=frozenset({State.PENDING}), brief=True, limit=1000)
    async for runs in pages(store.find, query):
        now = await store.now()
        put_off = [run for run in runs if run.reason == PUT_OFF_REASON and run.run_at > now]
        await store.commit([transitions.unsnoozed(run, now) for run in put_off])


class Breakers:
    """The breakers as one worker uses them. Everything here happens on the engine's loop."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._known: dict[str, Circuit] = {}
        """The breakers that were not closed when this worker last read them."""
        self._put_off_last: dict[str, datetime] = {}
        """Until when this worker put off a run of each of these jobs last, during a trial."""

    async def read_notes(self, job_ids: Collection[str]) -> BreakerNotes:
        """Read the states of these jobs, for `admit`."""
        return await self._engine.retrying_store.repeat(
            "breakers", lambda: _read_notes(self._engine.store, job_ids)
        )

    async def admit(
        self, runs: Sequence[tuple[Run, Job]], notes: BreakerNotes
    ) -> dict[str, datetime]:
        """Decide which of these claimed runs may start, their jobs having breakers; return until
        when each of the others is put off. `notes` were read after the claim.

        It is repeated until the store answers: a trial that was won, and whose answer was lost,
        is found by its run and token.
        """
        jobs = {job.id: job for _, job in runs}
        if jobs.keys() <= notes.keys():
            circuits = {i: _circuit(notes[i], job) for i, job in jobs.items()}
            self._remember(circuits)
            if all(circuit.state == "closed" for circuit in circuits.values()):
                return {}
        return await self._engine.retrying_store.repeat("breakers", lambda: self._admit(runs, jobs))

    async def _admit(
        self, runs: Sequence[tuple[Run, Job]], jobs: dict[str, Job]
    ) -> dict[str, datetime]:
        circuits = await _read(self._engine.store, jobs.values())
        self._remember(circuits)
        circuits = {i: circuit for i, circuit in circuits.items() if circuit.state != "closed"}
        if not circuits:
            return {}
        # The moment of the claim by the store's clock, so that no other clock is asked.
        now = runs[0][0].started_at or self._engine.time.now()
        under_way = await self._trials_under_way(circuits.values(), now)
        until: dict[str, datetime] = {}
        trials: dict[str, Run] = {}
        for run, job in runs:
            circuit = circuits.get(job.id)
            if circuit is None:
                continue
            if circuit.until is not None and now < circuit.until:
                until[run.id] = circuit.until
            elif circuit.trial == (run.id, run.token):
                self._engine.emit("breaker.half_open", run)
            elif circuit.trial in under_way or job.id in trials:
                until[run.id] = self._next_look(job, now)
            else:
                trials[job.id] = run
                until[run.id] = now + min(TRIAL_SNOOZE, _reset(job))  # unless it wins
        for run in await self._begin_trials(trials, jobs, circuits):
            del until[run.id]
            self._engine.emit("breaker.half_open", run)
        return until

    def _next_look(self, job: Job, now: datetime) -> datetime:
        """Until when to put off the next run of a job whose trial is under way."""
        soon = now + min(TRIAL_SNOOZE, _reset(job))
        last = self._put_off_last.get(job.id, now)
        at = self._put_off_last[job.id] = min(
            max(soon, last + TRIAL_GAP), now + LONGEST_TRIAL_SNOOZE
        )
        return at

    async def _trials_under_way(self, circuits: Iterable[Circuit], now: datetime) -> set[Trial]:
        """The trials whose run is still running, with its token and a lease."""
        trials = {circuit.trial for circuit in circuits if circuit.trial is not None}
        if not trials:
            return set()
        query = RunQuery(ids=frozenset(run_id for run_id, _ in trials), brief=True)
        return trials & {
            (run.id, run.token)
            for run in (await self._engine.store.find(query)).items
            if run.state is State.RUNNING and run.lease_until is not None and run.lease_until > now
        }

    async def _begin_trials(
        self, trials: dict[str, Run], jobs: dict[str, Job], circuits: dict[str, Circuit]
    ) -> list[Run]:
        """Make these runs the trials of their jobs; return the runs that became trials."""
        if not trials:
            return []
        after = {
            job_id: replace(
                circuits[job_id],
                state="half_open",
                until=None,
                trial=(run.id, run.token),
                earlier=circuits[job_id].trial,
            )
            for job_id, run in trials.items()
        }
        kept = await self._put(jobs, after)
        return [trials[job_id] for job_id in kept]

    async def record(self, outcomes: Sequence[JobOutcome]) -> dict[str, BreakerEvent]:
        """Count the outcomes of attempts, which the store has; return which run changed the state
        of its job's breaker, and how.

        A store that fails loses the count and nothing else: the outcome of a run never waits for
        it, and where a trial's outcome is lost another trial follows.
        """
        events: dict[str, BreakerEvent] = {}
        with self._engine.outages.suppressed("breakers"):
            await self._record(outcomes, events)
        for one in outcomes:
            if (event := events.get(one.run.id)) is not None:
                self._engine.emit(f"breaker.{event}", one.run)
        return events

    async def _record(
        self, outcomes: Sequence[JobOutcome], events: dict[str, BreakerEvent]
    ) -> None:
        by_job: dict[str, list[JobOutcome]] = {}
        for one in outcomes:
            by_job.setdefault(one.job.id, []).append(one)
        for _ in range(TRIES):
            jobs = {job_id: ended[-1].job for job_id, ended in by_job.items()}
            circuits = await _read(self._engine.store, jobs.values())
            self._remember(circuits)
            after = {i: circuits[i].after(ended) for i, ended in by_job.items()}
            changed = {i: circuit for i, (circuit, _) in after.items() if circuit != circuits[i]}
            kept = await self._put(jobs, changed)
            for job_id in kept:
                events |= after[job_id][1]
            by_job = {i: by_job[i] for i in changed.keys() - set(kept)}
            if not by_job:
                return

    async def start_put_off(self, job_id: str) -> None:
        """Make the runs due that the breaker of the job has put off, since it is closed. If the
        store fails they start when they become due by themselves."""
        with self._engine.outages.suppressed("breakers"):
            await start_put_off(self._engine.store, job_id)

    def known_wait(self, run: Run, job: Job) -> datetime | None:
        """Until when a run is put off that was admitted and waits in this process: since then this
        worker has seen the breaker open. None: it may begin. Asks no store."""
        circuit = self._known.get(job.id)
        if circuit is None or circuit.trial == (run.id, run.token):
            return None
        return circuit.until or self._engine.time.now() + min(TRIAL_SNOOZE, _reset(job))

    async def _put(self, jobs: dict[str, Job], after: dict[str, Circuit]) -> list[str]:
        """Write these states; return the jobs whose state nobody else has changed meanwhile."""
        if not after:
            return []
        writes = [_write(jobs[job_id], circuit) for job_id, circuit in after.items()]
        versions = await self._engine.store.put_notes(writes)
        kept = {i: v for i, v in zip(after, versions, strict=True) if v is not None}
        now = self._engine.time.now()
        self._remember({i: _stored(after[i], v, jobs[i], now) for i, v in kept.items()})
        return list(kept)

    def _remember(self, circuits: dict[str, Circuit]) -> None:
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
            self._put_off_last.clear()
        for job_id, circuit in circuits.items():
            if circuit.state == "closed":
                self._known.pop(job_id, None)
                self._put_off_last.pop(job_id, None)
            else:
                self._known[job_id] = circuit


async def _read(store: Store, jobs: Iterable[Job]) -> dict[str, Circuit]:
    """The state of each of these jobs, by its id."""
    by_id = {job.id: job for job in jobs}
    notes = await _read_notes(store, by_id)
    return {job_id: _circuit(notes[job_id], job) for job_id, job in by_id.items()}


async def _read_notes(store: Store, job_ids: Collection[str]) -> BreakerNotes:
    query = NoteQuery(kind=NOTE_KIND, names=frozenset(job_ids), limit=len(job_ids))
    notes = {note.name: note for note in (await store.notes(query)).items}
    return {job_id: notes.get(job_id) for job_id in job_ids}


def _circuit(note: Note | None, job: Job) -> Circuit:
    if note is None:
        return Circuit()
    closed = Circuit(version=note.version)
    try:
        stored = convert(note.value, StoredCircuit)
    except ValidationError:
        return closed  # damaged, or of a later version: it must not hold up the claims of a worker
    if stored.job != to_us(job.created_at):
        return closed  # it was left by an earlier job of this id
    return Circuit(
        state=stored.state,
        failures=stored.failures,
        until=note.expires_at - NOTE_TTL if stored.state == "open" and note.expires_at else None,
        trial=stored.trial,
        earlier=stored.earlier,
        version=note.version,
    )


def _write(job: Job, circuit: Circuit) -> NoteWrite:
    value: dict[str, Any] = {
        "job": to_us(job.created_at),
        "state": circuit.state,
        "failures": circuit.failures,
    }
    if circuit.trial is not None:
        value["trial"] = list(circuit.trial)
    if circuit.earlier is not None:
        value["earlier"] = list(circuit.earlier)
    note = Note(kind=NOTE_KIND, name=job.id, value=value, version=circuit.version)
    return NoteWrite.put(note, NOTE_TTL + (_reset(job) if circuit.state == "open" else timedelta()))


def _stored(circuit: Circuit, version: int, job: Job, now: datetime) -> Circuit:
    """A state as it was written. The store set when the reset time is over; this is about then."""
    until = now + _reset(job) if circuit.state == "open" else None
    return replace(circuit, version=version, until=until)


def _reset(job: Job) -> timedelta:
    breaker = job.policy.breaker or Breaker()
    return min(duration(breaker.reset), LONGEST_RESET)
