"""Circuit breakers of jobs: one state for each job, which all nodes share.

The state is a note in the store, changed by compare-and-set. Closed: runs start, and failures in a
row are counted over all nodes. Open: no run starts until the reset time is over by the store's
clock. Half-open: one run is the trial; its outcome closes the breaker or opens it again. The trial
is a run and its token, so the run's own record says whether it is still under way: a trial whose
worker dies ends with its lease. A worker claims no runs of a job whose breaker it knows to be open,
and one run when a trial may begin. docs/decisions/0018-shared-breakers.md says why it is so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec import Struct, ValidationError, convert

from mainspring.core import note_kinds
from mainspring.core.clock import to_us
from mainspring.core.durations import duration
from mainspring.core.model import Job, Note, Run, replace
from mainspring.core.policy import Breaker
from mainspring.engine.attempt import LocalAttempt, StopReason
from mainspring.engine.context import EngineContext
from mainspring.engine.store_retry import TRIES, contended
from mainspring.stores.paging import all_items, read_jobs, read_runs
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store

NOTE_TTL = timedelta(days=366)
"""How long a state is kept that nothing changes. The end of the reset time is the end of its note
minus this span: the store sets the end of a note with a `ttl` by its own clock, and moves it when
somebody sets that clock. Stored notes depend on this value."""

LONGEST_RESET = timedelta(days=36_600)
"""A longer reset time counts as this one, so that its end is a date."""

LOOK_AGAIN = 1.0
"""Seconds after which a worker reads the state of an open breaker again: somebody may have closed
it, or its trial may have ended."""

SHORTEST_WAIT = 0.001
"""Seconds before a run is claimed for a trial again, after one that came before the reset time was
over by the store's clock."""

BreakerEvent = Literal["opened", "half_open", "closed"]
Trial = tuple[str, int]
"""The id of a run, and the token of its attempt."""


class Circuit(Struct, frozen=True):
    """The state of one breaker. `until`: when the reset time is over, while it is open."""

    state: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    until: datetime | None = None
    trial: Trial | None = None
    version: int = 0
    job: int = 0
    """When its job was created, in microseconds. An earlier job of this id may leave one."""

    def after(self, outcomes: Sequence[JobOutcome]) -> tuple[Circuit, dict[str, BreakerEvent]]:
        """The state after these outcomes, and which run changed it how. While the breaker is not
        closed only the outcome of its trial counts: the others began before it opened."""
        circuit, events = self, dict[str, BreakerEvent]()
        for outcome in outcomes:
            run = outcome.run
            if circuit.state == "closed":
                failures = 0 if outcome.ok else circuit.failures + 1
                circuit = replace(circuit, failures=failures)
                if failures >= outcome.breaker.failures:
                    circuit = replace(circuit, state="open")
                    events[run.id] = "opened"
            elif (run.id, run.token) == circuit.trial:
                circuit = replace(
                    circuit,
                    state="closed" if outcome.ok else "open",
                    failures=0 if outcome.ok else circuit.failures + 1,
                    trial=None,
                )
                events[run.id] = "closed" if outcome.ok else "opened"
        return circuit, events


class JobOutcome(Struct, frozen=True):
    """How an attempt of a job with a breaker ended."""

    run: Run
    job: Job
    breaker: Breaker
    ok: bool


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
    suspects = await _jobs_with_open_breaker(store)
    statuses: dict[str, BreakerStatus] = {}
    for at in range(0, len(suspects), 1000):
        jobs = await read_jobs(store, suspects[at : at + 1000])
        statuses |= await breaker_statuses(store, jobs.values())
    return {i: status for i, status in sorted(statuses.items()) if status.state != "closed"}


async def _jobs_with_open_breaker(store: Store) -> list[str]:
    """The ids of the jobs, some of which may be gone."""
    notes = all_items(store.notes, NoteQuery(kind=note_kinds.BREAKER, limit=1000))
    return [note.name async for note in notes if not _is_closed(note)]


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
    raise contended(f"the breaker of job {job.id}")


