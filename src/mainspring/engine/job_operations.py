"""What a caller asks for about jobs: add, change, pause, resume, remove, and pause all firing.

Everything here happens on the engine's loop and goes straight to the store. Errors of the
store reach the caller: unlike the engine's own loops, a caller can decide to try again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime

from mainspring.core import transitions
from mainspring.core.job_updates import (
    differ_only_in_enabled,
    merge_job,
    next_slot,
    refuse_concurrent_edit,
    refuse_ended_schedule,
    refuse_owned,
    refuse_unreadable_job,
    with_first_slot,
)
from mainspring.core.model import Job, State, replace
from mainspring.core.policy import Delivery
from mainspring.engine.breakers import close_breaker, forget_breakers
from mainspring.engine.context import EngineContext
from mainspring.engine.firing_pause import pause_firing, read_pause, resume_firing
from mainspring.engine.jobs_without_worker import code_jobs_without, runs_code
from mainspring.engine.live_workers import LiveWorker
from mainspring.engine.slot_firer import SlotFirer
from mainspring.engine.slots import over_before, passed_slots
from mainspring.engine.store_retry import TRIES, contended
from mainspring.engine.workflow import check_order
from mainspring.errors import (
    InputErrors,
    InvalidInput,
    InvalidState,
    JobChanged,
    JobExists,
    JobNotFound,
    MainspringError,
)
from mainspring.stores.paging import all_items, read_jobs
from mainspring.stores.protocol import JobQuery, JobWrite, RunQuery

log = logging.getLogger("mainspring")

MANY_AT_ONCE = 1000
"""How many of the jobs that a caller names one commit writes."""

Replacement = tuple[Job | None, Job | None]
"""A job before and after; None: there was none, or it was removed."""

Stored = Mapping[str, Job | None]
Plan = Callable[[Stored, datetime], Awaitable[dict[str, Replacement]]]
"""Plans what becomes of stored jobs, by id. What it leaves out stays as it is."""

Edit = Callable[[Job, datetime], Job]
KeepFromStored = Callable[[Job, Job], Job]


class JobOperations:
    def __init__(self, engine: EngineContext, slot_firer: SlotFirer) -> None:
        self._engine = engine
        self._slot_firer = slot_firer

    def all_jobs(self) -> AsyncIterator[Job]:
        return all_items(self._engine.store.jobs, JobQuery(limit=1000))

    async def find_job(self, job_id: str) -> Job | None:
        return (await read_jobs(self._engine.store, [job_id])).get(job_id)

    async def get_job(self, job_id: str) -> Job:
        job = await self.find_job(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    async def get_cached_job(self, job_id: str) -> Job:
        """Return the job as it was at most a second ago."""
        job = (await self._engine.jobs.get([job_id]))[job_id]
        if job is None:
            stored = (await self._engine.store.jobs(JobQuery(limit=1000))).items
            ids = {other.id for other in stored}
            raise JobNotFound(job_id, ids | self._engine.registry.names() if ids else ids)
        refuse_unreadable_job(job)
        return job

    async def check_order(self, jobs: Sequence[Job], *, all_known: bool = True) -> None:
        """Raise InvalidInput for jobs that could never run because of the jobs they run after.
        `all_known`: those must exist, or be among `jobs`."""
        if not any(job.policy.after for job in jobs):
            return
        order = {job.id: job.policy.after for job in await self._engine.jobs.followers()}
        order |= {job.id: job.policy.after for job in jobs}
        names = {name for after in order.values() for name in after}
        known = (await read_jobs(self._engine.store, names)).keys() | order.keys()
        check_order(order, [job.id for job in jobs], known, all_known=all_known)

    async def create(self, draft: Job, *, dry_run: bool = False) -> Job:
        """Store a new job. Raises if a job of that id exists, or if the schedule has no more slots.
        A `dry_run` makes the same checks and stores nothing."""
        await self.check_order([draft])
        self._refuse_effect_once(draft)
        now = await self._engine.store.now()
        job = with_first_slot(draft, now)
        refuse_ended_schedule(job, now)
        write = JobWrite.put(job)
        if dry_run:
            is_new = await self.find_job(job.id) is None
        else:
            [is_new] = await self._engine.store.put_jobs([write])
        if not is_new:
            raise JobExists(
                f"there is a job {job.id!r} already: add_job(…, replace=True) puts this one in its"
                " place, update_job changes parts of it",
                job_id=job.id,
            )
        if dry_run or write.job is None:
            return job
        await self._announce_writes([write])
        return write.job

    async def put(
        self, draft: Job, keep_from_stored: KeepFromStored, *, dry_run: bool = False
    ) -> Job:
        """Store a new job, or put it in the place of the one that has its id, whose `enabled` and
        creation stay. `keep_from_stored(draft, stored)` says what else of that one stays, or
        refuses. An equal definition changes nothing. A `dry_run` makes the same checks and stores
        nothing."""
        stored = await self.find_job(draft.id)
        if stored is None or stored.policy.after != draft.policy.after:
            await self._check_reorder(draft)
        pairs = await self._define([draft], keep_from_stored, dry_run=dry_run)
        job = pairs[draft.id][1]
        assert job is not None
        return job

    async def define_code(
        self, drafts: Sequence[Job], keep_from_stored: KeepFromStored | None = None
    ) -> None:
        """Store the jobs that a program defines, in one commit. Those that are there are replaced,
        but for what belongs to the operator (`enabled`) and to time (creation, slots already
        named). A job that cannot be read stays as it is: the store has logged it, nothing may
        overwrite it, and the other jobs go on. `keep_from_stored` is as for `put`."""
        pairs = await self._define(drafts, keep_from_stored, of_code=True)
        now = self._engine.time.now()
        for old, job in pairs.values():
            if job is not None and (old is None or old.schedule != job.schedule):
                await self._warn_if_schedule_ended(job, now)

    async def replace_all(
        self,
        drafts: Sequence[Job],
        keep_from_stored: KeepFromStored,
        belongs: Callable[[Job], bool],
        *,
        dry_run: bool,
    ) -> list[Replacement]:
        """Make the stored jobs that `belongs` chooses equal to the drafts: add, change and remove
        jobs. Everything is checked before anything is written, and all is written in one call.
        Returns every job before and after. `keep_from_stored` is as for `put`.

        A crash leaves all of it or nothing, as `put_jobs` does. Only jobs that others change at
        that moment (a slot fires) are read and written again, after the rest.
        """
        wanted = {draft.id for draft in drafts}
        listed = self.all_jobs()
        removed = {job.id async for job in listed if belongs(job) and job.id not in wanted}
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
        pairs = await self._define(
            drafts, keep_from_stored, removed, belongs, errors, dry_run=dry_run
        )
        return list(pairs.values())

    async def _define(
        self,
        drafts: Sequence[Job],
        keep_from_stored: KeepFromStored | None,
        removed: Iterable[str] = (),
        belongs: Callable[[Job], bool] = lambda job: True,
        errors: InputErrors | None = None,
        *,
        of_code: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Replacement]:
        """Store the drafts, and remove jobs that still belong to them, in one commit. `errors` are
        those found so far."""
        errors = errors or InputErrors()
        wanted: dict[str, Job | None] = {draft.id: draft for draft in drafts}
        wanted |= dict.fromkeys(sorted(removed))

        async def plan(stored: Stored, now: datetime) -> dict[str, Replacement]:
            pairs: dict[str, Replacement] = {}
            for job_id, old in stored.items():
                draft = wanted[job_id]
                if old is not None and of_code and old.unreadable is not None:
                    continue
                if old is not None and draft is None and not belongs(old):
                    continue
                with errors:
                    new = None
                    if draft is not None:
                        new = self._merge(draft, old, keep_from_stored, now, of_code=of_code)
                    pairs[job_id] = old, new
            errors.check()
            return pairs

        pairs, left = await self._write(wanted, plan, dry_run=dry_run)
        if left:
            raise contended(f"job {left[0]}")
        return {job_id: pairs[job_id] for job_id in wanted if job_id in pairs}

    def _merge(
        self,
        draft: Job,
        old: Job | None,
        keep_from_stored: KeepFromStored | None,
        now: datetime,
        *,
        of_code: bool,
    ) -> Job:
        """The job that is stored for a draft. Only code may define one whose schedule is over: it
        still starts where the job is stored already."""
        self._refuse_effect_once(draft)
        job = with_first_slot(draft, now)
        if old is not None:
            refuse_unreadable_job(old)
            kept = draft if keep_from_stored is None else keep_from_stored(draft, old)
            # If not of code, `keep_from_stored` has refused jobs that must stay another owner's.
            mine = old if of_code else replace(old, owner=draft.owner, file=draft.file)
            job = merge_job(kept, mine, now)
        if not of_code and (old is None or job.schedule != old.schedule):
            refuse_ended_schedule(job, now)
        return job

    async def _write(
        self, job_ids: Iterable[str], plan: Plan, *, dry_run: bool = False
    ) -> tuple[dict[str, Replacement], list[str]]:
        """Read jobs, plan what becomes of each, and write what changes in one commit; read and plan
        those again that somebody else changed meanwhile. Returns the jobs before and after, and the
        ids of those that others were always quicker to change."""
        written: dict[str, Replacement] = {}
        left = list(job_ids)
        store = self._engine.store
        for _ in range(TRIES):
            if not left:
                break
            stored = await read_jobs(store, left)
            now = await store.now()
            planned = await plan({job_id: stored.get(job_id) for job_id in left}, now)
            pairs = {
                job_id: (old, _unless_equal(old, new)) for job_id, (old, new) in planned.items()
            }
            if dry_run:
                return pairs, []
            changed = [pair for pair in pairs.values() if pair[0] is not pair[1]]
            paused = [old for old, new in changed if old and new and not new.enabled]
            if await self._record_passed_slots(paused, now):
                continue
            writes = [_write_of(pair) for pair in changed]
            done = await store.put_jobs(writes) if writes else []
            kept = [write for write, was_kept in zip(writes, done, strict=True) if was_kept]
            # As they were written: each has its new version.
            pairs |= {write.id: (pairs[write.id][0], write.job) for write in kept}
            left = [w.id for w, was_kept in zip(writes, done, strict=True) if not was_kept]
            written |= {job_id: pair for job_id, pair in pairs.items() if job_id not in left}
            await self._forget_changed_breakers(pairs[write.id] for write in kept)
            await self._announce_writes(kept)
        return written, left

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

        async def plan(stored: Stored, now: datetime) -> dict[str, Replacement]:
            if (job := stored[job_id]) is None:
                raise JobNotFound(job_id)
            refuse_unreadable_job(job)
            refuse_concurrent_edit(job, expected_version)
            edited = replace(edit(job, now), updated_at=now)
            if not operator and not differ_only_in_enabled(job, edited):
                refuse_owned(job)
            if edited.policy.after != job.policy.after:
                await self._check_reorder(edited)
            if edited.policy != job.policy:
                self._refuse_effect_once(edited)
            return {job_id: (job, edited)}

        pairs, left = await self._write([job_id], plan)
        if left:
            raise contended(f"job {job_id}")
        changed = pairs[job_id][1]
        assert changed is not None
        return changed

    async def edit_all(self, needed: Callable[[Job], bool], edit: Callable[[Job], Job]) -> int:
        """Change every job that needs it; return how many did. A job may be removed meanwhile."""
        count = 0
        async for job in self.all_jobs():
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
        return await self.edit(
            job_id,
            lambda job, now: _with_enabled(job, enabled, now),
            operator=True,
            expected_version=expected_version,
        )

    async def set_many_enabled(
        self, job_ids: Iterable[str], enabled: bool
    ) -> dict[str, MainspringError | None]:
        """Pause or resume many jobs, a thousand in one commit; return the error of each job."""

        def change(job: Job, now: datetime) -> Job:
            refuse_unreadable_job(job)
            return replace(_with_enabled(job, enabled, now), updated_at=now)

        return await self._change_many(job_ids, change)

    async def remove_many(
        self, job_ids: Iterable[str], *, force: bool, expected_version: Job | None = None
    ) -> dict[str, MainspringError | None]:
        """Delete many jobs, a thousand in one commit; cancel their pending runs, and let running
        ones end: with this attempt, for a retry is cancelled when it is claimed. Return the error
        of each job. `expected_version` is as for `edit`."""

        def change(job: Job, now: datetime) -> None:
            refuse_concurrent_edit(job, expected_version)
            if not force:
                refuse_owned(job)

        return await self._change_many(job_ids, change)

    async def remove(
        self, job_id: str, *, force: bool, expected_version: Job | None = None
    ) -> None:
        """Delete a job as `remove_many` does; raise its error."""
        errors = await self.remove_many([job_id], force=force, expected_version=expected_version)
        if (error := errors[job_id]) is not None:
            raise error

    async def _record_passed_slots(self, jobs: Iterable[Job], now: datetime) -> bool:
        """Leave a record of the slots of these jobs that are due and will not fire, because the
        jobs are about to be paused. Return whether there were any: then read the jobs again."""
        readable = (job for job in jobs if job.unreadable is None)
        firings = [firing for job in readable if (firing := passed_slots(job, now)) is not None]
        for fired in await self._engine.store.fire(firings) if firings else ():
            for run in fired.runs:
                self._engine.emit("run.skipped", run)
        return bool(firings)

    async def _change_many(
        self, job_ids: Iterable[str], change: Callable[[Job, datetime], Job | None]
    ) -> dict[str, MainspringError | None]:
        """Change jobs, or remove those for which `change` gives None; return the error of each."""
        outcome: dict[str, MainspringError | None] = dict.fromkeys(job_ids)

        async def plan(stored: Stored, now: datetime) -> dict[str, Replacement]:
            pairs: dict[str, Replacement] = {}
            for job_id, job in stored.items():
                try:
                    if job is None:
                        raise JobNotFound(job_id)
                    pairs[job_id] = job, change(job, now)
                except MainspringError as error:
                    outcome[job_id] = error
            return pairs

        ids = list(outcome)
        for start in range(0, len(ids), MANY_AT_ONCE):
            _, left = await self._write(ids[start : start + MANY_AT_ONCE], plan)
            outcome |= {job_id: contended(f"job {job_id}") for job_id in left}
        return outcome

    async def _forget_changed_breakers(self, pairs: Iterable[Replacement]) -> None:
        """A breaker that was changed, or removed and added again, starts closed."""
        changed = [
            new.id for old, new in pairs if old and new and old.policy.breaker != new.policy.breaker
        ]
        if changed:
            await forget_breakers(self._engine.store, changed)

    async def _announce_writes(self, writes: Sequence[JobWrite]) -> None:
        for write in writes:
            self._engine.jobs.forget(write.id)
            if write.job is not None:
                event = "job.updated" if write.expected_version else "job.created"
                self._engine.emit(event, job_id=write.id, job=write.job)
        removed = {write.id for write in writes if write.job is None}
        if len(removed) < len(writes):
            self._slot_firer.jobs_changed()
        if not removed:
            return
        await forget_breakers(self._engine.store, removed)
        # One count is cheaper than a search for the runs of each of many jobs.
        counts = (await self._engine.store.counts()).runs if len(removed) > 1 else None
        for job_id in removed:
            if counts is None or counts.get(job_id, {}).keys() & {State.PENDING, State.WAITING}:
                await self._cancel_runs_of_removed_job(job_id)
            self._engine.emit("job.removed", job_id=job_id)

    async def prune_orphans(
        self, workers: Sequence[LiveWorker], *, dry_run: bool, force: bool
    ) -> list[Job]:
        """Delete the jobs whose code is gone, and cancel their pending runs; return them. While no
        worker is alive it is not known whose code is gone: then only `force` deletes."""
        if not runs_code(workers) and not force:
            raise InvalidState(
                "no worker that runs your code is alive, so every job looks as if its code were"
                " gone: start a worker of each program first, or pass force=True (`--force`)"
            )
        # Also without a worker this program's own handlers are there.
        handlers = {handler for worker in workers for handler in worker.handlers}
        jobs = [job async for job in self.all_jobs()]
        orphans = code_jobs_without(handlers | self._engine.registry.names(), jobs)
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
        """Close the circuit breaker of a job and forget its failures. Workers start its due runs
        within a second or so. Return whether it was open or half-open."""
        job = await self.get_job(job_id)
        refuse_unreadable_job(job)
        if job.policy.breaker is None:
            raise InvalidState(
                f"job {job_id!r} has no circuit breaker to reset: give it one with breaker=…"
            )
        opened = await close_breaker(self._engine.store, job)
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

    async def _cancel_runs_of_removed_job(self, job_id: str) -> None:
        """Cancel the pending runs of a removed job, but not those of a new job with the same id."""
        unstarted = frozenset({State.PENDING, State.WAITING})
        until: datetime | None = None
        while True:
            query = RunQuery(job=job_id, states=unstarted, until=until, limit=1000)
            if not (runs := (await self._engine.store.find(query)).items):
                return
            # Read after the runs: a new job exists before its first run.
            anew = await self.find_job(job_id)
            if anew is not None:
                until = anew.created_at
            now = await self._engine.store.now()
            left = [run for run in runs if until is None or run.created_at < until]
            changes = [transitions.cancelled(run, now, transitions.JOB_REMOVED) for run in left]
            for run in await self._engine.change_runs(left, changes):
                self._engine.emit("run.cancelled", run)

    async def _check_reorder(self, job: Job) -> None:
        """Check the order of a job and of all jobs that run after it."""
        behind = (await self._engine.jobs.followers()).after([job.id])
        await self.check_order([job])
        await self.check_order([job, *behind.values()], all_known=False)

    def _refuse_effect_once(self, job: Job) -> None:
        why = self._engine.store.info().no_transactions
        if why is not None and job.policy.delivery is Delivery.EFFECT_ONCE:
            raise InvalidInput(
                f'job {job.id!r} cannot have delivery="effect_once": {why}',
                field="delivery",
                job_id=job.id,
            )


def _with_enabled(job: Job, enabled: bool, now: datetime) -> Job:
    if job.enabled is enabled:
        return job
    if enabled:
        refuse_ended_schedule(job, now)
    return replace(job, enabled=enabled, next_run_at=next_slot(job, enabled, now))


def _write_of(pair: Replacement) -> JobWrite:
    old, new = pair
    if new is not None:
        return JobWrite.put(new)
    assert old is not None
    return JobWrite.drop(old.id, old.version)


def _unless_equal(old: Job | None, new: Job | None) -> Job | None:
    """The new job, or the old one if they are equal but for the time of the update."""
    is_equal = old and new and replace(new, updated_at=old.updated_at) == old
    return old if is_equal else new
