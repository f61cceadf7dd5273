"""Bugs planted on purpose. The simulation must find each one by the invariant that is meant for it.

A simulation that never fails proves nothing. Most of these bugs occurred in other schedulers.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from mainspring.core import job_updates, overlap, transitions
from mainspring.core.model import Run, State, replace, slot_run_id
from mainspring.core.policy import Delivery
from mainspring.core.transitions import Change
from mainspring.engine import (
    backfill,
    breakers,
    follower_releaser,
    outcome,
    run_operations,
    slot_firer,
    slots,
    worker,
)
from mainspring.engine.breakers import Breakers
from mainspring.engine.completer import Completer, Queued
from mainspring.engine.context import EngineContext
from mainspring.engine.engine import Engine
from mainspring.engine.firing_pause import FiringPause
from mainspring.engine.follower_releaser import FollowerReleaser
from mainspring.engine.handler_transaction import RunTransaction
from mainspring.engine.job_cache import JobCache
from mainspring.engine.leader import Leader
from mainspring.engine.leases import Leases
from mainspring.engine.live_workers import LiveWorkers
from mainspring.engine.rescuer import Rescuer
from mainspring.engine.store_retry import RetryingStore
from mainspring.engine.worker import Worker
from mainspring.errors import StoreUnavailable
from mainspring.stores import evaluation, limits, memory
from mainspring.stores.limits import Turns
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import (
    Added,
    Claim,
    Claimed,
    Fired,
    Firing,
    Held,
    JobQuery,
    Renewed,
    RunQuery,
)
from tests.support.simulation.monitor import Proxy
from tests.support.simulation.scenario import MakeStore, Report, simulate

MOST_SEEDS = 250
Patches = list[AbstractContextManager[Any]]


@dataclass(frozen=True)
class Planted:
    name: str
    description: str
    caught_by: frozenset[str]
    make_store: MakeStore = MemoryStore
    patches: Callable[[], Patches] = list
    stress: bool = False
    """Whether it takes the harder world to show itself soon."""
    focus: str | None = None
    """The job that shows it, if that is rare otherwise."""
    calm: bool = True
    """Whether it can show itself after the faults have stopped; if not, the hunt skips that."""
    first_seed: int = 0
    """The seed that found it last. The hunt begins there, which saves the seeds before it."""


def hunt(bug: Planted, most: int = MOST_SEEDS) -> Report | None:
    """Run seeds with the bug planted until one of them fails. Returns None after `most` seeds."""
    with contextlib.ExitStack() as stack:
        _apply(stack, bug)
        for seed in range(bug.first_seed, bug.first_seed + most):
            report = simulate(
                seed,
                make_store=bug.make_store,
                stress=bug.stress,
                focus=bug.focus,
                calm=bug.calm,
            )
            if report.violations:
                _collect_broken_tasks()
                return report
    return None


def _collect_broken_tasks() -> None:
    """A broken story leaves tasks behind that fail as they are closed, without a loop. Python
    reports them when they are collected, and 3.11 cannot do that while it parses a module."""
    reports, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = reports


def _apply(stack: ExitStack, bug: Planted) -> None:
    for one in bug.patches():
        stack.enter_context(one)


def _let_others_run() -> Any:
    """Where another client gets in between."""
    return asyncio.sleep(0.05)


# Stores with a fault


class NoFence(MemoryStore):
    def _commit(self, change: Change, now: datetime) -> bool:
        return super()._commit(replace(change, expect={}), now)


class SameToken(MemoryStore):
    async def claim(self, claim: Claim) -> Claimed:
        claimed = await super().claim(claim)
        taken = [replace(run, token=run.token - 1) for run in claimed.runs]
        self._runs.update((run.id, run) for run in taken)
        return replace(claimed, runs=taken)


class CountThenClaim(MemoryStore):
    async def claim(self, claim: Claim) -> Claimed:
        counted = self._used_capacity(self._clock.now())
        await _let_others_run()
        with patch.object(self, "_used_capacity", lambda now: counted):
            return await super().claim(claim)


class ClaimsEarly(MemoryStore):
    """Takes what is about to fall due, to be quick."""

    async def claim(self, claim: Claim) -> Claimed:
        now = self._clock.now()
        soon = now + timedelta(seconds=1)
        early = {run.id: run for run in self._runs.values() if now < run.run_at <= soon}
        for run in early.values():
            self._runs[run.id] = replace(run, run_at=now)
        claimed = await super().claim(claim)
        for run in early.values():
            self._runs[run.id] = replace(self._runs[run.id], run_at=run.run_at)
        return claimed


class AdvanceThenAdd(MemoryStore):
    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        counted = copy.deepcopy(self._counters)
        fired = await super().fire(firings)
        if _is_unlucky(firings):
            for one in fired:
                for run in one.runs:
                    self._runs.pop(run.id, None)
            self._counters = counted
            raise StoreUnavailable("the process died between the advance and the run")
        return fired


class RandomSlotIds(MemoryStore):
    """Adds the run first, which is right, but under a name of its own, which is not."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self._rng = random.Random(1)

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        named = []
        for firing in firings:
            root = replace(firing.runs[0], id=f"{firing.job_id}@{self._rng.getrandbits(64):x}")
            named.append(replace(firing, runs=(root, *firing.runs[1:])))
        jobs = dict(self._jobs)
        fired = await super().fire(named)
        if _is_unlucky(firings):
            self._jobs.update(jobs)
            raise StoreUnavailable("the process died between the run and the advance")
        return fired


