"""Fires the slots that are due: reads jobs, plans their slots, and calls the store's `fire`.

It works in small chunks, each planned for the moment at which it is fired. After an outage every
job is due at once. The store would refuse a chunk that took long to plan as outdated, and the
process could not renew its leases meanwhile.

Where jobs share a slot, the node that fires first reads and plans them shortly before it (the plan
is for the very slot), so that only the firing itself is left to do then. Nothing is written ahead.
The store refuses the plan of a job that was changed or fired since, and the firer drops a plan that
it would make otherwise by then (`_Chain.holds`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mainspring.core.durations import duration
from mainspring.core.model import Job, Run, State, replace, slot_run_id
from mainspring.core.transitions import MISFIRE
from mainspring.engine.context import EngineContext
from mainspring.engine.firing_pause import FiringPause, read_pause
from mainspring.engine.follower_releaser import FollowerReleaser
from mainspring.engine.jobs_without_worker import JobsWithoutWorker, followers_to_run
from mainspring.engine.leader import Leader
from mainspring.engine.live_workers import LiveWorker, LiveWorkers
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.slots import NO_FOLLOWERS, Gap, plan, slot_after_end
from mainspring.engine.workflow import Followers
from mainspring.errors import StoreUnavailable
from mainspring.stores.protocol import Fired, Firing, JobQuery, JobWrite, RunQuery

log = logging.getLogger("mainspring")

NON_LEADER_GRACE = timedelta(seconds=2)
"""How late a slot must be before a node that does not lead fires it, unless the leader is away."""

HINT_INTERVAL = 0.1
"""Least seconds between two searches that hints cause: hints come with every commit anywhere, and
most of them are about something else. The next slot is known, and its search never waits."""

NON_LEADER_INTERVAL = 1.0
"""The same for a node that does not lead, and its pause after another node was quicker."""

SMALLEST_CHUNK, FIRST_CHUNK, LARGEST_CHUNK = 10, 100, 400
"""Runs to make in one transaction."""

SLOWEST_CHUNK = 2.0
"""Seconds that a chunk may take, and no more than a twelfth of the lease: renewals on SQLite wait
for it, and a plan holds for a few seconds only. A slower one makes the next one smaller, and one
that took less than a quarter of it makes the next one larger. On a store with slow commits most of
the time of a chunk does not depend on its size, so small chunks would make firing slower, not
quicker: with a bound of 0.4 s, 1,000 slots a second became 350 on a busy disk."""

LONGEST_PLANNING = 0.05
"""Seconds of planning after which a chunk is fired, however few slots it has."""

REFUSED_INTERVAL = 60.0
"""Seconds until a job whose firing the store refused is tried again, unless it is changed."""

ALL_REFUSED_REST = 5.0
"""The same, where the store refused every job of a chunk."""

MOST_REFUSED_LOGGED = 3
"""Refused jobs of a chunk that are named in the log; the rest is counted."""

MOST_GAPS_LOGGED = 10
"""Jobs with missed slots that are named in the log while catching up."""

PAUSED_INTERVAL = 1.0
"""Seconds between two looks at the note while all firing is paused."""

SEARCH_AHEAD = timedelta(days=366)
"""How far ahead to search for the next slot."""

PLAN_AHEAD = 0.4
"""Seconds before a slot at which the jobs that share it are planned. What the worker needs of them
is then still in the job cache when their runs are claimed."""

MOST_PLANNED = 2000
"""Jobs that are planned ahead."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """What is to be fired for one job, one firing after the other."""

    job: Job
    firings: list[Firing]
    gap: Gap | None

    def holds(self, now: datetime) -> bool:
        """Whether a chain that was planned for the moment of its slot is the one to fire now. The
        clock may have been set meanwhile, or this process may have been frozen."""
        slot, following = self.job.next_run_at, self.firings[-1].next_run_at
        assert slot is not None
        late = now - slot
        in_time = timedelta() <= late <= duration(self.job.policy.misfire.grace)
        return in_time and (following is None or now < following)


@dataclass(frozen=True, slots=True)
class _PlannedSlot:
    """The jobs of a slot that were planned before it, and how firing was paused then."""

    slot: datetime
    pause: FiringPause
    chains: deque[_Chain]


class SlotFirer:
    def __init__(
        self,
        engine: EngineContext,
        live_workers: LiveWorkers,
        jobs_without_worker: JobsWithoutWorker,
        leader: Leader,
        releaser: FollowerReleaser,
    ) -> None:
        self._engine = engine
        self._live_workers = live_workers
        self._jobs_without_worker = jobs_without_worker
        self._leader = leader
        self._releaser = releaser
        self._hinted = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopped = False
        self._ended = asyncio.Event()
        self._ended.set()
        self._chunk = FIRST_CHUNK
        self._more_due = False
        self._leader_is_away = False
        self._set_aside: dict[str, tuple[int, float]] = {}  # version, and until when
        self._gaps_logged = 0  # while catching up
        self._is_paused = False
        self._ended_jobs: set[str] = set()  # jobs whose next slot counts from a run that has ended
        self._ahead: _PlannedSlot | None = None

    def wake(self) -> None:
        """Search soon: another process may have changed a job."""
        self._hinted.set()

    def jobs_changed(self) -> None:
        """Search at once: this process has changed a job, or leads from now on."""
        self._changed.set()
        self._hinted.set()

    def run_ended(self, run_id: str) -> None:
        """Set the next slot of the run's job, if that counts from the end of its runs. If this is
        lost, the slot is found when the earliest time of it has come."""
        job_id = run_id.partition("@")[0]  # the id of a slot's run begins with that of its job
        for job in self._engine.jobs.last_known([job_id]):
            if job.schedule is not None and job.schedule.after_end:
                self._ended_jobs.add(job_id)
                self.jobs_changed()

    async def fire_periodically(self) -> None:
        """Fire slots when they are due, until `stop`."""
        self._ended.clear()
        try:
            await self._engine.retrying_store.repeat("fire", self._read_pause)
            while not self._stopped:
                self._hinted.clear()
                self._changed.clear()
                # After a failure the slots are planned again: by then they may count as missed.
                seconds = await self._engine.retrying_store.repeat("fire", self.fire_due)
                await self._rest(seconds)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Send no more firings to the store. Returns once a firing under way has ended."""
        self._stopped = True
        self.jobs_changed()
        await self._ended.wait()

    async def _rest(self, seconds: float) -> None:
        if self._stopped:
            return
        if seconds <= 0:
            await asyncio.sleep(0)  # claims and renewals come between two chunks
        else:
            pause = HINT_INTERVAL if self._leader.leads else NON_LEADER_INTERVAL
            await wait_for_event(self._changed, min(seconds, pause))
            await wait_for_event(self._hinted, seconds - pause)

    async def fire_due(self) -> float:
        """Fire one chunk of due slots. Return the seconds until the next search: 0 if more slots
        may be due already."""
        if self._stopped:
            return self._engine.settings.poll.total_seconds()
        now = await self._engine.store.now()
        self._engine.time.correct(now)
        if self._is_paused and await self._read_pause() is None:
            return PAUSED_INTERVAL
        await self._set_slots_of_ended(now)
        upcoming: list[datetime | None] | None = None
        chains = await self._take_planned(now)
        if not chains:
            jobs, upcoming = await self._search(now)
            if not jobs and upcoming is not None:
                self._gaps_logged = 0
                return await self._plan_ahead(upcoming, now)
            chains = await self._plan_chunk(jobs)
        if self._is_paused:
            return PAUSED_INTERVAL
        if not chains or self._stopped:
            self._more_due = False  # another node was quicker, or none of them can be planned
            return 0.0
        began = self._engine.clock.monotonic()
        fired = await self._fire(chains)
        self._adapt_chunk_size(self._engine.clock.monotonic() - began)
        self._report(chains, fired)
        # A follower that wins what the leader has left for so long fires at once from now on, until
        # another node is quicker. A program that is restarted after a kill is not the leader until
        # the term of its killed process expires. It would fire slots late meanwhile, and skip those
        # between.
        self._leader_is_away = not self._leader.leads and all(firing.done for firing in fired)
        if not any(firing.done for firing in fired):
            self._more_due = False
            return 0.0 if self._leader.leads else NON_LEADER_INTERVAL
        if upcoming is None or self._more_due or not all(firing.done for firing in fired):
            return 0.0
        self._gaps_logged = 0
        upcoming += [chain.firings[-1].next_run_at for chain in chains]
        return self._seconds_until(upcoming, self._engine.time.now())

    # Searching

    def _grace(self) -> timedelta:
        fires_at_once = self._leader.leads or self._leader_is_away
        return timedelta() if fires_at_once else NON_LEADER_GRACE

    async def _search(self, now: datetime) -> tuple[list[Job], list[datetime | None] | None]:
        """Return the jobs to fire now, and the next slots of the jobs after them. Those are None
        where more jobs may be due.

        Mostly one slot is due at a time: one query finds it, and when the next one is due.
        """
        if not self._more_due:
            grace = self._grace()
            soonest = [(job, job.next_run_at) for job in await self._due(now + SEARCH_AHEAD, 2)]
            due = [job for job, slot in soonest if slot is not None and slot + grace <= now]
            if len(due) < 2:
                return due, [slot for job, slot in soonest if job not in due]
        jobs = await self._due(now - self._grace(), self._chunk)
        self._more_due = len(jobs) >= self._chunk
        return jobs, None

    def _seconds_until(self, slots: Sequence[datetime | None], now: datetime) -> float:
        """Seconds until the first of these slots is to be fired, at most until the next poll."""
        grace = self._grace()
        seconds = [(slot + grace - now).total_seconds() for slot in slots if slot is not None]
        return max(min([self._engine.settings.poll.total_seconds(), *seconds]), 0.001)

    async def _due(self, moment: datetime, limit: int) -> list[Job]:
        """Up to `limit` jobs with a slot by that moment, earliest first. Jobs that are set aside,
        cannot be read or that no live worker can run stay due: they must not hide the others."""
        asked = limit + len(self._set_aside) + len(self._jobs_without_worker.not_fired)
        while True:
            jobs = await self._engine.jobs.read(JobQuery(due=moment, limit=asked))
            this_worker = self._live_workers.this_worker()
            fit = [job for job in jobs if self._can_fire(job, this_worker)]
            if len(fit) >= limit or len(jobs) < asked:
                return fit[:limit]
            asked *= 2

    def _can_fire(self, job: Job, this_worker: LiveWorker) -> bool:
        if job.unreadable is not None or self._is_set_aside(job):
            return False
        return self._jobs_without_worker.decide_firing(job, this_worker)

    # Planning

    async def _plan_chunk(self, jobs: Sequence[Job]) -> list[_Chain]:
        """Plan jobs until the chunk is full, for the moment that it is now. A job that has changed
        since it was read has another version, and the store refuses the plan."""
        if not jobs:
            return []
        followers = await followers_to_run(self._engine, {job.id for job in jobs})
        workers = await self._live_workers.find_nodes(
            [*jobs, *followers.after(job.id for job in jobs).values()]
        )
        now = await self._engine.store.now()
        jobs = await self._find_slots_after_ends(jobs, now)
        # Read after the time: the store refuses the plan some seconds after that, so a node that
        # was frozen in between fires nothing because of an outdated note.
        pause = await self._read_pause()
        if pause is None:
            return []
        monotonic = self._engine.clock.monotonic
        ends = monotonic() + LONGEST_PLANNING
        chains: list[_Chain] = []
        left = self._chunk
        for job in jobs:
            if left <= 0 or monotonic() > ends:
                self._more_due = True
                break
            if job.next_run_at is None or job.next_run_at > now:
                continue  # the store's clock was set back since
            chain = self._plan_job(job, now, followers, left, pause, workers)
            if chain is not None:
                chains.append(chain)
                left -= sum(len(firing.runs) for firing in chain.firings)
        return chains

    async def _plan_ahead(self, slots: Sequence[datetime | None], now: datetime) -> float:
        """Plan the jobs of the next slot if several share it and it is near. Return the seconds
        until that slot, or until it is to be planned."""
        seconds, slot = self._seconds_until(slots, now), slots[0] if slots else None
        if slot is None or slots.count(slot) < 2 or self._grace() or self._is_paused:
            return seconds
        if self._ahead is not None and self._ahead.slot == slot:
            return seconds
        if seconds > PLAN_AHEAD:
            return seconds - PLAN_AHEAD
        jobs = await self._due(slot, MOST_PLANNED)
        followers, pause = await self._engine.jobs.followers(), await self._read_pause()
        if pause is None:
            return PAUSED_INTERVAL
        ahead = _PlannedSlot(slot, pause, deque())
        rest_at = self._engine.clock.monotonic() + LONGEST_PLANNING
        for job in jobs:
            if job.next_run_at == slot and _can_be_planned_ahead(job, followers):
                chain = self._plan_job(job, slot, NO_FOLLOWERS, 1, pause, ())
                ahead.chains.extend([] if chain is None else [chain])
            if self._engine.clock.monotonic() > rest_at:
                await asyncio.sleep(0)
                rest_at = self._engine.clock.monotonic() + LONGEST_PLANNING
        self._ahead = ahead
        return self._seconds_until(slots, await self._engine.store.now())

    async def _take_planned(self, now: datetime) -> list[_Chain]:
        """Return a chunk of the chains that were planned ahead and are due. What holds no more is
        dropped: the job is still due, and is planned anew."""
        ahead = self._ahead
        if ahead is None or now < ahead.slot:
            return []
        pause, followers = await self._read_pause(), await self._engine.jobs.followers()
        all_hold = pause == ahead.pause and not self._grace()
        chains: list[_Chain] = []
        while ahead.chains and len(chains) < self._chunk:
            chain = ahead.chains.popleft()
            if all_hold and chain.holds(now) and _can_be_planned_ahead(chain.job, followers):
                chains.append(chain)
        self._more_due = bool(ahead.chains)
        self._ahead = ahead if ahead.chains else None
        return chains

    async def _set_slots_of_ended(self, now: datetime) -> None:
        """Set the next slots of jobs whose runs have ended in this process."""
        ids = frozenset(self._ended_jobs)
        if ids:
            page = await self._engine.store.jobs(JobQuery(ids=ids, limit=len(ids)))
            jobs = [job for job in page.items if job.unreadable is None and job.next_run_at]
            await self._find_slots_after_ends(jobs, now)
            self._ended_jobs -= ids

    async def _find_slots_after_ends(self, jobs: Sequence[Job], now: datetime) -> Sequence[Job]:
        """The jobs that are due, those whose schedule counts from the end of a run with their true
        slot. If that is later than `next_run_at` said, it is stored. Another node may have done
        that, or fired the slot: then the write is refused."""
        last_runs = {
            job.id: slot_run_id(job.id, job.last_run_at)
            for job in jobs
            if job.last_run_at is not None and job.schedule is not None and job.schedule.after_end
        }
        if not last_runs:
            return jobs
        query = RunQuery(ids=frozenset(last_runs.values()), brief=True)
        runs = {run.id: run for run in (await self._engine.store.find(query)).items}
        due: list[Job] = []
        writes: list[JobWrite] = []
        for job in jobs:
            if job.id not in last_runs:
                due.append(job)
                continue
            slot = slot_after_end(job, runs.get(last_runs[job.id]), now)
            if slot is not None and slot <= now:
                due.append(replace(job, next_run_at=slot))
            elif slot != job.next_run_at:
                writes.append(JobWrite.put(replace(job, next_run_at=slot)))
        await self._engine.store.put_jobs(writes)
        return due

    async def _read_pause(self) -> FiringPause | None:
        """How firing was last paused and resumed; None while it is paused."""
        pause = await read_pause(self._engine.store)
        if self._is_paused is not (pause.since is not None):
            self._is_paused = pause.since is not None
            if self._is_paused:
                log.warning("all firing is paused since %s: no slot fires here", pause.since)
            else:
                log.warning("firing is resumed")
        return None if self._is_paused else pause

    def _plan_job(
        self,
        job: Job,
        now: datetime,
        followers: Followers,
        most: int,
        pause: FiringPause,
        workers: Sequence[LiveWorker],
    ) -> _Chain | None:
        """One job that cannot be planned must not keep the others from firing."""
        try:
            return _Chain(job, *plan(job, now, followers, most, pause.ended, workers))
        except Exception as error:
            log.exception("job %s cannot be fired; it is left alone until it is changed", job.id)
            self._set_aside_job(job, error, float("inf"))
            return None

    # Firing

    async def _fire(self, chains: Sequence[_Chain]) -> list[Fired]:
        """Fire the chains. What the store refuses is set aside; the rest is fired."""
        refused: list[tuple[_Chain, Exception]] = []
        fired = await self._fire_in_halves(chains, refused)
        # Where it refuses all of them, it may not be the jobs: they are soon tried again.
        rest = ALL_REFUSED_REST if len(refused) == len(chains) > 1 else REFUSED_INTERVAL
        for chain, error in refused[:MOST_REFUSED_LOGGED]:
            job_id = chain.job.id
            log.error("the store refuses to fire job %s; next try in %d s: %s", job_id, rest, error)
        if (more := len(refused) - MOST_REFUSED_LOGGED) > 0:
            log.error("the store refuses to fire %d more jobs; next try in %d s", more, rest)
        for chain, error in refused:
            self._set_aside_job(chain.job, error, self._engine.clock.monotonic() + rest)
        return fired

    async def _fire_in_halves(
        self, chains: Sequence[_Chain], refused: list[tuple[_Chain, Exception]]
    ) -> list[Fired]:
        """Fire all at once; if the store refuses that, in halves, down to the jobs at fault."""
        firings = [firing for chain in chains for firing in chain.firings]
        try:
            return await self._engine.store.fire(firings)
        except (StoreUnavailable, TimeoutError, OSError):
            raise
        except Exception as error:
            if len(chains) == 1:
                refused.append((chains[0], error))
                return [Fired(False)] * len(firings)
        half = len(chains) // 2
        first = await self._fire_in_halves(chains[:half], refused)
        return first + await self._fire_in_halves(chains[half:], refused)

    def _set_aside_job(self, job: Job, error: Exception, until: float) -> None:
        self._set_aside[job.id] = (job.version, until)
        self._engine.emit("scheduler.error", error=error, job_id=job.id)

    def _is_set_aside(self, job: Job) -> bool:
        version, until = self._set_aside.get(job.id, (None, 0.0))
        if version is None:
            return False
        if version == job.version and self._engine.clock.monotonic() < until:
            return True
        del self._set_aside[job.id]
        return False

    def _adapt_chunk_size(self, seconds: float) -> None:
        slowest = min(SLOWEST_CHUNK, self._engine.settings.lease.total_seconds() / 12)
        if seconds > slowest:
            self._chunk = max(self._chunk // 2, SMALLEST_CHUNK)
        elif seconds < slowest / 4 and self._more_due:
            self._chunk = min(self._chunk * 2, LARGEST_CHUNK)

    # Reporting

    def _report(self, chains: Sequence[_Chain], fired: Sequence[Fired]) -> None:
        results = iter(fired)
        for chain in chains:
            for _ in chain.firings:
                outcome = next(results)
                for run in outcome.replaced:
                    self._engine.run_ended(run.id)
                    self._engine.emit("run.cancelled", run)
                for run in outcome.runs:
                    self._emit_fired(run, chain.gap)
                    for earlier in run.after if run.after_any else ():
                        # It may have ended before the queued slot was there to be found.
                        self._releaser.run_ended(earlier)

    def _emit_fired(self, run: Run, gap: Gap | None) -> None:
        is_gap = gap is not None and run.state is State.SKIPPED and run.scheduled_at == gap.first
        if gap is not None and is_gap and gap.reason == MISFIRE:
            self._log_gap(run, gap)
            self._engine.emit("schedule.missed", run, **gap.data())
        elif run.state is State.SKIPPED:
            self._engine.emit("run.skipped", run)
        else:
            self._engine.emit("run.enqueued", run)

    def _log_gap(self, run: Run, gap: Gap) -> None:
        self._gaps_logged += 1
        if self._gaps_logged <= MOST_GAPS_LOGGED:
            slots = "the slot of" if gap.count == 1 else f"{gap.count} slots up to"
            last = f"{gap.last:%Y-%m-%dT%H:%M:%SZ}"
            log.warning("job %s missed %s %s", run.job_id, slots, last)
        elif self._gaps_logged == MOST_GAPS_LOGGED + 1:
            log.warning("more jobs have missed slots; catching up")


def _can_be_planned_ahead(job: Job, followers: Followers) -> bool:
    """Whether a plan depends on the job alone, and on no end of a run, other job or live node."""
    has_schedule = job.schedule is not None and not job.schedule.after_end
    return has_schedule and not job.policy.each_node and not followers.directly_after(job.id)
