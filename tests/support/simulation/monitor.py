"""Checks the invariants after every call of a memory store.

The monitor shares no code with the engine's decisions. It compares what the store held before and
after a call, who called, and what the store's clock says. Handlers report to it too, so that it
can compare what was recorded with what really ran.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from mainspring.core import note_kinds, transitions
from mainspring.core.clock import EPOCH, Clock
from mainspring.core.durations import duration
from mainspring.core.model import (
    FINISHED,
    LIVE,
    Attempt,
    Job,
    Note,
    Outcome,
    Run,
    Source,
    State,
    node_of,
    replace,
    slot_run_id,
)
from mainspring.core.policy import Delivery, MisfireKind, Overlap, Policy
from mainspring.core.schedules import FixedDelay, Schedule
from mainspring.core.statistics import WHOLE_STORE, Totals
from mainspring.stores.evaluation import is_claimable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, Store
from tests.support.simulation.machines import Machine

INVARIANTS = {
    "fence": "only the holder of a run, or a rescue of a lapsed lease, changes a running run",
    "rescue": "a run is rescued only when its lease has lapsed by the store's clock",
    "lease": "two workers never hold a valid lease on one run; only the holder renews it",
    "tokens": "the token grows by one with every claim, and with the retry of a run before it",
    "finished": "a finished run never changes, but for a retry that was asked for, which also lets"
    " runs wait again that were skipped because of it",
    "completion": "a run succeeds only by a handler that returned under the same token",
    "attempts": "an attempt counts if its handler began, or may have; retries are bounded",
    "cancel": "a cancel that was accepted ends the run as cancelled, whatever its handler does",
    "removed": "a run is ended as its job's removal demands only where the job is gone",
    "deadline": "a start deadline ends only a run whose handler has never begun",
    "begin": "what may begin once, or may kill its worker, is begun on record, and lost only then",
    "poison": "a lapse is held against a run only if its handler began; a killer is soon found",
    "suspects": "a run that may kill its worker begins where nothing else runs, unless it has"
    " waited for minutes",
    "fair": "jobs take turns: none gives a second run to a claim while another one has given none,"
    " and a worker's next claim goes on behind the job that had the last turn",
    "limit": "no valid lease is given beyond a concurrency limit",
    "dedupe": "a dedupe key has one holder at most",
    "rate": "no span of a rate limit's length has more claims than it allows, and starts do not"
    " come in bursts",
    "held": "a worker that is not frozen begins what it has claimed soon, or gives it back",
    "breaker": "while a breaker is open by the store's clock no attempt begins that was claimed"
    " since it opened, nor one that was waiting when as many had failed as open it; then only the"
    " trial does",
    "trial": "a breaker has one trial at a time, and one in each reset time",
    "slots": "every slot of a schedule is accounted for by exactly one record",
    "stale": "a slot fires as its job is defined then: not of a job that is paused, and with the"
    " priority that the job has",
    "delay": "a slot that counts from the end of the run before comes one interval after that end,"
    " and as long as the job is enabled, another one comes",
    "postponed": "however often versions of a job are registered, its next slot is at most the"
    " longest interval after the last one",
    "drain": "a worker that stops fires no slot that falls due from then on",
    "backfill": "a slot is backfilled once, however many clients ask for it, and how often, and"
    " however late",
    "misfire": "a missed slot runs only as the policy says",
    "leader": "two nodes never lead at once, also while one cannot reach the store",
    "paused": "no slot fires while all firing is paused, and none of those that passed fires later",
    "overlap": "slots of a job run at once only where its policy allows it",
    "order": "a waiting run is freed only by the end of all it waits for, and a run that is tried"
    " again begins only after them too",
    "followers": "a run does not stay skipped by a failure of runs that have succeeded since",
    "nodes": "a slot of an each_node job has a run for every worker that is alive, and only an"
    " earlier run for the same worker can skip it; only that worker takes it, and it is skipped as"
    " gone only if that worker did not begin it",
    "clock": "when the store's wall clock is set, leases and retries last as long as was meant,"
    " and what is due stays due",
    "early": "nothing starts before its time on the store's clock",
    "start": "a handler starts once for a token, and under a valid lease",
    "overrun": "a worker that is not frozen stops its handlers before their lease lapses",
    "alone": "no two handlers of a run at once, where no worker was frozen",
    "at most once": "an at-most-once handler starts at most once",
    "effect": "an effect-once run has its effect if it succeeded, once, and none if it did not",
    "counters": "each end of a run is counted once, for its job and for all jobs together",
    "storage": "a bucket holds what its clients did: each call once, as it was answered, and every"
    " part that the head names",
    "lost": "every accepted run is there and ends once the faults stop",
    "alive": "every worker works on, whatever the store did to it",
    "engine": "no error but the store's reaches the engine's loops",
}

MUTATORS = frozenset(
    {"add", "claim", "renew", "commit", "maintain", "put_jobs", "put_notes", "fire"}
)
TICK = timedelta(microseconds=1)
HELD = 9.0
"""Seconds that a run may be held before it begins, or its begin is recorded: the store may keep its
worker from reading its job, though not for longer than a lease."""

PATIENCE = timedelta(minutes=5)
"""How long a suspect may wait for an idle worker."""

LATE = timedelta(seconds=8)
"""What delays on the way may add to the time of a firing."""

PLAN_HELD = timedelta(seconds=5.1)
"""How long after its plan a firing may still be sent: a node may have planned before a pause."""

KNOWN = 8.0
"""Seconds that a worker must be alive before every node that fires must know of it."""

MOST_TURNS_LOST = 15
"""How many claims in a row may not know what the claim before them took."""

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"[{self.invariant}] at {self.at:.3f} s: {self.text}"


@dataclass(slots=True)
class _Handling:
    author: str
    machine: Machine
    claimed_at: float
    began_at: float


@dataclass(slots=True)
class Monitor:
    store: MemoryStore
    clock: Clock
    trace: bool = False
    lines: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    """What happened, so that a run of many seeds can show that it met every case."""
    may_revive: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    cancelled: dict[str, int] = field(default_factory=dict)
    retention: timedelta = timedelta(days=30)
    last_began: dict[str, float] = field(default_factory=dict)
    _digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    _runs: dict[str, Run] = field(default_factory=dict)
    _jobs: dict[str, Job] = field(default_factory=dict)
    _holders: dict[str, str] = field(default_factory=dict)
    _turns: dict[str, dict[int, str]] = field(default_factory=dict)
    """By worker and priority, the job of the run that its last claim took last."""
    _turns_lost: Counter[str] = field(default_factory=Counter)
    _claimed: dict[Key, float] = field(default_factory=dict)
    _leases: dict[Key, datetime] = field(default_factory=dict)
    _started: set[Key] = field(default_factory=set)
    _returned: set[Key] = field(default_factory=set)
    _active: dict[str, dict[int, _Handling]] = field(default_factory=lambda: defaultdict(dict))
    _starts: Counter[str] = field(default_factory=Counter)
    _starts_before: Counter[str] = field(default_factory=Counter)
    """Of revived runs: how often they had begun by then."""
    _stopped: Counter[str] = field(default_factory=Counter)
    _revived: Counter[str] = field(default_factory=Counter)
    _slots: dict[str, Counter[datetime]] = field(default_factory=lambda: defaultdict(Counter))
    _backfilled: dict[str, Counter[datetime]] = field(default_factory=lambda: defaultdict(Counter))
    _first: dict[str, datetime] = field(default_factory=dict)
    _edited: set[str] = field(default_factory=set)
    _draining: dict[str, datetime] = field(default_factory=dict)
    _pruned: set[str] = field(default_factory=set)
    _starts_at_rate: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _circuits: dict[str, Note] = field(default_factory=dict)
    _not_closed_since: dict[str, float] = field(default_factory=dict)
    _open_until: dict[str, float] = field(default_factory=dict)
    _trials: set[Key] = field(default_factory=set)
    _fired_on_nodes: dict[tuple[str, datetime], datetime] = field(default_factory=dict)
    _ended_trials: set[Key] = field(default_factory=set)
    """Trials whose handler has returned or raised on a machine that lives."""
    _failed_in_row: dict[tuple[str, str], set[Key]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """By worker and job: attempts that have failed since one succeeded, and are not stored yet."""
    _begun_at_rate: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _clock_set_at: float = -1.0
    _announced: dict[str, float] = field(default_factory=dict)
    """The workers that are alive by their notes, and since when."""
    _leaders: dict[str, Callable[[], bool]] = field(default_factory=dict)
    _pauses: list[tuple[datetime, datetime | None]] = field(default_factory=list)
    _ended: Counter[tuple[str, State]] = field(default_factory=Counter)
    _removed_jobs: set[str] = field(default_factory=set)
    _data: Any = None
    _set_back: timedelta = timedelta()

    # What others tell

    def observe_calls(self, author: str) -> Store:
        """The store, as one client reaches it."""
        return cast(Store, _ObservedStore(self, author))

    def note(self, who: str, what: str) -> None:
        line = f"{asyncio.get_running_loop().time():11.6f}  {who:<8} {what}"
        self._digest.update(line.encode())
        if self.trace:
            self.lines.append(line)

    def fail(self, invariant: str, text: str) -> None:
        assert invariant in INVARIANTS
        violation = Violation(invariant, text, asyncio.get_running_loop().time())
        self.note("MONITOR", str(violation))
        self.violations.append(violation)
        self.broken.set()

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())

    @property
    def runs(self) -> dict[str, Run]:
        return self._runs

    async def saw_claim(self, run_id: str, token: int) -> None:
        """Returns once the claim of a handler that is about to begin is known here."""

    def began(self, machine: Machine, author: str, run_id: str, token: int) -> None:
        """A handler has begun."""
        key = (run_id, token)
        if self.broken.is_set():
            return
        self.note(author, f"begins   {_short(run_id)} t{token}")
        self.counted["started"] += 1
        self.last_began[author] = asyncio.get_running_loop().time()
        run, now = self._runs[run_id], self.clock.now()
        if key in self._started:
            self.fail("start", f"{run_id} began twice under token {token}")
        if key not in self._claimed:
            self.fail("start", f"{run_id} began under token {token}, which nobody claimed")
            return
        handling = _Handling(author, machine, self._claimed[key], self.last_began[author])
        if not _was_frozen(handling) and self._leases[key] <= now:
            self.fail("start", f"{run_id} began {now - self._leases[key]} after its lease")
        if run.token == token and run.run_at > now:
            self.fail("early", f"{run_id} began {run.run_at - now} before its time")
        for other in self._active[run_id].values():
            if not _was_frozen(other) and not _was_frozen(handling):
                self.fail("alone", f"{run_id} began on {author} while {other.author} works on it")
        self._check_begin(run, token, author)
        self._check_breaker(run, key, author)
        self._check_held(run, handling)
        self._started.add(key)
        self._starts[run_id] += 1
        job = self._jobs.get(run.job_id)
        if job is not None and job.policy.delivery is Delivery.AT_MOST_ONCE:
            self.counted["at most once"] += 1
            if self._starts[run_id] > 1 + self._revived[run_id]:
                self.fail("at most once", f"{run_id} began {self._starts[run_id]} times")
        self._active[run_id][token] = handling

    def _check_begin(self, run: Run, token: int, author: str) -> None:
        job = self._jobs.get(run.job_id)
        once = job is not None and job.policy.delivery is Delivery.AT_MOST_ONCE
        suspect = run.lapses >= 2
        held = run.token == token and run.state is State.RUNNING
        if held and (once or suspect) and run.began is not True:
            self.fail("begin", f"{run.id} began, and that was not recorded before")
        # An earlier attempt of the same run, which lost its lease, is no neighbour: see "alone".
        beside = [
            other_id
            for other_id, handlings in self._active.items()
            for other_token, handling in handlings.items()
            if handling.author == author
            and other_id != run.id
            and (suspect or self._is_suspect(other_id, other_token))
        ]
        since = run.attempts[-1].finished_at if run.attempts else run.scheduled_at
        if beside and held and not (suspect and self.clock.now() - since > PATIENCE):
            self.fail("suspects", f"{run.id} began on {author} beside {beside}")
        self.counted["suspect began"] += suspect
        if run.job_id == "killer":
            self.counted["killer began"] += 1
            killed = self._starts[run.id] - self._stopped[run.id]
            if killed >= 4 * (1 + self._revived[run.id]):
                self.fail("poison", f"{run.id} killed {killed} workers and goes on")

    def _check_held(self, run: Run, handling: _Handling) -> None:
        held = handling.began_at - handling.claimed_at
        if held > HELD and not _was_frozen(handling) and run.began is not True:
            self.fail("held", f"{run.id} began {held} s after its claim")
        job = self._jobs.get(run.job_id)
        if job is None or (rate := job.policy.rate) is None:
            return
        begun = self._begun_at_rate[job.policy.rate_key or job.id]
        begun.append(handling.began_at)
        within = sum(at > begun[-1] - rate.span.total_seconds() for at in begun)
        # A claim may take a moment to become a start, so that those of two spans come together.
        if within > 2 * rate.count:
            self.fail("rate", f"{run.id} is the {within}th start within {rate.span}")

    def _check_breaker(self, run: Run, key: Key, author: str) -> None:
        job = self._jobs.get(run.job_id)
        failed = self._failed_in_row[author, run.job_id]
        if job is not None and job.policy.breaker is not None:
            self.counted["breaker asked"] += 1
            if len(failed) >= job.policy.breaker.failures and key not in self._trials:
                self.fail("breaker", f"{run.id} began on {author}, where {len(failed)} had failed")
        since = self._not_closed_since.get(run.job_id)
        if since is not None and key not in self._trials and self._claimed[key] > since:
            self.fail("breaker", f"{run.id} began, and its breaker is open since {since:.3f} s")

    def _observe_announcements(self) -> None:
        """Note since when each worker is alive by its own note."""
        now = self.clock.now()
        alive = {
            name
            for (kind, name), note in self.store._notes.items()
            if kind == note_kinds.WORKER and (note.expires_at is None or note.expires_at > now)
        }
        self._announced = {name: self._announced.get(name, self._moment()) for name in alive}

    def _observe_breakers(self) -> None:
        """Check what became of the breakers, by the loop's own time: the reset time lasts as long
        as was meant, whatever the clocks say."""
        for (kind, name), note in self.store._notes.items():
            if kind == "breaker" and self._circuits.get(name) != note:
                self._check_circuit(name, self._circuits.get(name), note)
                self._circuits[name] = note

    def _check_circuit(self, name: str, old: Note | None, note: Note) -> None:
        state, moment = note.value["state"], self._moment()
        before = "closed" if old is None else old.value["state"]
        if state != before:
            self.note("MONITOR", f"breaker {name} {state}")
            self.counted[f"breaker {state}"] += 1
        breaker = self._jobs[name].policy.breaker
        if state == "closed" or breaker is None:
            self._not_closed_since.pop(name, None)
            return
        self._not_closed_since.setdefault(name, moment)
        if state == "open":
            if before != "open":
                self._open_until[name] = moment + duration(breaker.reset).total_seconds()
            return
        run_id, token = note.value["trial"]
        # Somebody set the clock between the claim and the decision: it may be off by the step.
        early = self._open_until[name] - self._claimed[run_id, token]
        if before == "open" and early > 0.001 and self._clock_set_at < self._claimed[run_id, token]:
            self.fail("breaker", f"{run_id} is the trial {early} s before the reset time is over")
        if before == "closed":
            self.fail("breaker", f"{run_id} is the trial of a breaker that is closed")
        if old is not None and before == "half_open" and old.value["trial"] != [run_id, token]:
            self._check_earlier_trial(tuple(old.value["trial"]), run_id)
        self._trials.add((run_id, token))

    def _check_earlier_trial(self, trial: Key, successor: str) -> None:
        run_id, token = trial
        handling = self._active[run_id].get(token)
        held = self._leases[trial] > self.clock.now()
        if trial in self._ended_trials and held and not self._runs[run_id].cancel_requested:
            self.fail("trial", f"{successor} is the trial, and the end of {run_id} is not counted")
        if handling is None or _was_frozen(handling):
            return
        if held:
            self.fail(
                "trial", f"{successor} is the trial while {run_id} is it on {handling.author}"
            )

    def _is_suspect(self, run_id: str, token: int) -> bool:
        run = self._runs.get(run_id)
        return run is not None and run.token == token and run.lapses >= 2

    def ended(self, run_id: str, token: int, outcome: str) -> None:
        """A handler has ended: `returned`, `raised` or `stopped`."""
        handling = self._active[run_id].pop(token, None)
        if handling is None or self.broken.is_set():
            return
        self.note(handling.author, f"{outcome} {_short(run_id)} t{token}")
        self.counted[outcome] += 1
        self._stopped[run_id] += outcome == "stopped"
        key, worker = (run_id, token), (handling.author, self._runs[run_id].job_id)
        if outcome == "returned":
            self._returned.add(key)
            self._failed_in_row.pop(worker, None)
        elif outcome == "raised" and not _was_frozen(handling):
            self._failed_in_row[worker].add(key)
        if outcome != "stopped" and key in self._trials and not _was_frozen(handling):
            self._ended_trials.add(key)
        self._check_overrun(handling, (run_id, token), self.clock.now())

    def _check_overrun(self, handling: _Handling, key: Key, now: datetime) -> None:
        late = now - self._leases[key]
        if late > timedelta(milliseconds=10) and not _was_frozen(handling):
            self.fail("overrun", f"{key[0]} ran {late} beyond its lease on {handling.author}")

    def clock_set(self, by: timedelta) -> None:
        """Somebody has set the store's wall clock. Leases and retries last as long as before, and
        what was due is due: this is what the store has to make of it."""
        self.note("WORLD", f"the clock is set by {by}")
        self.counted["clock set"] += 1
        self._clock_set_at = self._moment()
        now = self.clock.now()
        before = now - by
        for run_id, run in self._runs.items():
            retry = run.state is State.PENDING and run.token > 0 and run.run_at > before
            was_due = run.state in LIVE and now < run.run_at <= before
            if retry or was_due:
                run = replace(run, run_at=run.run_at + by)
            if run.state is State.RUNNING and run.lease_until is not None:
                run = replace(run, lease_until=run.lease_until + by)
            self._runs[run_id] = run
        self._leases = {key: until + by for key, until in self._leases.items()}
        self._set_back += max(timedelta(), -by)
        self._pauses.clear()  # their times are of another reckoning

    def check_clock_set(self) -> None:
        """The store has looked at its clock since it was set."""
        for run_id, run in self.store._runs.items():
            meant = self._runs[run_id]
            if run != meant:
                found, wanted = (run.run_at, run.lease_until), (meant.run_at, meant.lease_until)
                self.fail("clock", f"{run_id} has {found} after the clock was set, not {wanted}")

    def elected(self, author: str, leads: Callable[[], bool]) -> None:
        """A node says that it leads."""
        self.counted["elected"] += 1
        self._leaders[author] = leads
        leaders = [name for name, leads in self._leaders.items() if leads()]
        if len(leaders) > 1:
            self.fail("leader", f"several nodes lead: {leaders}")

    def drains(self, author: str) -> None:
        """A worker was asked to stop."""
        self.note(author, "drains")
        self._draining[author] = self.clock.now()

    def died(self, author: str) -> None:
        """A worker was killed, and its handlers with it."""
        self.note(author, "dies")
        self._leaders.pop(author, None)
        for handlings in self._active.values():
            for token in [t for t, one in handlings.items() if one.author == author]:
                del handlings[token]

    def _moment(self) -> float:
        """When what is being looked at has happened, on the loop's clock."""
        return asyncio.get_running_loop().time()

    # After each call

    def observe(self, author: str, method: str) -> None:
        self.calls += 1
        self._observe_announcements()
        if method == "put_notes":
            self._observe_breakers()
            return
        now = self.clock.now()
        stored = self.store._runs
        changed = [
            (old, run)
            for i, run in stored.items()
            if (old := self._runs.get(i)) is not run and old != run
        ]
        joined = [run for old, run in changed if self._step(author, method, old, run, now)]
        for old, run in changed:
            if old is not None and old.state is State.RUNNING and run.state is not State.RUNNING:
                for failed in self._failed_in_row.values():
                    failed.discard((run.id, old.token))
        made = sum(old is None for old, _ in changed)
        if len(stored) != len(self._runs) + made:
            self._check_gone(method, now)
        self._check_counters([run for old, run in changed if _has_ended(old, run)])
        self._runs = dict(stored)
        self._check_effects([run for _, run in changed if run.job_id == "exact"])
        for run in joined:
            self._check_limit(run, now)
        self._check_made([run for old, run in changed if old is None], now)
        if method == "fire" and author in self._draining:
            self._check_draining(author, [run for old, run in changed if old is None])
        self._observe_jobs(author, method, now)

    def _step(self, author: str, method: str, old: Run | None, run: Run, now: datetime) -> bool:
        """Check one run's step; whether it is one more valid lease than before."""
        self.note(author, f"{method:<8} {_short(run.id)} {run.state} t{run.token}")
        if old is None:
            if method not in ("add", "fire") or run.token or run.state is State.RUNNING:
                self.fail("tokens", f"{run.id} came to be {run.state} by {method}")
            self._check_key(run, now)
            return False
        if method == "claim":
            self._check_claim(author, old, run, now)
            return True
        if run.token != old.token and not self._waits_for_retried(old, run):
            self.fail("tokens", f"{run.id}: {method} took the token {old.token} to {run.token}")
        if run.source is Source.BACKFILL and run.state is State.SKIPPED:
            self.fail("backfill", f"{run.id} was skipped: {run.reason}")
        if method == "renew":
            return self._check_renewal(author, old, run, now)
        if old.finished:
            self._check_revival(method, old, run, now)
        elif old.state is State.RUNNING:
            self._check_outcome(author, method, old, run, now)
        else:
            self._check_unstarted(old, run)
        return False

    def waiting_jobs(self, claim: Claim) -> set[tuple[int, str]]:
        """The jobs, by priority, whose due runs the claim may take whatever it has taken before."""
        now = self.clock.now()
        waiting = {
            (run.priority, run.job_id)
            for run in self.store._runs.live.values()
            if run.run_at <= now and is_claimable(run, claim)
        }
        return {
            (priority, job_id)
            for priority, job_id in waiting
            if job_id not in claim.most
            and ((job := self.store._jobs.get(job_id)) is None or not _is_limited(job))
        }

    def check_turns(
        self, author: str, claim: Claim, waiting: set[tuple[int, str]], taken: list[Run]
    ) -> None:
        """After a claim. `waiting`: the jobs that had due runs before it."""
        if last := self._turns.get(author):
            known = last.items() <= dict(claim.turns).items()  # not if the answer was lost
            self._turns_lost[author] = 0 if known else self._turns_lost[author] + 1
        if self._turns_lost[author] > MOST_TURNS_LOST:
            self.fail("fair", f"{author} claims as if no job had had a turn: {claim.turns}")
        self._turns[author] = {run.priority: run.job_id for run in taken}
        gave = Counter((run.priority, run.job_id) for run in taken)
        passed = {job for job in waiting & self.waiting_jobs(claim) if not gave[job]}
        for (priority, job_id), count in gave.items():
            left = sorted(other for at, other in passed if at == priority)
            if count > 1 and left:
                self.fail("fair", f"{author} took {count} runs of {job_id}, and none of {left}")

    def _check_claim(self, author: str, old: Run, run: Run, now: datetime) -> None:
        self.counted["claimed"] += 1
        assert run.worker is not None
        assert run.lease_until is not None
        self._holders[run.worker] = author
        if old.state is not State.PENDING:
            self.fail("lease", f"{author} claimed {run.id}, which was {old.state}")
        if node_of(run) not in (None, run.worker):
            self.fail("nodes", f"{run.worker} claimed {run.id}")
        key = (run.id, run.token)
        if run.token != old.token + 1 or key in self._claimed:
            self.fail("tokens", f"a claim of {run.id} took the token {old.token} to {run.token}")
        if run.attempt != old.attempt + 1:
            self.fail("attempts", f"a claim of {run.id} went from {old.attempt} to {run.attempt}")
        if run.run_at > now:
            self.fail("early", f"{run.id} was claimed {run.run_at - now} before its time")
        self._claimed[key] = self._moment()
        self._leases[key] = run.lease_until
        job = self._jobs.get(run.job_id)
        if job is not None and job.policy.rate is not None:
            self._check_rate(job, run)
        if job is None or not _by_slot(run) or run.id in self._revived:
            return
        if job.policy.overlap in (Overlap.SKIP, Overlap.QUEUE) and job.id not in self._edited:
            for other in self._earlier_slots(run):
                if other.state is State.RUNNING:
                    self.fail("overlap", f"{run.id} was claimed while {other.id} runs")

    def _check_rate(self, job: Job, run: Run) -> None:
        """By the loop's own time: a limit holds also when somebody sets the store's clock."""
        rate = job.policy.rate
        assert rate is not None
        starts = self._starts_at_rate[job.policy.rate_key or job.id]
        starts.append(self._moment())
        span = rate.span.total_seconds()
        within = [at for at in starts if at > starts[-1] - span + 1e-6]
        self.counted["at its rate"] += len(within) == rate.count
        if len(within) > rate.count:
            self.fail("rate", f"{run.id} is the {len(within)}th claim within {span} s")

    def _check_renewal(self, author: str, old: Run, run: Run, now: datetime) -> bool:
        assert run.lease_until is not None
        if old.state is not State.RUNNING or self._holders.get(old.worker or "") != author:
            self.fail("lease", f"{author} renewed {run.id}, {old.state} with {old.worker}")
            return False
        self._leases[run.id, run.token] = run.lease_until
        lapsed = old.lease_until is None or old.lease_until <= now
        self.counted["renewed late"] += lapsed
        return lapsed

    def _check_outcome(self, author: str, method: str, old: Run, run: Run, now: datetime) -> None:
        assert old.lease_until is not None
        mine = self._holders.get(old.worker or "") == author
        lapsed = old.lease_until <= now
        if run.state is State.RUNNING:
            began = mine and run.began is True and old.began is not None  # perhaps sent again
            if not (run.cancel_requested or began) or run.lease_until != old.lease_until:
                self.fail("fence", f"{author} changed {run.id} while it runs")
            self.counted["begin recorded" if began else "cancel requested"] += 1
            return
        last = _new_attempt(old, run)
        outcome = last.outcome if last else None
        unbegun = outcome is None and not mine and lapsed and old.began is False
        if outcome is Outcome.LOST or unbegun:
            self.counted["rescued unbegun" if unbegun else "rescued"] += 1
            if not lapsed:
                self.fail("rescue", f"{author} rescued {run.id} with a valid lease")
            self._check_blame(old, run)
        elif not mine:
            self.fail("fence", f"{author} ended {run.id}, held by {old.worker}, as {run.state}")
        if run.reason == "job removed" and self._has_job(run):
            self.fail("removed", f"{run.id} was cancelled, but its job {run.job_id} is there")
        if old.cancel_requested and run.state is not State.CANCELLED:
            self.fail("cancel", f"{run.id} was to be cancelled and is {run.state}")
        self._check_verdict(old, run, outcome)

    def _has_job(self, run: Run) -> bool:
        """Whether the job that made a run is there: not another one that took its id since."""
        job = self.store._jobs.get(run.job_id)
        return job is not None and job.created_at <= run.created_at

    def _check_blame(self, old: Run, run: Run) -> None:
        # A begin that is on record may not have come to pass: the worker died in between.
        began = old.began is True or (run.id, run.token) in self._started
        if old.lapses >= 2 and run.lapses > old.lapses and not began:
            self.fail("poison", f"a lapse is held against {run.id}, which did not begin")
        if run.reason in ("poison", "lapsed") and run.state is State.FAILED:
            self.counted["poison"] += 1
            if run.lapses < 4:
                self.fail("poison", f"{run.id} is poison after {run.lapses} lapses")
        job = self._jobs.get(run.job_id)
        untouched = job is not None and job.updated_at == job.created_at
        records = node_of(run) is None or (job and job.policy.delivery is Delivery.AT_MOST_ONCE)
        if untouched and records and run.reason == "lost" and old.began is False:
            self.fail("begin", f"{run.id} is lost, and there is no record that it began")

    def _check_verdict(self, old: Run, run: Run, outcome: Outcome | None) -> None:
        key = (run.id, run.token)
        self.counted[f"outcome {outcome}"] += 1
        if run.state is State.SUCCEEDED and (
            key not in self._returned or outcome is not Outcome.SUCCEEDED
        ):
            self.fail("completion", f"{run.id} succeeded, but no handler returned under its token")
        if outcome is Outcome.RELEASED and run.state is State.SUCCEEDED:
            self.fail("completion", f"{run.id} was given back and counted as done")
        if run.attempt != old.attempt - (outcome is None):
            self.fail("attempts", f"{run.id} went from attempt {old.attempt} to {run.attempt}")
        if outcome is None and key in self._started:
            self.fail("attempts", f"{run.id} had begun, and its attempt was not counted")
        if run.reason == "expired" and self._starts[run.id] > self._starts_before[run.id]:
            self.fail("deadline", f"{run.id} is skipped as too late, but had begun")
        failed = outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
        if failed and key not in self._started:
            self.fail("attempts", f"{run.id} failed, but no handler had begun")
        if run.failures != old.failures + (failed or _lost_once(run, outcome)):
            self.fail("attempts", f"{run.id} went from {old.failures} to {run.failures} failures")
        job = self._jobs.get(run.job_id)
        if job and run.state is State.PENDING and run.failures > job.policy.retries:
            self.fail("attempts", f"{run.id} is tried again after {run.failures} failures")

    def _check_revival(self, method: str, old: Run, run: Run, now: datetime) -> None:
        if old.reason == transitions.UPSTREAM_FAILED and run.state is State.WAITING:
            if method != "commit" or not self._follows_retried(run):
                self.fail("finished", f"{run.id} waits again, and nothing before it was retried")
            self.counted["waits again"] += 1
            self._check_key(run, now)
            return
        asked = run.id in self.may_revive and method == "commit"
        ends = (State.FAILED, State.CANCELLED)
        tried = old.state in ends and run.state in (State.PENDING, State.WAITING)
        if not asked or not tried:
            self.fail("finished", f"{run.id} was {old.state}; {method} made it {run.state}")
        self.counted["revived"] += 1
        if run.state is State.PENDING:
            self._check_order(run)
        else:
            self.counted["revived, waits"] += 1
        self._revived[run.id] += 1
        self._starts_before[run.id] = self._starts[run.id]
        self._check_key(run, now)

    def _follows_retried(self, run: Run) -> bool:
        """Whether a retry was asked for of a run that it comes after, directly or not."""
        seen: set[str] = set()
        left = list(run.after)
        while left:
            name = left.pop()
            if name in self.may_revive:
                return True
            if name in self._runs and name not in seen:
                seen.add(name)
                left += self._runs[name].after
        return False

    def _waits_for_retried(self, old: Run, run: Run) -> bool:
        """Whether the step is that of a follower of a run that is tried again."""
        if old.state in (State.FAILED, State.CANCELLED):  # or the step of one that is tried again
            return run.state is State.WAITING and run.token == old.token + 1
        fits = old.state in (State.WAITING, State.SKIPPED) and run.state is State.WAITING
        # A queued slot may have been let wait for an earlier one since the retry read it.
        follows = _by_slot(run) or self._follows_retried(run)
        return fits and run.token == old.token + 1 and follows

    def _check_unstarted(self, old: Run, run: Run) -> None:
        if old.state is run.state is State.WAITING and self._waits_for_retried(old, run):
            self.counted["fenced follower"] += 1
            return
        if old.state is run.state is State.WAITING and _by_slot(run) and run.after != old.after:
            self.counted["queued behind an earlier slot"] += 1
            return
        if run.finished and self._check_gone_node(old, run):
            return
        if run.state in (State.CANCELLED, State.SKIPPED):
            return
        if old.state is not State.WAITING or run.state is not State.PENDING:
            self.fail("fence", f"{run.id} went from {old.state} to {run.state}")
        self._check_order(run)
        if _by_slot(run) and run.id not in self._revived and run.job_id not in self._edited:
            # It names the newest slot before it only, and that one the slot before.
            for earlier in self._earlier_slots(run):
                self.fail("order", f"{run.id} was freed while {earlier.id} is {earlier.state}")

    def _check_order(self, run: Run) -> None:
        """A run may start from now on: those that it comes after have ended as it demands."""
        upstream = [self._runs[name] for name in run.after if name in self._runs]
        if any(run.id in self.may_revive for run in upstream):
            return
        for one in upstream:
            if not one.finished or not (run.after_any or one.state is State.SUCCEEDED):
                self.fail("order", f"{run.id} was freed while {one.id} is {one.state}")

    def _check_gone_node(self, old: Run, run: Run) -> bool:
        """Check the end of a run whose worker is gone; whether it is one."""
        if node_of(run) is None or run.state is State.CANCELLED:
            return False
        began = self._starts[run.id] > self._starts_before[run.id]
        self.counted[f"node gone {run.state}"] += 1
        if began and run.state is State.SKIPPED and run.reason == transitions.NODE_GONE:
            self.fail("nodes", f"{run.id} is skipped ({run.reason}), but had begun")
        return True

    def _check_gone(self, method: str, now: datetime) -> None:
        for run_id in self._runs.keys() - self.store._runs.keys():
            run = self._runs[run_id]
            self._pruned.add(run_id)
            self.counted["pruned"] += 1
            old = (
                run.finished_at is not None
                and run.finished_at < now - self.retention + LATE + self._set_back
            )
            if method != "maintain" or not run.finished or not old:
                self.fail("lost", f"{run_id}, {run.state}, was deleted by {method}")
            for other in self.store._runs.values():
                if not other.finished and run_id in other.after:
                    self.fail("lost", f"{run_id} was deleted, and {other.id} comes after it")

    def _check_limit(self, run: Run, now: datetime) -> None:
        job = self._jobs.get(run.job_id)
        if job is None or job.policy.concurrency is None:
            return
        name = _limit_key(job.policy)
        valid = [
            other.id
            for other in self._runs.values()
            if other.state is State.RUNNING
            and other.lease_until
            and other.lease_until > now
            and (owner := self._jobs.get(other.job_id)) is not None
            and (_limit_key(owner.policy) == name if name else owner.id == job.id)
        ]
        self.counted["at its limit"] += len(valid) == job.policy.concurrency
        if len(valid) > job.policy.concurrency:
            self.fail("limit", f"{len(valid)} of {job.policy.concurrency} of {name or job.id} run")

    def _check_effects(self, changed: list[Run]) -> None:
        data = self.store.data
        for run in changed:
            if data.get(run.id, 0) != (run.state is State.SUCCEEDED):
                self.fail("effect", f"{run.id} is {run.state} with {data.get(run.id, 0)} effects")
        if data is self._data:
            return
        self._data = data
        for run_id, count in data.items():
            kept = self._runs.get(run_id)
            if count != 1 or (kept is not None and kept.state is not State.SUCCEEDED):
                self.fail("effect", f"{run_id} has {count} effects, and is {kept and kept.state}")
        self.counted["effects"] = len(data)

    def _check_counters(self, ended: list[Run]) -> None:
        self._removed_jobs |= self._jobs.keys() - self.store._jobs.keys()
        for run in ended:
            for name in (run.job_id, WHOLE_STORE):
                self._ended[name, run.state] += 1
        names = frozenset({WHOLE_STORE, *(run.job_id for run in ended)} - self._removed_jobs)
        totals = self.store._counters.counts((), EPOCH, jobs=names).totals
        for name in sorted(names):
            counted = totals.get(name, Totals())
            seen = {state: self._ended[name, state] for state in FINISHED}
            kept = {state: counted.ended.get(state, 0) for state in FINISHED}
            if kept != seen:
                what = f"job {name}" if name else "all jobs"
                self.fail("counters", f"{what}: counted {kept}, but its runs ended {seen}")

    def _check_key(self, run: Run, now: datetime) -> None:
        if run.dedupe_key is None:
            return
        for other in self.store._runs.values():
            held = other.state in LIVE or (other.dedupe_until or now) > now
            if other.id != run.id and other.dedupe_key == run.dedupe_key and held:
                self.fail("dedupe", f"{run.id} and {other.id} both hold {run.dedupe_key!r}")

    def _check_draining(self, author: str, made: list[Run]) -> None:
        for run in made:
            if _by_slot(run) and run.scheduled_at > self._draining[author]:
                self.fail("drain", f"{author} fired {run.id} though it is about to stop")

    def _check_made(self, made: list[Run], now: datetime) -> None:
        fired: Counter[str] = Counter()
        on_nodes: dict[tuple[str, datetime], set[str]] = defaultdict(set)
        for run in made:
            self.counted[
                f"made {run.state} {(run.reason or '').partition(' by ')[0]}".rstrip()
            ] += 1
            if run.source is Source.BACKFILL and run.id not in self._pruned:
                self._check_backfill(run)
            job = self.store._jobs.get(run.job_id)
            if job is None or not _by_slot(run):
                continue
            if isinstance(job.schedule, FixedDelay) and run.reason != "paused":
                self._check_delay(job.schedule, run)
            first_of_slot = True
            if (node := node_of(run)) is not None:
                slot_key = (job.id, run.scheduled_at)
                on_nodes[slot_key].add(node)
                # All runs of a slot are made at once.
                first_of_slot = self._fired_on_nodes.get(slot_key) != run.created_at
                self._fired_on_nodes[slot_key] = run.created_at
            for slot in _covered(run, job.schedule) if first_of_slot else ():
                self._slots[job.id][slot] += 1
                if self._slots[job.id][slot] > 1:
                    self.fail("slots", f"the slot {slot} of {job.id} fired twice")
            if run.state is not State.SKIPPED:
                fired[job.id] += first_of_slot
                self._check_paused(run, now)
                if run.priority != job.policy.priority:
                    self.fail("stale", f"{run.id} does not have the priority of its job")
                self._check_misfire(job, run, fired[job.id], now)
                self._check_overlap(job, run)
            elif node is not None and run.reason == "overlap":
                earlier = [self._runs[name] for name in run.result["unfinished"]]
                if any(other.handler != run.handler for other in earlier):
                    self.fail("nodes", f"{run.id} is skipped by {run.result}")
        for (job_id, slot), nodes in on_nodes.items():
            self.counted["slots on nodes"] += 1
            known = [n for n, since in self._announced.items() if since < self._moment() - KNOWN]
            if left_out := set(known) - nodes:
                self.fail("nodes", f"the slot {slot} of {job_id} has no run for {left_out}")

    def _check_delay(self, schedule: FixedDelay, run: Run) -> None:
        self.counted["delayed slots"] += 1
        earlier = [other for other in self._earlier_runs(run) if other.id not in self._revived]
        for other in earlier:
            if other.finished_at is None:
                self.fail("delay", f"{run.id} was made while {other.id} is {other.state}")
            elif not self._set_back and run.scheduled_at - other.finished_at < schedule.interval:
                self.fail("delay", f"{run.id} comes too soon after {other.finished_at}")

    def _check_backfill(self, run: Run) -> None:
        seen = self._backfilled[run.job_id]
        seen[run.scheduled_at] += 1
        if seen[run.scheduled_at] > 1:
            self.fail("backfill", f"{run.id} is another run of the slot {run.scheduled_at}")

    def check_backfilled(self, job_id: str, slots: int) -> None:
        """Clients were told that so many slots of the job are backfilled."""
        self.counted["backfilled"] += len(self._backfilled[job_id])
        if len(self._backfilled[job_id]) != slots and not self.broken.is_set():
            self.fail("backfill", f"{len(self._backfilled[job_id])} of {slots} slots have a run")

    def paused(self, begin: datetime) -> None:
        """A client was told that all firing is paused since then."""
        self.note("client", "pauses all firing")
        self.counted["all paused"] += 1
        self._pauses.append((begin, None))

    def resumed(self, end: datetime) -> None:
        """A client is about to resume firing: the pause lasted at least until then."""
        if self._pauses and self._pauses[-1][1] is None:
            self.note("client", "resumes all firing")
            self._pauses[-1] = (self._pauses[-1][0], end)

    def _check_paused(self, run: Run, now: datetime) -> None:
        for begin, end in self._pauses:
            passed = begin < run.scheduled_at and (end is None or run.scheduled_at < end)
            if passed and now > begin + PLAN_HELD:
                self.fail("paused", f"{run.id} was fired at {now}, paused {begin} to {end}")

    def _check_misfire(self, job: Job, run: Run, fired: int, now: datetime) -> None:
        misfire = job.policy.misfire
        most = misfire.limit if misfire.kind is MisfireKind.ALL else 1
        if fired > most:
            self.fail("misfire", f"{fired} slots of {job.id} fired at once, at most {most} may")
        late = now - run.scheduled_at
        if misfire.kind is MisfireKind.SKIP and late > duration(misfire.grace) + LATE:
            self.fail("misfire", f"{run.id} was made {late} late; the job skips missed slots")

    def _check_overlap(self, job: Job, run: Run) -> None:
        earlier = self._earlier_slots(run)
        if not earlier or job.id in self._edited:
            return
        allowed = {
            Overlap.ALLOW: True,
            Overlap.SKIP: run.state is State.WAITING,
            Overlap.QUEUE: run.state is State.WAITING,
            Overlap.REPLACE: all(one.cancel_requested for one in earlier),
        }
        if not allowed[job.policy.overlap]:
            self.fail("overlap", f"{run.id} was made while {earlier[0].id} is {earlier[0].state}")

    def _earlier_slots(self, run: Run) -> list[Run]:
        return [
            other
            for other in self._earlier_runs(run)
            if other.state in LIVE and other.id not in self._revived
        ]

    def _earlier_runs(self, run: Run) -> list[Run]:
        return [
            other
            for other in self.store._runs.values()
            if other.job_id == run.job_id
            and other.id != run.id
            and _by_slot(other)
            and other.scheduled_at < run.scheduled_at
            and (node_of(run) is None or other.handler == run.handler)
        ]

    def _observe_jobs(self, author: str, method: str, now: datetime) -> None:
        stored = self.store._jobs
        for job_id, job in stored.items():
            old = self._jobs.get(job_id)
            if old is not job:
                self.note(author, f"{method:<8} {job_id} v{job.version} {job.next_run_at}")
                self._check_job(method, old, job)
        for job_id in self._jobs.keys() - stored.keys():
            self._edited.add(job_id)
        self._jobs = dict(stored)

    def _check_job(self, method: str, old: Job | None, job: Job) -> None:
        if old is None:
            if job.next_run_at is not None and job.id not in self._edited:
                self._first[job.id] = job.next_run_at
        elif method == "fire":
            self._check_advance(old, job)
        elif old.schedule == job.schedule and old.enabled == job.enabled:
            moved = job.schedule is None or not job.schedule.after_end
            if moved and old.next_run_at != job.next_run_at:
                self.fail("slots", f"an edit moved {job.id} from {old.next_run_at}")
        else:
            self._edited.add(job.id)
            self._check_reschedule(old, job)

    def _check_reschedule(self, old: Job, job: Job) -> None:
        slot, kept = job.next_run_at, old.next_run_at
        if job.schedule and job.schedule.after_end:
            return
        if slot and slot != kept and job.schedule and job.schedule.previous(slot + TICK) != slot:
            self.fail("slots", f"{job.id} waits for {slot}, which is no slot of its schedule")
        if job.id == "rolling" and kept and slot:
            longest = (old.last_run_at or old.created_at) + timedelta(seconds=5)
            if slot > max(kept, longest, job.updated_at + TICK):
                self.fail("postponed", f"{job.id} was registered: its slot {kept} became {slot}")

    def _check_advance(self, old: Job, job: Job) -> None:
        if not old.enabled:
            self.fail("stale", f"{job.id} fired though it is paused")
        if old.schedule is None or old.next_run_at is None:
            self.fail("slots", f"{job.id} fired without a schedule")
            return
        if old.schedule.after_end:
            return
        for slot in _slots_between(old.schedule, old.next_run_at, job.next_run_at):
            if not self._slots[job.id][slot]:
                self.fail("slots", f"{job.id} went past its slot {slot} without a record of it")

    # At the end

    def unfinished(self) -> list[Run]:
        return [run for run in self._runs.values() if not run.finished]

    def left_behind(self) -> list[Run]:
        """Runs that are skipped by a failure, though all that they come after has succeeded."""
        return [
            run
            for run in self._runs.values()
            if run.state is State.SKIPPED
            and run.reason == transitions.UPSTREAM_FAILED
            and all(
                name in self._runs and self._runs[name].state is State.SUCCEEDED
                for name in run.after
            )
        ]

    def check_slots(self) -> None:
        """Faults have stopped, and late firings had the time to come."""
        for job in self._jobs.values():
            self._check_all_slots(job, self.clock.now())

    def check_end(self) -> None:
        """Faults have stopped, and everything has had the time to end."""
        for run in self.unfinished():
            self.fail("lost", f"{run.id} is still {run.state} ({run.reason}), due {run.run_at}")
        for run_id in sorted(self.acknowledged - self._runs.keys() - self._pruned):
            self.fail("lost", f"{run_id} was accepted and is not there")
        for run in self.left_behind():
            self.fail("followers", f"{run.id} is skipped, and {run.after} succeeded")
        for run_id, revived in self.cancelled.items():
            kept = self._runs.get(run_id)
            if kept and self._revived[run_id] == revived and kept.state is not State.CANCELLED:
                self.fail("cancel", f"the cancel of {run_id} was accepted; it is {kept.state}")

    def revivals(self, run_id: str) -> int:
        return self._revived[run_id]

    def _check_all_slots(self, job: Job, now: datetime) -> None:
        """The whole window at once, against what the schedule says by itself."""
        first = self._first.get(job.id)
        if job.schedule is not None and job.schedule.after_end:
            if job.enabled and (job.next_run_at is None or job.next_run_at < now - LATE):
                self.fail("delay", f"{job.id} waits for {job.next_run_at}, and it is {now}")
            return
        if job.schedule is None or first is None or job.id in self._edited:
            return
        due = list(_slots_between(job.schedule, first, None, now - LATE))
        self.counted["slots"] += len(due)
        seen = self._slots[job.id]
        for slot in due:
            if seen[slot] != 1:
                self.fail("slots", f"the slot {slot} of {job.id} has {seen[slot]} records")
        for slot in seen:
            if job.schedule.previous(slot + TICK) != slot:
                self.fail("slots", f"{slot_run_id(job.id, slot)} is no slot of {job.id}")