class LooseChain(MemoryStore):
    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        return [one for firing in firings for one in await super(LooseChain, self).fire([firing])]


class FiresOldPlans(MemoryStore):
    """Fires a job as it was planned, though it was edited, paused, made anew or fired since."""

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        planned: dict[str, int] = {}
        for firing in firings:
            planned.setdefault(firing.job_id, firing.version)
        behind = {name: job.version - planned[name] for name, job in self._jobs.items()
                  if name in planned}  # fmt: skip
        moved = [replace(f, version=f.version + behind.get(f.job_id, 0)) for f in firings]
        return await super().fire(moved)


class KeyCheckedBefore(MemoryStore):
    async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
        now = self._clock.now()
        held = {run.id: self._holder(run.dedupe_key, now) for run in runs}
        await _let_others_run()
        with patch.object(self, "_holder", lambda key, now: None):
            added = await super().add([run for run in runs if held[run.id] is None])
        fresh = iter(added)
        return [
            next(fresh) if (holder := held[run.id]) is None else Added(holder, duplicate=True)
            for run in runs
        ]


class RenewByIdAlone(MemoryStore):
    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        mine = [replace(item, token=run.token) for item in held if (run := self._runs.get(item.id))]
        return await super().renew(mine, lease)


class RenewBeyondLimit(MemoryStore):
    def _has_capacity(self, run: Run, now: datetime) -> bool:
        return True


class LeasesByWallClock(MemoryStore):
    """Whoever sets the clock forward ends every lease."""

    def _follow_clock_step(self, step: timedelta) -> None:
        """Nothing is allowed for."""


class CountsAgain(MemoryStore):
    """Counts a change again when it is sent again after its answer was lost."""

    def _commit(self, change: Change, now: datetime) -> bool:
        if self._last_change.get(change.id) == change.change_id:
            self._counters.count(change.ending, now)
        return super()._commit(change, now)


class EffectFirst(MemoryStore):
    """Keeps what a handler wrote, and records the completion a moment later."""

    def transaction(self, held: Held, limit: timedelta, *, blocking: bool = False) -> Any:
        right = super().transaction(held, limit, blocking=blocking)

        async def commit(change: Change) -> bool:
            self.data = deepcopy(right._session)
            await _let_others_run()
            return (await MemoryStore.commit(self, [change]))[0]

        return Proxy(right, commit=lambda _: commit)


class EffectUnfenced(MemoryStore):
    """Keeps what a handler wrote, whether or not its run is still its own."""

    def transaction(self, held: Held, limit: timedelta, *, blocking: bool = False) -> Any:
        right = super().transaction(held, limit, blocking=blocking)

        async def commit(change: Change) -> bool:
            self.data = deepcopy(right._session)
            return (await MemoryStore.commit(self, [change]))[0]

        return Proxy(right, commit=lambda _: commit)


def _is_unlucky(firings: Sequence[Firing]) -> bool:
    return bool(firings) and firings[0].version % 3 == 0


# Transitions and loops with a fault


def _patched(target: Any, name: str, wrong: Any) -> Callable[[], Patches]:
    return lambda: [patch.object(target, name, wrong)]


def _in_place_of(target: Any, name: str) -> Callable[[Any], Callable[[], Patches]]:
    """Decorates a function that takes the place of another."""
    return lambda wrong: _patched(target, name, wrong)


def _around(target: Any, name: str) -> Callable[[Any], Callable[[], Patches]]:
    """The same, for a function that takes the right one as its first argument."""
    right = getattr(target, name)
    return lambda wrong: _patched(target, name, lambda *a, **how: wrong(right, *a, **how))


def _returning(value: Any) -> Callable[..., Any]:
    """A coroutine function that does nothing but return this."""

    async def wrong(*_: Any, **__: Any) -> Any:
        return value

    return wrong


def _without(name: str, *fields: str) -> Callable[[], Patches]:
    """A transition that does not expect these fields to stand."""
    right = getattr(transitions, name)

    def wrong(*args: Any, **options: Any) -> Change:
        change: Change = right(*args, **options)
        expect = {key: value for key, value in change.expect.items() if key not in fields}
        return replace(change, expect=expect)

    return lambda: [patch.object(transitions, name, wrong)]