async def forget_breakers(store: Store, job_ids: Iterable[str]) -> None:
    """Delete the states of jobs that are removed, or get another breaker."""
    names = frozenset(job_ids)
    query = NoteQuery(kind=note_kinds.BREAKER, names=names, limit=max(len(names), 1))
    notes = (await store.notes(query)).items
    await store.put_notes([NoteWrite.drop(note_kinds.BREAKER, note.name) for note in notes])


class Breakers:
    """The breakers as one worker uses them. Everything here happens on the engine's loop, except
    for `may_begin` and `handler_ended`."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._known: dict[str, Circuit] = {}
        """The breakers that were not closed when this worker last read them."""
        self._under_way: set[Trial] = set()
        """Their trials that were under way then."""
        self._try_at: dict[str, float] = {}
        """When the reset time of open ones is over, by the monotonic clock."""
        self._looked_at = 0.0
        self._counted: dict[str, int] = {}
        """The failures in a row that the store had counted last, of jobs with a closed breaker."""
        self._uncounted: dict[str, set[LocalAttempt]] = {}
        """Attempts in this process that have failed in a row and are not counted yet."""

    # Claiming

    def most_runs(self) -> dict[str, int]:
        """How many runs may be claimed of each job whose breaker is not closed: one if it would be
        the trial."""
        return {job_id: int(self._may_try(job_id)) for job_id in self._known}

    def seconds_to_look(self) -> float | None:
        """After how many seconds a breaker that keeps runs from being claimed may not do so any
        more; None if there is no such breaker."""
        held, monotonic = self._held(), self._engine.clock.monotonic()
        times = [self._try_at[i] for i in held if i in self._try_at]
        return max(min([*times, self._looked_at + LOOK_AGAIN]) - monotonic, 0.0) if held else None

    async def look_again(self) -> None:
        """Read the breakers again that keep runs from being claimed, once in a while."""
        held, monotonic = self._held(), self._engine.clock.monotonic()
        if not held or monotonic < self._looked_at + LOOK_AGAIN:
            return
        self._looked_at = monotonic
        with self._engine.outages.suppressed("breakers"):
            await self._look_at(held)

    async def read_open(self) -> None:
        """Read which breakers are not closed, before the first claim: a run that is claimed and
        then refused has used up a start of its job's rate."""

        async def read() -> None:
            if job_ids := await _jobs_with_open_breaker(self._engine.store):
                await self._look_at(job_ids)

        await self._engine.retrying_store.repeat("breakers", read)

    async def _look_at(self, job_ids: Collection[str]) -> None:
        jobs = await self._engine.jobs.get(job_ids)
        guarded = [job for job in jobs.values() if job is not None and job.policy.breaker]
        self.forget(jobs.keys() - {job.id for job in guarded})
        circuits = await _read(self._engine.store, guarded)
        self._remember(circuits)
        await self._find_trials(circuits.values(), self._engine.time.now())

    def forget(self, job_ids: Iterable[str]) -> None:
        """These jobs have no breaker, or are gone."""
        for job_id in job_ids:
            self._known.pop(job_id, None)
            self._try_at.pop(job_id, None)

    def _held(self) -> list[str]:
        return [job_id for job_id in self._known if not self._may_try(job_id)]

    def _may_try(self, job_id: str) -> bool:
        """Whether a run of the job would be the trial, as far as this worker knows."""
        circuit = self._known[job_id]
        if circuit.state == "open":
            return self._try_at.get(job_id, 0.0) <= self._engine.clock.monotonic()
        return circuit.trial not in self._under_way

    async def refused(self, runs: Sequence[tuple[Run, Job]]) -> set[str]:
        """Decide which of these claimed runs may start, their jobs having breakers; return the
        others.

        It is repeated until the store answers: a trial that was won, and whose answer was lost,
        is found by its run and token.
        """
        return await self._engine.retrying_store.repeat("breakers", lambda: self._refused(runs))

    async def _refused(self, runs: Sequence[tuple[Run, Job]]) -> set[str]:
        jobs = {job.id: job for _, job in runs}
        circuits = await _read(self._engine.store, jobs.values())
        self._remember(circuits)
        circuits = {i: circuit for i, circuit in circuits.items() if circuit.state != "closed"}
        if not circuits:
            return set()
        # The moment of the claim by the store's clock, so that no other clock is asked.
        now = runs[0][0].started_at or self._engine.time.now()
        await self._find_trials(circuits.values(), now)
        trials: dict[str, Run] = {}
        started: set[str] = set()
        for run, job in runs:
            circuit = circuits.get(job.id)
            if circuit is None:
                started.add(run.id)
            elif circuit.trial == (run.id, run.token):
                self._engine.emit("breaker.half_open", run)
                started.add(run.id)
            elif circuit.until is not None and circuit.until > now:
                self._set_try_at(job.id, circuit.until - now)
            elif circuit.trial not in self._under_way:
                trials.setdefault(job.id, run)
        for run in await self._begin_trials(trials, jobs, circuits):
            self._engine.emit("breaker.half_open", run)
            started.add(run.id)
        return {run.id for run, _ in runs} - started

    async def _find_trials(self, circuits: Iterable[Circuit], now: datetime) -> None:
        """Find out which trials are under way: their run is running, with its token and a lease."""
        trials = {circuit.trial for circuit in circuits if circuit.trial is not None}
        self._under_way -= trials
        if trials:
            self._under_way |= await self._trials_under_way(trials, now)

    async def _trials_under_way(self, trials: set[Trial], now: datetime) -> set[Trial]:
        runs = await read_runs(self._engine.store, {run_id for run_id, _ in trials})
        return trials & {(run.id, run.token) for run in runs.values() if run.is_held(now)}

    async def _begin_trials(
        self, trials: dict[str, Run], jobs: dict[str, Job], circuits: dict[str, Circuit]
    ) -> list[Run]:
        """Make these runs the trials of their jobs; return the runs that became trials."""
        if not trials:
            return []
        after = {
            job_id: replace(
                circuits[job_id], state="half_open", until=None, trial=(run.id, run.token)
            )
            for job_id, run in trials.items()
        }
        kept = await self._put(jobs, after)
        if lost := [jobs[job_id] for job_id in trials if job_id not in kept]:
            circuits = await _read(self._engine.store, lost)  # another node was first
            self._remember(circuits)
            await self._find_trials(circuits.values(), self._engine.time.now())
        return [trials[job_id] for job_id in kept]

    # Beginning and ending

    def may_begin(self, attempt: LocalAttempt) -> bool:
        """Whether an attempt that was admitted may still begin: this worker has not seen its
        breaker open since, and not so many failures that it will. Called on any thread."""
        run, breaker = attempt.run, attempt.job.policy.breaker
        if breaker is None:
            return True
        circuit = self._known.get(run.job_id)
        if circuit is not None:
            return circuit.trial == (run.id, run.token)
        uncounted = self._uncounted.get(run.job_id)
        if not uncounted:
            return True
        return self._counted.get(run.job_id, 0) + len(uncounted) < breaker.failures

    def handler_ended(self, attempt: LocalAttempt) -> None:
        """A handler has ended. Its outcome reaches the store later, and others are about to begin
        before that. Called on any thread, before they begin."""
        if attempt.job.policy.breaker is None or attempt.stop_reason not in _COUNTED_STOPS:
            return
        job_id, error = attempt.run.job_id, attempt.error
        if error is None:
            self._uncounted.pop(job_id, None)
            self._counted.pop(job_id, None)
        elif error.kind != "snooze":
            self._uncounted.setdefault(job_id, set()).add(attempt)

    def settle(self, attempt: LocalAttempt) -> None:
        """The outcome of an attempt is counted, or will not be."""
        uncounted = self._uncounted.get(attempt.run.job_id)
        if uncounted is not None:
            uncounted.discard(attempt)
            if not uncounted:
                self._uncounted.pop(attempt.run.job_id, None)

    def is_trial(self, run: Run) -> bool:
        """Whether a run of this worker is the trial of its job's breaker."""
        circuit = self._known.get(run.job_id)
        return circuit is not None and circuit.trial == (run.id, run.token)

    async def record(
        self, outcomes: Sequence[JobOutcome], *, is_sure: bool = False
    ) -> dict[str, BreakerEvent]:
        """Count the outcomes of attempts; return which run changed the state of its job's breaker,
        and how.

        A store that fails loses the count and nothing else: the outcome of a run never waits for
        it. Those of trials are sure to be counted, before the store has them: as long as the run of
        a trial is running, no other run is tried. `is_sure` repeats it until the store answers.
        """
        events: dict[str, BreakerEvent] = {}
        if is_sure:
            repeat = self._engine.retrying_store.repeat
            await repeat("breakers", lambda: self._record(outcomes, events))
        else:
            with self._engine.outages.suppressed("breakers"):
                await self._record(outcomes, events)
        for outcome in outcomes:
            if (event := events.get(outcome.run.id)) is not None:
                self._engine.emit(f"breaker.{event}", outcome.run)
        return events

    async def _record(
        self, outcomes: Sequence[JobOutcome], events: dict[str, BreakerEvent]
    ) -> None:
        by_job: dict[str, list[JobOutcome]] = {}
        for outcome in outcomes:
            by_job.setdefault(outcome.job.id, []).append(outcome)
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

    async def _put(self, jobs: dict[str, Job], after: dict[str, Circuit]) -> list[str]:
        """Write these states; return the jobs whose state nobody else has changed meanwhile."""
        if not after:
            return []
        writes = [_write(jobs[job_id], circuit) for job_id, circuit in after.items()]
        versions = await self._engine.store.put_notes(writes)
        kept = {i: v for i, v in zip(after, versions, strict=True) if v is not None}
        now = self._engine.time.now()
        self._remember({i: _stored(after[i], v, jobs[i], now) for i, v in kept.items()})
        self._under_way |= {trial for i in kept if (trial := after[i].trial) is not None}
        return list(kept)

    def _remember(self, circuits: dict[str, Circuit]) -> None:
        for job_id, circuit in circuits.items():
            self._try_at.pop(job_id, None)
            if circuit.until is not None:
                self._set_try_at(job_id, circuit.until - self._engine.time.now())
            if circuit.state != "closed":
                self._known[job_id] = circuit
                continue
            self._known.pop(job_id, None)
            if circuit.failures:
                self._counted[job_id] = circuit.failures
            else:
                self._counted.pop(job_id, None)

    def _set_try_at(self, job_id: str, wait: timedelta) -> None:
        seconds = max(wait.total_seconds(), SHORTEST_WAIT)
        self._try_at[job_id] = self._engine.clock.monotonic() + seconds


