"""The operations on jobs and runs that a caller asks for: add, change, enqueue, cancel, retry.

Everything here happens on the engine's loop and goes straight to the store. Errors of the
store reach the caller: unlike the engine's own loops, a caller can decide to try again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from mainspring.core import transitions
from mainspring.core.durations import duration
from mainspring.core.enqueue_options import Options
from mainspring.core.handlers import Handler
from mainspring.core.input_errors import InputErrors
from mainspring.core.model import (
    Job,
    Owner,
    Run,
    Source,
    State,
    new_run_id,
    replace,
)
from mainspring.core.node_runs import node_ids, node_of
from mainspring.core.policy import AfterFailure, Delivery
from mainspring.core.schedules import Interval, Recurrence, Schedule, dst
from mainspring.core.schedules.base import iso
from mainspring.core.schedules.zones import zone_named
from mainspring.core.transitions import Change
from mainspring.engine.backfill import Backfill, BackfillPlan, backfill
from mainspring.engine.breakers import close_breaker, forget_breakers, start_put_off
from mainspring.engine.context import EngineContext
from mainspring.engine.firing_pause import pause_firing, read_pause, resume_firing
from mainspring.engine.jobs_without_worker import followers_to_run
from mainspring.engine.live_workers import LiveWorker, find_orphans, find_workers
from mainspring.engine.revival import forget_retry, note_retry, revive_followers
from mainspring.engine.run_waiters import RunWaiters
from mainspring.engine.slot_firer import SlotFirer
from mainspring.engine.slots import is_orphan, make_run, over_before, with_followers
from mainspring.engine.sweeper import Sweeper
from mainspring.engine.worker import Worker
from mainspring.engine.workflow import (
    check_order,
    refuse_circle_of_links,
    upstream_first,
    upstream_of,
)
from mainspring.errors import (
    Conflict,
    InvalidInput,
    InvalidSchedule,
    InvalidState,
    JobChanged,
    JobExists,
    JobNotFound,
    JobOwnedByCode,
    JobOwnedByFile,
    MainspringError,
    RecordUnreadable,
    RunNotFound,
    StoreError,
)
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import JobQuery, JobWrite, RunQuery

__all__ = ["Adapt", "Operations", "Replacement", "refuse_owned", "schedule_over"]

log = logging.getLogger("mainspring")

TRIES = 20
"""How often a compare-and-set is tried before the operation raises Conflict."""

MANY_AT_ONCE = 1000
"""How many jobs one commit writes, and how many runs one search names."""

START_HELD = timedelta(seconds=60)

Replacement = tuple[Job | None, Job | None]
"""A job before and after; None: there was none, or it was removed."""

Edit = Callable[[Job, datetime], Job]
Adapt = Callable[[Job, Job], Job]


class Operations:
    def __init__(
        self,
        engine: EngineContext,
        worker: Worker,
        slot_firer: SlotFirer,
        sweeper: Sweeper,
        run_waiters: RunWaiters,
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._slot_firer = slot_firer
        self._sweeper = sweeper
        self.run_waiters = run_waiters

    # Runs

    async def enqueue(
        self,
        job_id: str,
        payloads: Sequence[Any],
        options: Options,
        zone: tzinfo,
        source: Source,
        checked_by: Handler | None = None,
    ) -> list[Run]:
        """Add a run for each payload, all in one commit. A payload of None is the job's own.
        `checked_by`: the handler that the caller has checked the payloads with, on its thread."""
        job = await self.known_job(job_id)
        handler = self._engine.registry.find(job.handler)
        known = handler is not None and handler is checked_by
        if handler is not None and not known:
            payloads = [handler.encode_payload(payload) for payload in payloads]
        for payload in payloads:  # the store encodes each one, and refuses what is not JSON
            if handler is not None and (payload is None or not known):
                handler.check(job.payload if payload is None else payload)
        await self._check_upstream(options.upstream())
        now = await self._engine.store.now()
        roots = self._made_runs(job, payloads, options, zone, source, now)
        followers = await followers_to_run(self._engine, {job.id})
        instances = [with_followers(root, followers, root.created_at) for root in roots]
        added = await self._engine.store.add(_flatten(instances))
        if options.after:  # it may have ended before its follower was added
            with contextlib.suppress(StoreError):  # the run is added; the next sweep releases it
                await self._sweeper.release_followers(options.upstream())
        stands = {made.id: one for made, one in zip(_flatten(instances), added, strict=True)}
        answers = [stands[root.id] for root in roots]
        for one in answers:
            if not one.duplicate:
                self._engine.emit("run.enqueued", one.run)
        return [one.run for one in answers]

    async def chain(
        self, links: Sequence[tuple[str, Any]], after_failure: str | None, zone: tzinfo
    ) -> list[Run]:
        """Add a run of each job, each after the one before it, all in one commit. A link is a job
        id and a payload; None is the job's own payload.

        A link starts the workflow of its job, so a later link may be of a job that follows it
        already. The run that follows is the link then: the job runs once.
        """
        now = await self._engine.store.now()
        followers = await followers_to_run(self._engine, {job_id for job_id, _ in links})
        runs: list[Run] = []
        made: dict[str, Run] = {}
        following: dict[str, str] = {}  # runs of jobs that follow a link, by job
        for at, (job_id, payload) in enumerate(links):
            job = await self.known_job(job_id)
            if (handler := self._engine.registry.find(job.handler)) is not None:
                payload = handler.encode_payload(payload)
                handler.check(job.payload if payload is None else payload)
            options = Options(after=runs[-1].id, after_failure=after_failure) if runs else Options()
            made_at = now + timedelta(microseconds=at)
            [run] = self._made_runs(job, [payload], options, zone, Source.ENQUEUE, made_at)
            if (run_id := following.pop(job_id, None)) is not None:
                refuse_circle_of_links(runs[-1], made[run_id], made)
                run = replace(run, id=run_id, after=_union(made[run_id].after, run.after))
                made[run.id] = run
            else:
                instance = with_followers(run, followers, run.created_at)
                made |= {one.id: one for one in instance}
                following |= {one.job_id: one.id for one in instance[1:]}
            runs.append(run)
        await self._engine.store.add(upstream_first(made))
        self._engine.emit("run.enqueued", runs[0])
        return runs

    async def cancel(self, run_id: str, reason: str) -> bool:
        """Cancel a run; return False if it has ended. The handler of a running one is stopped, and
        the run ends as cancelled whatever the handler does."""
        for _ in range(TRIES):
            run = await self.run(run_id)
            if run.finished:
                return False
            if run.cancel_requested:
                return True
            change = transitions.cancelled_or_requested(run, await self._engine.store.now(), reason)
            [kept, *_] = await self._engine.store.commit(
                [change, *await self.cancel_nodes([run], reason)]
            )
            if kept:
                self.announce_cancel(change.after(run))
                return True
        raise _contended(f"run {run_id}")

    async def cancel_nodes(self, runs: Sequence[Run], reason: str) -> list[Change]:
        """The changes that cancel the node runs of runs that were spread over nodes."""
        names = frozenset(name for run in runs for name in node_ids(run))
        if not names:
            return []
        now = await self._engine.store.now()
        found = (await self._engine.store.find(RunQuery(ids=names, brief=True))).items
        return [
            transitions.cancelled_or_requested(run, now, reason)
            for run in found
            if not run.finished
        ]

    def announce_cancel(self, after: Run) -> None:
        """After a cancel was committed: emit its end, or stop the handler if it runs here."""
        if after.finished:
            self.run_waiters.finished(after.id)
            self._sweeper.run_ended(after.id)
            self._engine.emit("run.cancelled", after)
        else:
            self._worker.leases.apply_remote_changes([after])

    async def retry(self, run_id: str) -> Run:
        """Make a failed or cancelled run pending again. Runs that were skipped because it did not
        succeed wait for it again."""
        run = await self.run(run_id)
        if run.state not in (State.FAILED, State.CANCELLED):
            raise InvalidState(
                f"only a failed or cancelled run can be tried again; {run_id} is {run.state}"
            )
        if run.unreadable is not None:
            raise RecordUnreadable("run", run_id, run.unreadable)
        if await self.orphans([run]):
            raise InvalidState(
                f"run {run_id} cannot be tried again: its job {run.job_id!r} was removed"
            )
        change = transitions.revived(run, await self._engine.store.now())
        [kept] = await self.commit_retries([run], [change])
        if not kept:
            now = await self.run(run_id)
            held = f"its dedupe key {run.dedupe_key!r} is held by another run"
            raise InvalidState(
                f"run {run_id} cannot be tried again: "
                + (held if now.state is run.state else f"it is {now.state} by now")
            )
        after = change.after(run)
        self._engine.emit("run.enqueued", after)
        return after

    async def commit_retries(self, runs: Sequence[Run], changes: Sequence[Change]) -> list[bool]:
        """Commit changes that make these runs pending again, and return which were kept. Their node
        runs are tried again too, and the runs after them wait again. If that is interrupted, the
        leader completes it."""
        store = self._engine.store
        note = await note_retry(self._engine, runs)
        nodes = await self._retry_node_runs([run for run in runs if run.dedupe_key is None])
        kept = (await store.commit([*changes, *nodes]))[: len(changes)]
        revived = [run for run, was_kept in zip(runs, kept, strict=True) if was_kept]
        # Only after this commit is it certain that no other run took the dedupe key.
        held = [run for run in revived if run.dedupe_key is not None]
        await store.commit(await self._retry_node_runs(held))
        reached: list[str] = []
        if revived:
            try:
                reached = await revive_followers(self._engine, revived)
            except StoreError:
                return kept  # the note stands
        await forget_retry(self._engine, note)
        with contextlib.suppress(StoreError):  # the next sweep releases them
            # One may have ended before its followers waited again.
            for start in range(0, len(reached), MANY_AT_ONCE):
                await self._sweeper.release_followers(reached[start : start + MANY_AT_ONCE])
        return kept

    async def _retry_node_runs(self, runs: Sequence[Run]) -> list[Change]:
        """The changes that try the failed node runs of runs again that were spread over nodes,
        and the skipped ones whose worker is alive."""
        names = frozenset(name for run in runs for name in node_ids(run))
        if not names:
            return []
        now = await self._engine.store.now()
        found = (await self._engine.store.find(RunQuery(ids=names, brief=True))).items
        alive = {worker.id for worker in await find_workers(self._engine.store)}
        bad = (State.FAILED, State.CANCELLED)
        return [
            transitions.revived(run, now)
            for run in found
            if run.state in bad or (run.state is State.SKIPPED and node_of(run) in alive)
        ]

    async def orphans(self, runs: Sequence[Run]) -> set[str]:
        """Return the runs whose job was removed: a retry would only end as cancelled."""
        ids = {run.job_id for run in runs}
        jobs = await self._engine.jobs.get(ids, newest=ids)
        return {run.id for run in runs if is_orphan(run, jobs[run.job_id])}

    async def not_revivable(self, runs: Sequence[Run]) -> set[str]:
        """Return the runs that cannot be retried, whatever their state."""
        unreadable = {run.id for run in runs if run.unreadable is not None}
        return unreadable | await self.orphans(runs)

    async def run(self, run_id: str) -> Run:
        return await self.run_waiters.read(run_id)

    async def unreadable(self, limit: int) -> tuple[list[Job], list[Run]]:
        """Jobs and runs that this version cannot read, at most `limit` of each. All jobs are
        looked at; of runs those that were set aside, those that are lapsed, and the newest 1,000
        of each other kind."""
        jobs = [job async for job in self._all_jobs() if job.unreadable is not None][:limit]
        looks = [RunQuery(set_aside=True), RunQuery(lapsed=True)]
        looks += [RunQuery(states=frozenset({state})) for state in State]
        runs: dict[str, Run] = {}
        for look in looks:
            page = await self._engine.store.find(replace(look, limit=1000))
            runs |= {run.id: run for run in page.items if run.unreadable is not None}
        return jobs, list(runs.values())[:limit]

    def _all_jobs(self) -> AsyncIterator[Job]:
        return all_items(self._engine.store.jobs, JobQuery(limit=1000))

    async def backfill(
        self, job_id: str, plan: BackfillPlan, progress: Callable[[int, int], None] | None
    ) -> Backfill:
        """Add a run for each slot of the plan that has none."""
        return await backfill(self._engine, await self.job(job_id), plan, progress)

    # Jobs

    async def job(self, job_id: str) -> Job:
        page = await self._engine.store.jobs(JobQuery(ids=frozenset({job_id}), limit=1))
        if not page.items:
            raise JobNotFound(job_id)
        return page.items[0]

    async def known_job(self, job_id: str) -> Job:
        """Return the job as it was at most a second ago."""
        job = (await self._engine.jobs.get([job_id]))[job_id]
        if job is None:
            stored = (await self._engine.store.jobs(JobQuery(limit=1000))).items
            raise JobNotFound(job_id, {*self._engine.registry.names(), *(j.id for j in stored)})
        _refuse_unreadable(job)
        return job

    async def check_order(self, jobs: Sequence[Job], *, all_known: bool = True) -> None:
        """Raise InvalidInput for jobs that could never run because of the jobs they run after.
        `all_known`: those must exist, or be among `jobs`."""
        if not any(job.policy.after for job in jobs):
            return
        order = {job.id: job.policy.after for job in await self._engine.jobs.followers()}
        order |= {job.id: job.policy.after for job in jobs}
        names = frozenset(name for after in order.values() for name in after)
        page = await self._engine.store.jobs(JobQuery(ids=names, limit=len(names)))
        known = {job.id for job in page.items} | order.keys()
        check_order(order, [job.id for job in jobs], known, all_known=all_known)

    async def create(self, draft: Job, *, dry_run: bool = False) -> Job:
        """Store a new job. Raises if a job of that id exists, or if the schedule has no more slots.
        A `dry_run` makes the same checks and stores nothing."""
        await self.check_order([draft])
        self._refuse_effect_once(draft)
        now = await self._engine.store.now()
        job = _new_job(draft, now)
        _refuse_over(job, now)
        free = await (self._free(job.id) if dry_run else self._put(job))
        if not free:
            raise JobExists(
                f"there is a job {job.id!r} already: add_job(…, replace=True) puts this one in its"
                " place, update_job changes parts of it",
                job_id=job.id,
            )
        return job if dry_run else self._changed(job, "job.created")

    async def put(self, draft: Job, adapt: Adapt, *, dry_run: bool = False) -> Job:
        """Store a new job, or put it in the place of the one that has its id, whose `enabled` and
        creation stay. `adapt(draft, stored)` says what else of that one stays, or refuses.
        An equal definition changes nothing. A `dry_run` makes the same checks and stores
        nothing."""
        stored = await self._stored(draft.id)
        if stored is None or stored.policy.after != draft.policy.after:
            await self._check_reorder(draft)
        now = await self._engine.store.now()
        job = _new_job(draft, now)
        if stored is not None:
            job = _merged(adapt(draft, stored), stored, now)
        if stored is None or job.schedule != stored.schedule:
            _refuse_over(job, now)
        return job if dry_run else await self.define(draft, adapt)

    async def _put(self, job: Job) -> bool:
        [done] = await self._engine.store.put_jobs([JobWrite.put(job)])
        return done

    async def _free(self, job_id: str) -> bool:
        return await self._stored(job_id) is None

    async def define_after_start(self, draft: Job) -> Job:
        """Store a job that was decorated after the start: the jobs it runs after may come later."""
        await self.check_order([draft], all_known=False)
        return await self.define(draft)

    async def define(self, draft: Job, adapt: Adapt | None = None) -> Job:
        """Store a job as given; one that is there is replaced, but for what belongs to the
        operator (`enabled`) and to time (creation, slots already named). `adapt` is as for `put`.
        """
        self._refuse_effect_once(draft)
        for _ in range(TRIES):
            now = await self._engine.store.now()
            stored = await self._stored(draft.id)
            if stored is not None:
                _refuse_unreadable(stored)
            wanted = adapt(draft, stored) if adapt is not None and stored is not None else draft
            job = _new_job(draft, now) if stored is None else _merged(wanted, stored, now)
            if stored is not None and replace(job, updated_at=stored.updated_at) == stored:
                return stored
            if await self._put(job):
                changed = self._changed(job, "job.updated" if stored else "job.created")
                if stored is None or stored.schedule != job.schedule:
                    await self._warn_if_schedule_ended(changed, now)
                return changed
        raise _contended(f"job {draft.id}")

    async def replace_all(
        self,
        drafts: Sequence[Job],
        adapt: Adapt,
        belongs: Callable[[Job], bool],
        *,
        dry_run: bool,
    ) -> list[Replacement]:
        """Make the stored jobs that `belongs` chooses equal to the drafts: add, change and remove
        jobs. Everything is checked before anything is written, and all is written in one call.
        Returns every job before and after. `adapt` is as for `put`.

        A crash leaves all of it or nothing, as `put_jobs` does. Only jobs that others change at
        that moment (a slot fires) are read and written again, after the rest.
        """
        first: dict[str, Replacement] = {}
        for _ in range(TRIES):
            stored = {job.id: job async for job in self._all_jobs()}
            pairs = await self._planned_replacements(drafts, stored, adapt, belongs)
            first = first or pairs
            writes = [_write_of(pair) for pair in pairs.values() if not _is_same(pair)]
            if dry_run or not writes:
                return list(first.values())
            done = await self._engine.store.put_jobs(writes)
            await self._tell_written([w for w, kept in zip(writes, done, strict=True) if kept])
            if all(done):
                return list(first.values())
        raise _contended("a job of the set")

    async def _planned_replacements(
        self,
        drafts: Sequence[Job],
        stored: dict[str, Job],
        adapt: Adapt,
        belongs: Callable[[Job], bool],
    ) -> dict[str, Replacement]:
        now = await self._engine.store.now()
        wanted = {draft.id for draft in drafts}
        removed = {job.id for job in stored.values() if belongs(job) and job.id not in wanted}
        errors = InputErrors()
        for draft in drafts:
            for gone in sorted(removed.intersection(draft.policy.after)):
                wrong = InvalidInput(
                    f"job {draft.id!r} comes after {gone!r}, and that job is no longer listed: list"
                    " it again, or leave it out of `after`",
                    field="after",
                    given=gone,
                    job_id=draft.id,
                )
                errors.add(wrong)
        with errors:
            await self.check_order(drafts)
        pairs: dict[str, Replacement] = {}
        for draft in drafts:
            with errors:
                pairs[draft.id] = self._planned_replacement(draft, stored.get(draft.id), adapt, now)
        errors.check()
        return pairs | {job_id: (stored[job_id], None) for job_id in sorted(removed)}

    def _planned_replacement(
        self, draft: Job, old: Job | None, adapt: Adapt, now: datetime
    ) -> Replacement:
        self._refuse_effect_once(draft)
        job = _new_job(draft, now)
        if old is not None:
            _refuse_unreadable(old)
            # `adapt` has refused it if it belongs to another owner that must keep it.
            mine = replace(old, owner=draft.owner, file=draft.file)
            job = _merged(adapt(draft, old), mine, now)
        if old is None or job.schedule != old.schedule:
            _refuse_over(job, now)
        return old, job

    async def _warn_if_schedule_ended(self, job: Job, now: datetime) -> None:
        """Warn if a job was defined after its last slot, since it never runs by itself, and leave a
        skipped run that says why."""
        if job.schedule is None or not job.enabled or job.next_run_at is not None:
            return
        missed = over_before(job, now)
        if missed is None:
            return
        firing, gap = missed
        log.warning(
            "job %s will not run: its schedule was over (%s) when it was first stored; trigger it,"
            " or give it another schedule",
            job.id,
            gap.last,
        )
        [fired] = await self._engine.store.fire([firing])
        for run in fired.runs:
            self._engine.emit("schedule.missed", run, **gap.data())

    async def edit(
        self,
        job_id: str,
        edit: Edit,
        *,
        operator: bool = False,
        expected_version: Job | None = None,
    ) -> Job:
        """Change a stored job. Of a job that code owns, only an operator may change `enabled`.
        `expected_version` is the job as the caller read it: an edit made since raises `JobChanged`;
        slots that fired since do not."""
        for _ in range(TRIES):
            job = await self.job(job_id)
            _refuse_unreadable(job)
            _unchanged(job, expected_version)
            now = await self._engine.store.now()
            edited = replace(edit(job, now), updated_at=now)
            if not operator and not _switched(job, edited):
                refuse_owned(job)
            if edited.policy.after != job.policy.after:
                await self._check_reorder(edited)
            if edited.policy != job.policy:
                self._refuse_effect_once(edited)
            if await self._put(edited):
                return self._changed(edited, "job.updated")
        raise _contended(f"job {job_id}")

    async def edit_all(self, needed: Callable[[Job], bool], edit: Callable[[Job], Job]) -> int:
        """Change every job that needs it; return how many did. A job may be removed meanwhile."""
        count = 0
        async for job in self._all_jobs():
            if job.unreadable is None and needed(job):
                with contextlib.suppress(JobNotFound):
                    await self.edit(job.id, lambda job, now: edit(job), operator=True)
                    count += 1
        return count

    async def set_enabled(
        self, job_id: str, enabled: bool, *, expected_version: Job | None = None
    ) -> Job:
        """Pause or resume: a paused job has no next slot, a resumed one none in the past, and one
        whose schedule is over cannot be resumed. `expected_version` is as for `edit`."""

        def with_enabled(job: Job, now: datetime) -> Job:
            if job.enabled is enabled:
                return job
            if enabled:
                _refuse_over(job, now)
            return replace(job, enabled=enabled, next_run_at=_upcoming(job, enabled, now))

        return await self.edit(
            job_id, with_enabled, operator=True, expected_version=expected_version
        )

    async def set_many_enabled(
        self, job_ids: Iterable[str], enabled: bool
    ) -> dict[str, MainspringError | None]:
        """Pause or resume many jobs, a thousand in one commit; return the error of each job."""

        def make_write(job: Job, now: datetime) -> JobWrite | None:
            _refuse_unreadable(job)
            if job.enabled is enabled:
                return None
            if enabled:
                _refuse_over(job, now)
            slot = _upcoming(job, enabled, now)
            return JobWrite.put(replace(job, enabled=enabled, next_run_at=slot, updated_at=now))

        return await self._write_many(job_ids, make_write)

    async def remove_many(
        self, job_ids: Iterable[str], *, force: bool
    ) -> dict[str, MainspringError | None]:
        """Delete many jobs, a thousand in one commit; return the error of each job."""

        def make_write(job: Job, now: datetime) -> JobWrite:
            if not force:
                refuse_owned(job)
            return JobWrite.drop(job.id, job.version)

        return await self._write_many(job_ids, make_write)

    async def _write_many(
        self, job_ids: Iterable[str], make_write: Callable[[Job, datetime], JobWrite | None]
    ) -> dict[str, MainspringError | None]:
        """Read jobs, decide what to write for each, and write; repeat for those that somebody else
        changed meanwhile. `make_write` returns None if there is nothing to write."""
        outcome: dict[str, MainspringError | None] = dict.fromkeys(job_ids)
        ids = list(outcome)
        for start in range(0, len(ids), MANY_AT_ONCE):
            left = ids[start : start + MANY_AT_ONCE]
            for _ in range(TRIES):
                if not left:
                    break
                query = JobQuery(ids=frozenset(left), limit=len(left))
                jobs = {job.id: job for job in (await self._engine.store.jobs(query)).items}
                now = await self._engine.store.now()
                writes = []
                for job_id in left:
                    try:
                        if job_id not in jobs:
                            raise JobNotFound(job_id)
                        if (write := make_write(jobs[job_id], now)) is not None:
                            writes.append(write)
                    except MainspringError as error:
                        outcome[job_id] = error
                done = await self._engine.store.put_jobs(writes)
                await self._tell_written([w for w, kept in zip(writes, done, strict=True) if kept])
                left = [w.id for w, kept in zip(writes, done, strict=True) if not kept]
            for job_id in left:
                outcome[job_id] = _contended(f"job {job_id}")
        return outcome

    async def _tell_written(self, writes: Sequence[JobWrite]) -> None:
        for write in writes:
            self._engine.jobs.forget(write.id)
            if write.job is not None:
                self._engine.emit("job.updated", job_id=write.id, job=write.job)
        removed = {write.id for write in writes if write.job is None}
        if len(removed) < len(writes):
            self._slot_firer.jobs_changed()
        if not removed:
            return
        await forget_breakers(self._engine.store, removed)
        counts = (await self._engine.store.counts()).runs
        for job_id in removed:
            if counts.get(job_id, {}).keys() & {State.PENDING, State.WAITING}:
                await self._cancel_unstarted(job_id)
            self._engine.emit("job.removed", job_id=job_id)

    async def remove(
        self, job_id: str, *, force: bool, expected_version: Job | None = None
    ) -> None:
        """Delete a job, cancel its pending runs, let running ones end: with this attempt, for a
        retry is cancelled when it is claimed. `expected_version` is as for `edit`."""
        for _ in range(TRIES):
            job = await self.job(job_id)
            _unchanged(job, expected_version)
            if not force:
                refuse_owned(job)
            [removed] = await self._engine.store.put_jobs([JobWrite.drop(job_id, job.version)])
            if removed:
                break
        else:
            raise _contended(f"job {job_id}")
        self._engine.jobs.forget(job_id)
        await forget_breakers(self._engine.store, [job_id])
        await self._cancel_unstarted(job_id)
        self._engine.emit("job.removed", job_id=job_id)

    async def prune_orphans(
        self, workers: Sequence[LiveWorker], *, dry_run: bool, force: bool
    ) -> list[Job]:
        """Delete the jobs whose code is gone, and cancel their pending runs; return them. While no
        worker is alive it is not known whose code is gone: then only `force` deletes."""
        if not workers and not force:
            raise InvalidState(
                "no worker is alive, so every job looks as if its code were gone: start a worker of"
                " each program first, or force it"
            )
        # Also without a worker this program's own handlers are there.
        known = LiveWorker(id="", handlers=self._engine.registry.names())
        jobs = [job async for job in self._all_jobs()]
        orphans = find_orphans(jobs, [*workers, known])
        if dry_run:
            return orphans
        removed = []
        for job in orphans:
            # One that was edited or removed since it was read is left alone.
            with contextlib.suppress(JobNotFound, JobChanged):
                await self.remove(job.id, force=True, expected_version=job)
                removed.append(job)
        return removed

    async def reset_breaker(self, job_id: str) -> bool:
        """Close the circuit breaker of a job, forget its failures, and let the runs that it has put
        off start now. Return whether it was open or half-open."""
        job = await self.job(job_id)
        _refuse_unreadable(job)
        if job.policy.breaker is None:
            raise InvalidState(
                f"job {job_id!r} has no circuit breaker to reset: give it one with breaker=…"
            )
        opened = await close_breaker(self._engine.store, job)
        await start_put_off(self._engine.store, job_id)
        if opened:
            self._engine.emit("breaker.closed", job_id=job_id)
        return opened

    async def pause_firing(self) -> datetime:
        """Fire no slot on any node until `resume_firing`; return since when that holds."""
        pause = await pause_firing(self._engine.store)
        assert pause.since is not None
        return pause.since

    async def resume_firing(self) -> bool:
        """Fire slots again, from now on. False: firing was not paused."""
        resumed = await resume_firing(self._engine.store)
        self._slot_firer.jobs_changed()
        return resumed is not None

    async def paused_since(self) -> datetime | None:
        return (await read_pause(self._engine.store)).since

    async def run_on_start(self, job_ids: Sequence[str]) -> None:
        """Enqueue one run of each job, also if several nodes start within the same minute. None
        while all firing is paused."""
        if not job_ids or (await read_pause(self._engine.store)).since is not None:
            return
        for job_id in job_ids:
            job = await self._stored(job_id)
            if job is not None and job.unreadable is None and job.enabled:
                once = Options(dedupe_key=f"start:{job_id}", dedupe_for=START_HELD)
                await self.enqueue(job_id, [None], once, UTC, Source.START)

    # Steps

    async def _cancel_unstarted(self, job_id: str) -> None:
        """Cancel the pending runs of a removed job, but not those of a new job with the same id."""
        unstarted = frozenset({State.PENDING, State.WAITING})
        until: datetime | None = None
        while True:
            query = RunQuery(job=job_id, states=unstarted, until=until, limit=1000)
            if not (found := (await self._engine.store.find(query)).items):
                return
            anew = await self._stored(
                job_id
            )  # read after the runs: a new job exists before its first run
            if anew is not None:
                until = anew.created_at
            now = await self._engine.store.now()
            left = [run for run in found if until is None or run.created_at < until]
            changes = [transitions.cancelled(run, now, "job removed") for run in left]
            done = await self._engine.store.commit(changes)
            for run, change, kept in zip(left, changes, done, strict=True):
                if kept:
                    self.run_waiters.finished(run.id)
                    self._sweeper.run_ended(run.id)
                    self._engine.emit("run.cancelled", change.after(run))

    async def _check_reorder(self, job: Job) -> None:
        """Check the order of a job and of all jobs that run after it."""
        followers = await self._engine.jobs.followers()
        order = {one.id: one.policy.after for one in followers} | {job.id: job.policy.after}
        behind = [one for one in followers if job.id in upstream_of(one.id, order)]
        await self.check_order([job])
        await self.check_order([job, *behind], all_known=False)

    def _made_runs(
        self,
        job: Job,
        payloads: Sequence[Any],
        options: Options,
        zone: tzinfo,
        source: Source,
        now: datetime,
    ) -> list[Run]:
        run_at, held_until = options.run_at(now, zone), options.held_until(now)
        after = options.upstream()
        runs = []
        for at, (payload, key) in enumerate(
            zip(payloads, options.keys(len(payloads)), strict=True)
        ):
            run = make_run(
                job,
                run_id=new_run_id(now, self._engine.rng),
                now=now + timedelta(microseconds=at),  # they run, and are listed, in this order
                source=source,
                scheduled_at=run_at,
                run_at=run_at,
                payload=payload,
                priority=options.priority,
                queue=options.queue,
                dedupe_key=key,
                dedupe_until=held_until,
            )
            if after:
                run = replace(
                    run,
                    state=State.WAITING,
                    after=after,
                    after_any=_runs_after_failure(job, options),
                    start_by=None,
                )
            runs.append(run)
        return runs

    async def _check_upstream(self, run_ids: tuple[str, ...]) -> None:
        """Raise RunNotFound for the first run of these that does not exist."""
        if not run_ids:
            return
        page = await self._engine.store.find(RunQuery(ids=frozenset(run_ids), brief=True))
        known = {run.id for run in page.items}
        for run_id in run_ids:
            if run_id not in known:
                raise RunNotFound(run_id)

    def _refuse_effect_once(self, job: Job) -> None:
        why = self._engine.store.info().no_transactions
        if why is not None and job.policy.delivery is Delivery.EFFECT_ONCE:
            raise InvalidInput(
                f'job {job.id!r} cannot have delivery="effect_once": {why}',
                field="delivery",
                job_id=job.id,
            )

    async def _stored(self, job_id: str) -> Job | None:
        page = await self._engine.store.jobs(JobQuery(ids=frozenset({job_id}), limit=1))
        return page.items[0] if page.items else None

    async def _committed(self, change: Change) -> bool:
        [kept] = await self._engine.store.commit([change])
        return kept

    def _changed(self, job: Job, event: str) -> Job:
        job = replace(job, version=job.next_version())
        self._engine.jobs.forget(job.id)
        self._slot_firer.jobs_changed()
        self._engine.emit(event, job_id=job.id, job=job)
        return job


def _runs_after_failure(job: Job, options: Options) -> bool:
    """Whether a run also runs if a run that it comes after did not succeed: as the caller says, or
    as the job's policy says."""
    chosen = job.policy.after_failure if options.after_failure is None else options.after_failure
    return chosen == AfterFailure.RUN