def _also_sets(name: str, **values: Any) -> Callable[[], Patches]:
    """A transition that writes more than it should."""
    right = getattr(transitions, name)

    def wrong(*args: Any, **options: Any) -> Change:
        change: Change = right(*args, **options)
        return replace(change, set={**change.set, **values})

    return lambda: [patch.object(transitions, name, wrong)]


@_in_place_of(evaluation, "has_lapsed")
def _rescued_by_age(run: Run, now: datetime) -> bool:
    began = run.started_at
    return run.state is State.RUNNING and began is not None and now - began > timedelta(0, 3)


@_in_place_of(Rescuer, "rescue_lapsed")
async def _rescued_by_own_clock(self: Rescuer) -> None:
    engine = self._engine
    running = await engine.store.find(RunQuery(states=frozenset({State.RUNNING}), limit=1000))
    now = engine.clock.now()
    lapsed = [run for run in running.items if run.lease_until and run.lease_until <= now]
    jobs = await engine.jobs.get({run.job_id for run in lapsed})
    policies = [job.policy if (job := jobs.get(run.job_id)) else None for run in lapsed]
    deliveries = [one.delivery if one else Delivery.AT_LEAST_ONCE for one in policies]
    changes = [
        transitions.rescued(run, now, delivery)
        for run, delivery in zip(lapsed, deliveries, strict=True)
    ]
    await engine.change_runs(lapsed, changes)


@_around(transitions, "rescued")
def _rescued_as_any(right: Any, run: Run, now: datetime, delivery: Delivery, **how: Any) -> Any:
    return right(run, now, Delivery.AT_LEAST_ONCE, **how)


_bystanders_blamed = _patched(transitions, "never_began", lambda run, job: False)


@_around(transitions, "rescued")
def _killers_at_large(right: Any, run: Run, now: datetime, delivery: Delivery, **how: Any) -> Any:
    return right(run, now, delivery, **how | {"blameless": run.lapses >= 2})


_suspects_in_company = _patched(worker, "SUSPECT_PATIENCE", timedelta(0))

_others_beside_suspects = _patched(Worker, "_runs_alone", lambda self: False)


def _suspects_wait_for_ever() -> Patches:
    return [
        patch.object(worker, "SHORTEST_SUSPECT_SNOOZE", timedelta(hours=1)),
        patch.object(worker, "LONGEST_SUSPECT_SNOOZE", timedelta(hours=1)),
    ]


def _claims_far_ahead() -> Patches:
    """Claims a hundred runs ahead of its capacity, also of jobs with limits, and keeps them."""
    right = Worker._make_claim

    def make_claim(self: Worker, free: int, ahead: int, excluded: Any) -> Claim:
        return replace(right(self, free, 0, excluded), limit=100)

    return [
        patch.object(Worker, "_make_claim", make_claim),
        patch.object(Worker, "_give_back_waiting", lambda self: None),
        patch.object(worker, "LONGEST_WAIT", 1e9),
    ]


@_in_place_of(Completer, "record_begin")
def _begins_unrecorded(self: Completer, attempt: Any, recorded: Callable[[bool], None]) -> None:
    self._queue(Queued(transitions.began(attempt.run), lambda kept: None))
    asyncio.get_running_loop().call_soon(recorded, True)


@_around(transitions, "began")
def _deadline_kept(right: Any, run: Run) -> Any:
    return replace(right(run), set={"began": True})


def _given_again_though_begun() -> Patches:
    def never_began(run: Run, job: Any) -> bool:
        return job is not None and transitions.records_begin(run, job)

    return [
        patch.object(transitions, "never_began", never_began),
        *_without("rescued", "began")(),
    ]


@_in_place_of(transitions, "_mine")
def _cancel_overwritten(run: Run) -> dict[str, Any]:
    return {"state": State.RUNNING, "token": run.token}


@_around(transitions, "unblocked")
def _freed_by_the_first(right: Any, run: Run, now: datetime, upstream: Any) -> Any:
    begun = (State.RUNNING, State.PENDING)
    over = {i: State.SUCCEEDED if s in begun else s for i, s in upstream.items()}
    return right(run, now, over)


def _leads_for_ever() -> Patches:
    leads = property(lambda leader: leader._term is not None)
    return [
        patch.object(Leader, "leads", leads),
        patch.object(Leader, "_end_term", lambda leader: None),
    ]