class Proxy:
    """An object, some of whose methods go through others."""

    def __init__(self, inner: Any, **through: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._through = through

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._through[name](found) if name in self._through else found


class _ObservedStore:
    """The store with the monitor behind it. What a call did is looked at also when it failed."""

    def __init__(self, monitor: Monitor, author: str) -> None:
        self._monitor = monitor
        self._author = author

    def __getattr__(self, name: str) -> Callable[..., Any]:
        work = getattr(self._monitor.store, name)
        if name == "transaction":
            return lambda *held, **how: Proxy(work(*held, **how), commit=self._watched)
        if name not in MUTATORS:
            return cast(Callable[..., Any], work)
        return self._watched(work, name)

    def _watched(self, work: Callable[..., Any], name: str = "commit") -> Callable[..., Any]:
        monitor, author = self._monitor, self._author

        async def watched(*args: Any, **options: Any) -> Any:
            waiting = monitor.waiting_jobs(args[0]) if name == "claim" else set()
            try:
                answer = await work(*args, **options)
                if name == "claim" and not monitor.broken.is_set():
                    monitor.check_turns(author, args[0], waiting, answer.runs)
                return answer
            finally:
                if not monitor.broken.is_set():
                    try:
                        monitor.observe(author, name)
                    except Exception as error:
                        monitor.fail("engine", f"the monitor itself failed: {error!r}")
                        raise

        return watched


def _is_limited(job: Job) -> bool:
    return job.policy.concurrency is not None or job.policy.rate is not None


def _was_frozen(handling: _Handling) -> bool:
    """Whether its machine stood still at any time since it claimed: nothing helps then."""
    return handling.machine.frozen or handling.machine.thawed_at >= handling.claimed_at


def _has_ended(old: Run | None, run: Run) -> bool:
    return run.finished and (old is None or not old.finished)


def _by_slot(run: Run) -> bool:
    return run.source is Source.SCHEDULE


def _new_attempt(old: Run, run: Run) -> Attempt | None:
    return run.attempts[-1] if run.attempts[-1:] != old.attempts[-1:] else None


def _lost_once(run: Run, outcome: Outcome | None) -> bool:
    """A drained at-most-once run is a failure that no handler made."""
    return outcome is Outcome.RELEASED and run.state is State.FAILED


def _covered(run: Run, schedule: Schedule | None) -> Iterator[datetime]:
    """The slots that a record speaks for: its own, or those of a gap."""
    if run.reason not in ("misfire", "paused", "job paused"):
        yield run.scheduled_at
        return
    assert schedule is not None
    yield from _slots_between(schedule, run.result["first"], None, run.result["last"])


def _slots_between(
    schedule: Schedule, first: datetime, stop: datetime | None, last: datetime | None = None
) -> Iterator[datetime]:
    slot: datetime | None = first
    while slot is not None and slot != stop and (stop is None or slot < stop):
        if last is not None and slot > last:
            return
        yield slot
        slot = schedule.next(slot)


def _short(run_id: str) -> str:
    """A run's id for the log. It is the same in every process, also where it names a worker."""
    return _WORKER.sub("@", run_id) if "@" in run_id else run_id[-6:]


_WORKER = re.compile(r"@[^@:]+:\d+:[0-9a-f]{4}")


def _limit_key(policy: Policy) -> str | None:
    """What `concurrency` counts over, where it is not the job itself."""
    return policy.concurrency_key if policy.concurrency is not None else None