def refuse_owned(job: Job) -> None:
    """Refuse an edit of a job that is defined elsewhere."""
    if job.owner is Owner.CODE:
        raise JobOwnedByCode(job.id)
    if job.owner is Owner.FILE:
        raise JobOwnedByFile(job.id, job.file)


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _flatten(instances: Sequence[tuple[Run, ...]]) -> list[Run]:
    return [run for runs in instances for run in runs]


def _new_job(draft: Job, now: datetime) -> Job:
    schedule = draft.schedule.bind(draft.id, now) if draft.schedule else None
    job = replace(draft, schedule=schedule, created_at=now, updated_at=now)
    return replace(job, next_run_at=_first_slot(job, now))


def _first_slot(job: Job, now: datetime) -> datetime | None:
    """Return the first slot of a new job. If its schedule is over, the last slot still runs within
    the misfire grace: `at` a moment that passed while the program started."""
    upcoming = _upcoming(job, job.enabled, now)
    if upcoming is not None or job.schedule is None or not job.enabled:
        return upcoming
    last = job.schedule.previous(now)
    fresh = last is not None and now - last <= duration(job.policy.misfire.grace)
    return last if fresh else None


def _is_same(pair: Replacement) -> bool:
    old, new = pair
    return old is not None and new is not None and replace(new, updated_at=old.updated_at) == old