def _loops_end() -> Patches:
    async def once(
        self: RetryingStore, operation: str, procedure: Callable[[], Any], **how: Any
    ) -> Any:
        return await procedure()

    async def always(self: Engine, part: Callable[[], Any]) -> None:
        with contextlib.suppress(Exception):
            await part()

    return [
        patch.object(RetryingStore, "repeat", once),
        patch.object(Engine, "_restart_on_error", always),
    ]


@_in_place_of(slots, "_chosen")
def _backfills(job: Any, now: datetime, until: datetime, most: int) -> Any:
    newest = job.schedule.previous(until + timedelta(microseconds=1)) or job.next_run_at
    newest = max(newest, job.next_run_at)
    return slots._all_slots(job, job.next_run_at, newest, 100, most)


_overlap_unseen = _patched(memory, "resolve_overlap", lambda overlap, runs, *_: (runs, []))

_queue_jumped = _patched(FollowerReleaser, "_earlier_slots", _returning(()))

_delay_from_start = _patched(slot_firer, "slot_after_end", lambda job, *_: job.next_run_at)


@_in_place_of(slot_firer, "slot_after_end")
def _end_forgotten(job: Any, last: Any, now: datetime) -> Any:
    return None if last is not None and not last.finished else job.next_run_at


@_in_place_of(Leases, "stop_before_lapse")
async def _keeps_dedupe_key(self: Leases) -> None:
    await asyncio.Event().wait()


@_in_place_of(Worker, "can_begin")
def _starts_late(self: Worker, attempt: Any) -> bool:
    return self.completer.breakers.may_begin(attempt)


@_in_place_of(Leases, "release")
def _lets_go_by_id(self: Leases, attempt: Any) -> None:
    self._held.pop(attempt.run.id, None)


def _settled_outside() -> Patches:
    """The transaction commits the handler's writes; the completion goes the usual way."""

    async def complete(self: RunTransaction) -> None:
        attempt = self._attempt
        store: Any = self._transaction
        await store.commit(Change(attempt.run.id, {}, {}))
        attempt.error = None

    def untransacted(attempt: Any) -> None:
        return None

    return [
        patch.object(RunTransaction, "_complete", complete),
        patch.object(outcome, "_missing_transaction_error", untransacted),
    ]


@_around(transitions, "aborted")
def _aborted_without_fence(right: Any, run: Run, *given: Any) -> Any:
    change = right(run, *given)
    return replace(change, expect={"token": run.token})


@_in_place_of(follower_releaser, "_followers")
async def _all_wait_again(engine: EngineContext, runs: Sequence[Run]) -> list[Run]:
    states = frozenset({State.WAITING, State.SKIPPED})
    page = await engine.store.find(RunQuery(states=states, brief=True, limit=1000))
    return [run for run in page.items if run.reason in (None, transitions.UPSTREAM_FAILED)]


def _stale_skips() -> Patches:
    """With sweepers that take a second from a skip's decision to its commit: otherwise one seed in
    150 shows it, so one in five. That alone breaks nothing."""
    right = EngineContext._commit

    async def commit(self: EngineContext, changes: list[Change]) -> list[bool]:
        if any(change.set.get("state") is State.SKIPPED for change in changes):
            await asyncio.sleep(1)
        return await right(self, changes)

    followers = follower_releaser._followers

    async def skipped(engine: EngineContext, runs: Sequence[Run]) -> list[Run]:
        return [run for run in await followers(engine, runs) if run.state is State.SKIPPED]

    return [
        patch.object(EngineContext, "_commit", commit),
        patch.object(follower_releaser, "_followers", skipped),
    ]


def _looks_before_it_commits() -> Patches:
    commit_retries = run_operations.RunOperations.commit_retries

    async def early(self: Any, runs: Sequence[Run], changes: Sequence[Change]) -> list[bool]:
        found = await follower_releaser._followers(self._engine, runs)
        kept = await commit_retries(self, runs, changes)
        await self._engine.store.commit([transitions.waiting_again(run) for run in found])
        return kept

    async def nothing(engine: Any, runs: Sequence[Run]) -> list[str]:
        return []

    return [
        patch.object(run_operations.RunOperations, "commit_retries", early),
        patch.object(run_operations, "revive_followers", nothing),
    ]


_retried_at_once = _patched(transitions, "awaited_again", lambda run, upstream: ())


@_in_place_of(evaluation, "awaited_runs")
def _results_pruned_too_soon(runs: Iterable[Run]) -> set[str]:
    return {name for run in runs if run.state is State.WAITING for name in run.after}


_retries_left_half_done = _patched(follower_releaser, "complete_retries", _returning(None))


@_in_place_of(job_updates, "_slot_after_change")
def _registered_afresh(given: Any, schedule: Any, stored: Any, now: datetime) -> Any:
    return schedule.bind(stored.id, now).next(now)


_drains_and_fires = _patched(Engine, "_retire", _returning(None))