_COUNTED_STOPS = (None, StopReason.TIMEOUT)


async def _read(store: Store, jobs: Iterable[Job]) -> dict[str, Circuit]:
    """The state of each of these jobs, by its id."""
    by_id = {job.id: job for job in jobs}
    query = NoteQuery(kind=note_kinds.BREAKER, names=frozenset(by_id), limit=len(by_id))
    notes = {note.name: note for note in (await store.notes(query)).items}
    return {job_id: _circuit(notes.get(job_id), job) for job_id, job in by_id.items()}


def _circuit(note: Note | None, job: Job) -> Circuit:
    if note is None:
        return Circuit()
    # One that is damaged, or of a later version, must not hold up the claims of a worker.
    circuit = Circuit()
    with contextlib.suppress(ValidationError):
        circuit = convert(note.value, Circuit)
    if circuit.job != to_us(job.created_at):
        return Circuit(version=note.version)
    until = note.expires_at - NOTE_TTL if circuit.state == "open" and note.expires_at else None
    return replace(circuit, job=0, until=until, version=note.version)


def _write(job: Job, circuit: Circuit) -> NoteWrite:
    value: dict[str, Any] = {
        "job": to_us(job.created_at),
        "state": circuit.state,
        "failures": circuit.failures,
    }
    if circuit.trial is not None:
        value["trial"] = list(circuit.trial)
    note = Note(kind=note_kinds.BREAKER, name=job.id, value=value, version=circuit.version)
    return NoteWrite.put(note, NOTE_TTL + (_reset(job) if circuit.state == "open" else timedelta()))


def _stored(circuit: Circuit, version: int, job: Job, now: datetime) -> Circuit:
    """A state as it was written. The store set when the reset time is over; this is about then."""
    until = now + _reset(job) if circuit.state == "open" else None
    return replace(circuit, version=version, until=until)


def _reset(job: Job) -> timedelta:
    breaker = job.policy.breaker or Breaker()
    return min(duration(breaker.reset), LONGEST_RESET)