def _write_of(pair: Replacement) -> JobWrite:
    old, new = pair
    if new is not None:
        return JobWrite.put(new)
    assert old is not None
    return JobWrite.drop(old.id, old.version)


def _merged(draft: Job, stored: Job, now: datetime) -> Job:
    """Merge a draft into the stored job. An unchanged schedule keeps its anchor and its next slot,
    so that slots that were missed while nothing ran are found."""
    if draft.owner is Owner.FILE and (stored.owner, stored.file) != (draft.owner, draft.file):
        raise JobExists(
            f"job {draft.id!r} of the file {draft.file!r} exists already, and another owner made it"
            " (code, the API or another file): give it another id, or take it over with `mainspring"
            " apply --take-over`",
            job_id=draft.id,
        )
    if stored.handler != draft.handler and stored.owner is not draft.owner:
        raise JobExists(
            f"job {draft.id!r} exists with handler {stored.handler!r}; it cannot become"
            f" {draft.handler!r}. Give one of them another id"
        )
    schedule, next_run_at = None, None
    if draft.schedule is not None:
        schedule = draft.schedule.bind(draft.id, _anchor_of(stored))
        if schedule == stored.schedule:
            next_run_at = stored.next_run_at
        else:
            # The stored schedule may start in the future; its replacement starts now.
            anchor = min(_anchor_of(stored), now) if _keeps_anchor(draft.schedule) else now
            schedule = draft.schedule.bind(draft.id, anchor)
            kept = _kept_slot(draft.schedule, schedule, stored, now)
            next_run_at = kept if stored.enabled else None
    return replace(
        draft,
        schedule=schedule,
        next_run_at=next_run_at,
        enabled=stored.enabled,
        last_run_at=stored.last_run_at,
        created_at=stored.created_at,
        updated_at=now,
        version=stored.version,
    )