@_in_place_of(JobCache, "get")
async def _forgotten_is_removed(
    self: JobCache, ids: Any, newest: Any = (), *, store: Any = None
) -> dict[str, Any]:
    now, wanted = self._clock.monotonic(), set(ids)
    stale = {i for i in wanted if now - self._known.get(i, (-9.0, None))[0] > self.MAX_AGE}
    stale.update(newest)
    if stale:
        page = await (store or self._store).jobs(JobQuery(ids=frozenset(stale), limit=len(stale)))
        self._known.update((job.id, (now, job)) for job in page.items)
    known = {i: self._known[i][1] for i in wanted if i in self._known}
    return {i: known.get(i) for i in wanted}


class StartsCountedBefore(MemoryStore):
    """What has started is counted, then the claim is made."""

    async def claim(self, claim: Claim) -> Claimed:
        rates = self._rate_allowance(self._clock.now())
        await _let_others_run()
        with patch.object(self, "_rate_allowance", lambda now: rates):
            return await super().claim(claim)


class RateOfEachNode(MemoryStore):
    """Each worker counts what it starts itself."""

    async def claim(self, claim: Claim) -> Claimed:
        def own(job: Any) -> Any:
            limit = limits.rate_limit(job)
            return limit and limit._replace(name=f"{limit.name} {claim.worker}")

        with patch.object(evaluation, "rate_limit", own):
            return await super().claim(claim)