def _anchor_of(stored: Job) -> datetime:
    """The moment from which a schedule without its own start counts."""
    match stored.schedule:
        case Interval(anchor=datetime() as anchor):
            return anchor
        case Recurrence(dtstart=datetime() as dtstart, timezone=timezone):
            return dst.instant_of(dtstart, zone_named(timezone))
        case _:
            return stored.created_at


def _counts_from_anchor(schedule: Schedule | None) -> bool:
    """Whether a schedule, as given, counts from the moment that it is bound to."""
    match schedule:
        case Interval():
            return True
        case Recurrence(dtstart=dtstart):
            return dtstart is None
        case _:
            return False


def _keeps_anchor(schedule: Schedule) -> bool:
    """Whether a changed schedule goes on from the anchor of the stored one. A rule with COUNT
    does not: its times would be used up from the beginning."""
    ends_by_count = isinstance(schedule, Recurrence) and schedule.most_times is not None
    return _counts_from_anchor(schedule) and not ends_by_count


def _kept_slot(given: Schedule, schedule: Schedule, stored: Job, now: datetime) -> datetime | None:
    """The next slot of a job whose schedule has changed to `schedule` (`given`: before it was
    bound), but that had one before.

    A slot that is due stays. Where both schedules count from an anchor (intervals, and rules
    without a DTSTART), the next slot never moves to a later time: two versions of a program that
    register the same job by turns, as a rolling deploy has them, would otherwise postpone it again
    and again. Of a stored rule it is not known whether its DTSTART was given.
    """
    upcoming, kept = schedule.next(stored.not_before(now)), stored.next_run_at
    if kept is None:
        return upcoming
    if kept <= now:
        return kept
    both = _counts_from_anchor(given) and isinstance(stored.schedule, Interval | Recurrence)
    return min(kept, upcoming) if both and upcoming is not None else upcoming