@_in_place_of(limits._Starts, "within")
def _fixed_spans(self: Any, span: int, now: int) -> int:
    """Starts count until the end of the span of the clock that they fall into."""
    begin, length = now - now % span, -(-span // limits.BUCKETS_PER_SPAN)
    return sum(count for end, count in self.buckets if end - length >= begin)


def _breaker_by_own_clock() -> Patches:
    right = Breakers._refused

    async def refused(self: Breakers, runs: Any) -> Any:
        now = self._engine.clock.now()
        return await right(self, [(replace(run, started_at=now), job) for run, job in runs])

    return [patch.object(Breakers, "_refused", refused), _claims_at_any_time()]


def _claims_at_any_time() -> AbstractContextManager[Any]:
    return patch.object(Breakers, "most_runs", lambda self: {})


@_around(Breakers, "refused")
async def _breaker_of_each_process(right: Any, self: Breakers, runs: Any) -> Any:
    """A worker asks the store about a breaker only if it has seen it open itself."""
    known = [(run, job) for run, job in runs if job.id in self._known]
    return await right(self, known) if known else set()


def _failures_seen_late() -> Patches:
    """Attempts that wait begin until the store has counted the failures of those before them. The
    store is slow, so that there are such attempts."""
    right = Completer._commit

    async def commit(self: Completer, changes: Sequence[Change]) -> list[bool]:
        await asyncio.sleep(1)
        return await right(self, changes)

    return [
        patch.object(Breakers, "handler_ended", lambda self, attempt: None),
        patch.object(Completer, "_commit", commit),
    ]


_trial_counted_later = _patched(Breakers, "is_trial", lambda self, run: False)


def _trial_without_comparing() -> Patches:
    right = breakers._write

    def write(job: Any, circuit: Any) -> Any:
        return replace(right(job, circuit), expected_version=None)

    async def none(self: Breakers, trials: Any, now: datetime) -> set[Any]:
        return set()

    return [
        patch.object(breakers, "_write", write),
        patch.object(Breakers, "_trials_under_way", none),
    ]


def _half_open_to_all() -> Patches:
    right = Breakers._refused

    async def refused(self: Breakers, runs: Any) -> Any:
        refused = await right(self, runs)
        return {i for i in refused if any(c.state == "open" for c in self._known.values())}

    return [
        patch.object(Breakers, "_refused", refused),
        patch.object(Breakers, "may_begin", lambda self, attempt: True),
        _claims_at_any_time(),
    ]


@_in_place_of(Breakers, "_trials_under_way")
async def _trial_for_ever(self: Breakers, trials: Any, now: datetime) -> set[Any]:
    return set(trials)


@_around(Turns, "_rounds")
def _backlog_first(right: Any, self: Turns[Any], limits: Any) -> Iterator[tuple[str, int]]:
    for job_id in self._job_ids:
        alone = copy.copy(self)
        alone._job_ids = [job_id]
        yield from right(alone, limits)


@_around(Worker, "_make_claim")
def _turns_forgotten(right: Any, self: Worker, *given: Any) -> Any:
    return replace(right(self, *given), turns={})


_pause_unseen = _patched(slot_firer, "read_pause", _returning(FiringPause()))


@_in_place_of(slot_firer, "plan")
def _caught_up_after_a_pause(
    job: Any, now: Any, followers: Any, most: int, pauses: Any, workers: Any
) -> Any:
    return slots.plan(job, now, followers, most, workers=workers)


def _plans_hold_for_ever() -> Patches:
    def plan(*given: Any) -> Any:
        firings, gap = slots.plan(*given)
        return [replace(firing, valid_until=None) for firing in firings], gap

    return [
        patch.object(slot_firer, "plan", plan),
        patch.object(slot_firer._Chain, "holds", lambda self, now: True),
    ]


@_in_place_of(backfill, "_ids")
def _random_backfill_ids(job: Any, slot: datetime) -> tuple[str, str]:
    drawn = f"{slot_run_id(job.id, slot)}-{random.randrange(10**9)}"
    return drawn, f"{drawn}@backfill"


_late_backfills_expire = _patched(backfill, "replace", lambda run, **_: run)


@_in_place_of(transitions, "node_gone")
def _killed_on_a_node(run: Run, now: datetime) -> Change:
    return transitions.skipped(run, now, transitions.NODE_GONE)


_nodes_wait_for_each_other = _patched(overlap, "is_node_handler", lambda handler: False)


@_around(LiveWorkers, "find_nodes")
async def _fired_for_itself(
    right: Any, workers: LiveWorkers, jobs: Any, only_here: bool = False
) -> Any:
    return (await right(workers, jobs, only_here))[:1]


def _bugs() -> Iterator[Planted]:
    def bug(name: str, description: str, *caught_by: str, **how: Any) -> Planted:
        return Planted(name, description, frozenset(caught_by), **how)

    yield bug("no fence", "a commit ignores what it expects", "fence", "finished",
              "completion", "cancel", "attempts", "rescue", make_store=NoFence)  # fmt: skip
    yield bug("same token", "a claim does not raise the token", "tokens", make_store=SameToken)
    yield bug("count then claim", "the limit is counted, then the claim is made", "limit",
              make_store=CountThenClaim, first_seed=2)  # fmt: skip
    yield bug("backlog first", "a job gives all its runs before the next one has a turn", "fair",
              patches=_backlog_first)  # fmt: skip
    yield bug("turns forgotten", "each claim of a worker begins with the first job", "fair",
              patches=_turns_forgotten)  # fmt: skip
    yield bug("claims early", "runs are taken a second before they are due", "early",
              make_store=ClaimsEarly)  # fmt: skip
    yield bug("advance, then add", "a crash between the two loses the slot", "slots",
              make_store=AdvanceThenAdd)  # fmt: skip
    yield bug("random slot ids", "a crash before the advance fires the slot again", "slots",
              make_store=RandomSlotIds)  # fmt: skip
    yield bug("loose chain", "the second firing of a job stands without the first", "slots",
              make_store=LooseChain, stress=True, focus="slots",
              first_seed=4)  # fmt: skip
    yield bug("key checked before", "a dedupe key is looked up, then the run inserted", "dedupe",
              make_store=KeyCheckedBefore, first_seed=5)  # fmt: skip
    yield bug("renew by id", "a worker renews the lease of whoever holds the run now", "lease",
              make_store=RenewByIdAlone, stress=True, first_seed=3)  # fmt: skip
    yield bug("renew beyond the limit", "a lapsed lease comes back though its capacity is used",
              "limit", make_store=RenewBeyondLimit, stress=True, first_seed=69)  # fmt: skip
    yield bug("leases by the wall clock", "a step of the clock lengthens or ends every lease",
              "clock", make_store=LeasesByWallClock)  # fmt: skip
    yield bug("rescue without guard", "a run is rescued though its owner renewed it in between",
              "rescue", patches=_without("rescued", "lease_until"), stress=True,
              first_seed=131)  # fmt: skip
    yield bug("rescue by age", "a long run is rescued though its lease is renewed", "rescue",
              patches=_rescued_by_age)  # fmt: skip
    yield bug("rescue by own clock", "the worker's clock says which lease has lapsed", "rescue",
              patches=_rescued_by_own_clock)  # fmt: skip
    yield bug("rescue of at-most-once", "a rescue does not ask how often a run may start",
              "at most once", patches=_rescued_as_any, first_seed=5)  # fmt: skip
    yield bug("rescue undoes a cancel", "a rescue does not look for a cancel that came between",
              "cancel", patches=_without("rescued", "cancel_requested"), stress=True,
              first_seed=35)  # fmt: skip
    yield bug("unbegun runs blamed", "every lapse is held against a run, begun or not", "begin",
              "poison", patches=_bystanders_blamed, first_seed=8)  # fmt: skip
    yield bug("lapses of suspects do not count", "no lapse is held against a run that runs alone",
              "poison", patches=_killers_at_large, first_seed=8)  # fmt: skip
    yield bug("suspects beside others", "a suspect begins beside others", "suspects",
              patches=_suspects_in_company, first_seed=2)  # fmt: skip
    yield bug("others beside suspects", "others begin beside a suspect", "suspects",
              patches=_others_beside_suspects, first_seed=8)  # fmt: skip
    yield bug("suspects wait for ever", "a suspect that meets a busy worker waits for hours",
              "lost", patches=_suspects_wait_for_ever, first_seed=2)  # fmt: skip
    yield bug("claims far ahead", "a worker claims a hundred runs and keeps them", "held", "rate",
              "lost", patches=_claims_far_ahead, stress=True)  # fmt: skip
    yield bug("begins unrecorded", "a handler begins while its begin is being recorded", "begin",
              "at most once", "start", patches=_begins_unrecorded)  # fmt: skip
    yield bug("deadline kept", "a start deadline still counts when the handler has begun",
              "deadline", "attempts", patches=_deadline_kept,
              first_seed=10)  # fmt: skip
    yield bug("given again though begun", "a begin that is on record is not looked at",
              "at most once", "fence", "attempts", "poison",
              patches=_given_again_though_begun, first_seed=5)  # fmt: skip
    yield bug("cancel overwritten", "a completion overwrites a cancel request", "cancel",
              patches=_cancel_overwritten, first_seed=2)  # fmt: skip
    yield bug("retry resets the attempt", "a retry begins to count anew", "attempts",
              patches=_also_sets("retrying", attempt=0))  # fmt: skip
    yield bug("retry resets the token", "a retry hands out old tokens again", "tokens",
              patches=_also_sets("retrying", token=0))  # fmt: skip
    yield bug("release completes", "a run given back in a drain counts as done", "completion",
              patches=_also_sets("released", state=State.SUCCEEDED))  # fmt: skip
    yield bug("freed by the first", "a waiting run does not wait for all", "order",
              patches=_freed_by_the_first)  # fmt: skip
    yield bug("loops end", "the first error of the store ends a loop", "alive", "engine",
              "lost", "slots", patches=_loops_end)  # fmt: skip
    yield bug("leads for ever", "a leader that cannot reach the store leads on", "leader",
              "lost", patches=_leads_for_ever)  # fmt: skip
    yield bug("backfill", "every missed slot is run", "misfire", patches=_backfills)
    yield bug("backfilled twice", "a backfilled run has a random id, not its slot's", "backfill",
              patches=_random_backfill_ids, focus="filled", calm=False)  # fmt: skip
    yield bug("late backfills expire", "a backfilled run has the start deadline of its slot",
              "backfill", patches=_late_backfills_expire, focus="filled", calm=False)  # fmt: skip
    yield bug("pause unseen", "a node fires though all firing is paused", "paused",
              patches=_pause_unseen, first_seed=16)  # fmt: skip
    yield bug("caught up after a pause", "slots that passed during a pause run after it", "paused",
              patches=_caught_up_after_a_pause, first_seed=27)  # fmt: skip
    yield bug("old plans", "a store fires what was planned for a job before somebody changed it",
              "stale", "slots", make_store=FiresOldPlans, focus="shared",
              calm=False)  # fmt: skip
    yield bug("plans hold for ever", "a planned slot fires as if it was on time, though the clock"
              " was set since, or the node was frozen", "misfire", "paused",
              patches=_plans_hold_for_ever, focus="shared", calm=False,
              first_seed=23)  # fmt: skip
    yield bug("overlap unseen", "a slot fires whatever still runs", "overlap",
              patches=_overlap_unseen, first_seed=2)  # fmt: skip
    yield bug("queue jumped", "a queued slot starts when the one before it is cancelled, though an"
              " earlier one runs", "order", patches=_queue_jumped, focus="queue")  # fmt: skip
    yield bug("delay from the start", "a delay counts from the start of the run before", "delay",
              patches=_delay_from_start, focus="delayed")  # fmt: skip
    yield bug("end forgotten", "nobody looks again for the end of a run that a delay counts from",
              "delay", patches=_end_forgotten, focus="delayed")  # fmt: skip
    yield bug("forgotten is removed", "a job that a worker forgot while it read others counts as"
              " removed", "removed", "at most once", patches=_forgotten_is_removed,
              first_seed=11)  # fmt: skip
    yield bug("fires while it drains", "a worker that stops fires slots that it will not run",
              "drain", patches=_drains_and_fires, focus="slots", calm=False,
              first_seed=3)  # fmt: skip
    yield bug("all wait again", "a retry revives every run that some failure skipped",
              "tokens", "finished", patches=_all_wait_again)  # fmt: skip
    yield bug("stale skips", "a skip stands that was decided before the retry", "followers",
              patches=_stale_skips, focus="followers",
              first_seed=30)  # fmt: skip
    yield bug("looks before it commits", "a retry looks for skipped runs, then makes its run"
              " pending", "followers", patches=_looks_before_it_commits,
              focus="followers", first_seed=148)  # fmt: skip
    yield bug("retried at once", "a retry starts a run before those that it comes after have ended",
              "order", patches=_retried_at_once, focus="followers")  # fmt: skip
    yield bug("results pruned too soon", "a run is deleted when the last run that waited for it has"
              " become pending", "lost", patches=_results_pruned_too_soon,
              focus="followers",
              first_seed=344)  # fmt: skip
    yield bug("retries left half done", "nobody completes the retry of a client that failed",
              "followers", patches=_retries_left_half_done, focus="followers",
              first_seed=17)  # fmt: skip
    yield bug("killed on a node", "a worker that died in the middle counts as one that never took"
              " its node run", "nodes", patches=_killed_on_a_node, focus="everywhere",
              first_seed=36)  # fmt: skip
    yield bug("nodes wait for each other", "an unfinished run on one node skips the slot on all",
              "nodes", patches=_nodes_wait_for_each_other, focus="everywhere",
              calm=False)  # fmt: skip
    yield bug("fired for itself", "a node fires a slot of an each_node job for itself alone",
              "nodes", patches=_fired_for_itself, focus="everywhere", calm=False)  # fmt: skip
    yield bug("registering resets the schedule",
              "a job that is registered with another interval starts anew",
              "slots", "postponed", patches=_registered_afresh)  # fmt: skip
    yield bug("counted again", "a change that is sent again is counted again", "counters",
              make_store=CountsAgain, calm=False, first_seed=2)  # fmt: skip
    yield bug("effect first", "a transaction keeps its writes before the completion", "effect",
              make_store=EffectFirst, first_seed=5)  # fmt: skip
    yield bug("effect unfenced", "a transaction keeps its writes though the run is not its own",
              "effect", make_store=EffectUnfenced, stress=True, focus="exact",
              calm=False, first_seed=104)  # fmt: skip
    yield bug("completed outside", "a run is completed behind its transaction, not in it",
              "fence", "effect", patches=_settled_outside)  # fmt: skip
    yield bug("abort without fence", "a lost answer is taken for a transaction that failed",
              "fence", "finished", "effect", "cancel", patches=_aborted_without_fence,
              first_seed=5)  # fmt: skip
    yield bug("starts counted before", "what has started is counted, then the claim is made",
              "rate", make_store=StartsCountedBefore, focus="rated_a", calm=False,
              first_seed=5)  # fmt: skip
    yield bug("rate of each node", "each worker counts only what it starts itself", "rate",
              make_store=RateOfEachNode, focus="rated_a", calm=False, first_seed=2)  # fmt: skip
    yield bug("fixed spans", "a rate is counted anew with every span of the clock", "rate",
              patches=_fixed_spans, focus="rated_a", calm=False, first_seed=2)  # fmt: skip
    yield bug("breaker by own clock", "the worker's clock says when the reset time is over",
              "breaker", patches=_breaker_by_own_clock, focus="broken", calm=False,
              first_seed=1)  # fmt: skip
    yield bug("breaker of each process", "a worker looks only at what it has seen fail itself",
              "breaker", patches=_breaker_of_each_process, focus="broken",
              calm=False,
              first_seed=1)  # fmt: skip
    yield bug("failures seen late", "what waits in a queue begins until failures are counted",
              "breaker", patches=_failures_seen_late, focus="broken", calm=False,
              first_seed=21)  # fmt: skip
    yield bug("trial counted later", "the next run is tried before the end of the last is counted",
              "trial", patches=_trial_counted_later, focus="broken", calm=False,
              first_seed=1)  # fmt: skip
    yield bug("trial without comparing", "two nodes write that their run is the trial", "trial",
              "breaker", patches=_trial_without_comparing, focus="broken",
              calm=False)  # fmt: skip
    yield bug("half open to all", "after the reset time every run starts beside the trial",
              "breaker", patches=_half_open_to_all, focus="broken", calm=False)  # fmt: skip
    yield bug("trial never over", "a trial whose worker died is waited for", "lost",
              patches=_trial_for_ever, focus="broken", first_seed=17)  # fmt: skip
    yield bug("holds on", "a worker that cannot renew lets its handlers run on", "overrun",
              "alone", patches=_keeps_dedupe_key, calm=False, first_seed=29)  # fmt: skip
    yield bug("starts late", "a handler starts under a lease that has lapsed", "start", "alone",
              "overrun", patches=_starts_late, focus="plain", calm=False,
              first_seed=7)  # fmt: skip
    yield bug("lets go by id", "a refused outcome ends the renewal of the next attempt",
              "overrun", "alone", patches=_lets_go_by_id, stress=True, calm=False,
              first_seed=36)  # fmt: skip


PLANTED = tuple(_bugs())