def _upcoming(job: Job, enabled: bool, now: datetime) -> datetime | None:
    return job.schedule.next(job.not_before(now)) if enabled and job.schedule is not None else None


def _refuse_over(job: Job, now: datetime) -> None:
    if job.schedule is not None and job.schedule.next(now) is None:
        error = schedule_over(job.id, job.schedule, now)
        error.job_id = job.id
        raise error


def schedule_over(job_id: str, schedule: Schedule, now: datetime) -> InvalidSchedule:
    """The error of a schedule that has no slot after `now`."""
    last = schedule.previous(now)
    passed = "" if last is None else f". Its last slot, {iso(last)}, has passed: give a later time"
    return InvalidSchedule(f"the schedule of job {job_id!r} is over: it would never fire{passed}")


def _switched(job: Job, edited: Job) -> bool:
    """Whether the two differ in nothing but `enabled`."""
    return replace(edited, enabled=job.enabled).definition() == job.definition()


def _unchanged(job: Job, expected_version: Job | None) -> None:
    if expected_version is not None and job.definition() != expected_version.definition():
        raise JobChanged(job.id)


def _refuse_unreadable(job: Job) -> None:
    if job.unreadable is not None:
        raise RecordUnreadable("job", job.id, job.unreadable)


def _contended(what: str) -> Conflict:
    return Conflict(f"{what} was changed {TRIES} times while this call tried to write; try again")
