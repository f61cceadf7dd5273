"""What a caller asks for about runs: enqueue, chain, backfill, wait, cancel, retry, remove; one or
many.

Everything here happens on the engine's loop and goes straight to the store. Errors of the
store reach the caller: unlike the engine's own loops, a caller can decide to try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from msgspec import Struct

from mainspring.core import note_kinds, transitions
from mainspring.core.handlers import Handler
from mainspring.core.model import FINISHED, LIVE, Job, Note, Run, Source, State, new_run_id, replace
from mainspring.core.options import CheckedEnqueueOptions
from mainspring.core.policy import AfterFailure
from mainspring.core.transitions import Change
from mainspring.engine.backfill import Backfill, BackfillPlan, Progress, backfill
from mainspring.engine.context import EngineContext
from mainspring.engine.firing_pause import read_pause
from mainspring.engine.follower_releaser import (
    FollowerReleaser,
    forget_retry,
    note_retry,
    revive_followers,
)
from mainspring.engine.job_operations import JobOperations
from mainspring.engine.jobs_without_worker import followers_to_run
from mainspring.engine.live_workers import LiveWorker, LiveWorkers, find_workers, process_is_gone
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.slots import job_was_removed, make_run, on_nodes, with_followers
from mainspring.engine.store_retry import TRIES, contended, reason_of
from mainspring.engine.worker import Worker
from mainspring.engine.workflow import Followers, refuse_cycle_of_links, upstream_first
from mainspring.errors import (
    Conflict,
    InvalidState,
    NotFound,
    RecordUnreadable,
    RunNotFound,
    StoreError,
    StoreUnavailable,
)
from mainspring.stores.paging import read_note, read_runs
from mainspring.stores.protocol import Added, NoteWrite, RunQuery, Store

POLL = 1.0
"""Seconds between two reads without a hint."""

LAST_READ = 1.0
"""Seconds that the last read may take, after the time is up."""


class RunWaiters:
    """Lets callers wait for the end of runs, and reads those runs from the store in one query.

    A hint that something has changed may be about any of these runs. If each of a thousand waiting
    callers read its own run, the engine's claims would wait behind a thousand reads.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._has_waiters = asyncio.Event()
        self._asked: dict[str, asyncio.Future[Run | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    def finished(self, run_id: str) -> None:
        for event in self._waiting.get(run_id, ()):
            event.set()

    def wake(self) -> None:
        """Read the runs again: another process may have changed one."""
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def wait_for_waiter(self) -> None:
        """Wait until somebody waits for the end of a run."""
        await self._has_waiters.wait()

    async def read(self, run_id: str) -> Run:
        """Return the run as it is now. One query reads all runs that are wanted at this moment, or
        that were asked for during the last query."""
        if not isinstance(run_id, str) or not run_id.isascii():  # no id that Mainspring makes
            raise RunNotFound(run_id)
        if run_id not in self._asked:
            self._asked[run_id] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        run = await asyncio.shield(self._asked[run_id])  # others may wait for the same one
        if run is None:
            raise RunNotFound(run_id)
        return run

    async def wait(self, run_id: str, timeout: float | None) -> Run:
        """Return the run once it has ended; raise TimeoutError if that takes longer. Wait on while
        the store is away: it may come back in time."""
        changed = asyncio.Event()
        last_error: Exception | None = None
        self._waiting.setdefault(run_id, set()).add(changed)
        self._has_waiters.set()  # before the first read: hints of what comes after it arrive
        try:
            async with asyncio.timeout(timeout):
                while True:
                    changed.clear()
                    try:
                        run = await self.read(run_id)
                    except (StoreUnavailable, TimeoutError) as error:
                        last_error = error
                    else:
                        last_error = None
                        if run.finished:
                            return run
                    await wait_for_event(changed, POLL)
        except TimeoutError:
            return await self._read_last(run_id, timeout, last_error)
        finally:
            self._waiting[run_id].discard(changed)
            if not self._waiting[run_id]:
                del self._waiting[run_id]
            if not self._waiting:
                self._has_waiters.clear()

    async def _read_last(
        self, run_id: str, timeout: float | None, last_error: Exception | None
    ) -> Run:
        """Return the run if it has ended by now; raise TimeoutError otherwise, or if the store does
        not answer soon. So a timeout of zero reads the run once."""
        try:
            async with asyncio.timeout(LAST_READ):
                run = await self.read(run_id)
        except (StoreUnavailable, TimeoutError) as error:
            cause = last_error or error
            raise TimeoutError(
                f"run {run_id} was not seen to finish within {timeout} s: the store does not"
                f" answer ({reason_of(cause)})"
            ) from cause
        if run.finished:
            return run
        raise TimeoutError(f"run {run_id} did not finish within {timeout} s")

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                page = await self._store.find(RunQuery(ids=frozenset(asked)))
            except Exception as error:
                for future in asked.values():
                    future.set_exception(error)
                    future.exception()  # read, or asyncio logs it where the caller is gone
            except BaseException:
                for future in asked.values():
                    future.cancel()
                raise
            else:
                runs = {run.id: run for run in page.items}
                for run_id, future in asked.items():
                    future.set_result(runs.get(run_id))


log = logging.getLogger("mainspring")

MANY_AT_ONCE = 1000
"""How many runs one search names."""

PAGE = 500
"""How many of many runs are changed in one commit."""

_REVIVABLE = frozenset({State.FAILED, State.CANCELLED})

Target = tuple[Handler | None, Any]
"""What runs a job: the handler, if this process has it, and the job's own payload."""

START_HELD = timedelta(seconds=60)
"""How long the note of a start holds: nodes that start within this time make one run together."""


@dataclass(frozen=True, slots=True)
class EnqueueBatch:
    """Runs of one job to add: one for each payload; None is the job's own payload. `checked_by` is
    the handler that the caller has checked the payloads with, on its thread. `trace` is the
    caller's trace context."""

    job_id: str
    payloads: Sequence[Any]
    options: CheckedEnqueueOptions
    checked_by: Handler | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class EnqueueFacts:
    """What the runs of an enqueue are made from."""

    jobs: Mapping[str, Job]
    followers: Followers
    workers: Sequence[LiveWorker]
    now: datetime


@dataclass(frozen=True, slots=True)
class EnqueuePlan:
    """What an enqueue adds: for each payload a run (of an `each_node` job one for each node), and
    the runs that follow it."""

    instances: Sequence[tuple[Run, ...]]
    upstream: tuple[str, ...] = ()
    """The runs that these come after."""

    @property
    def runs(self) -> list[Run]:
        return [run for instance in self.instances for run in instance]

    def results(self, added: Sequence[Added]) -> list[Run]:
        """The run of each payload, as the store has it."""
        stored: dict[str, Run] = {}
        for run, result in zip(self.runs, added, strict=True):
            stored[run.id] = result.run
            if result.duplicate and result.run.job_id != run.job_id:
                log.warning(
                    "no run of %s was added: %s, a run of %s, holds the dedupe key %r. All jobs"
                    " share the keys, so put the job's name into the key",
                    *(run.job_id, result.run.id, result.run.job_id, result.run.dedupe_key),
                )
        return [stored[instance[0].id] for instance in self.instances]


class Matched(Struct, frozen=True):
    """How many runs matched, how many were changed, and whether more match than the limit."""

    matched: int
    done: int
    more: bool


class RunOperations:
    def __init__(
        self,
        engine: EngineContext,
        jobs: JobOperations,
        worker: Worker,
        releaser: FollowerReleaser,
        run_waiters: RunWaiters,
        live_workers: LiveWorkers,
    ) -> None:
        self._engine = engine
        self._jobs = jobs
        self._worker = worker
        self._releaser = releaser
        self._run_waiters = run_waiters
        self._live_workers = live_workers
        self._any_loop = engine.store.info().any_loop

    async def enqueue(
        self, batches: Sequence[EnqueueBatch], zone: tzinfo, source: Source
    ) -> list[Run]:
        """Add a run for each payload of each batch, all in one commit, and return them in order.
        The store encodes each payload, and refuses what is not JSON. An `each_node` job gets a run
        on each node; returned is the one on this node, if it is one, else that on the first."""
        facts = await self.read_facts({batch.job_id for batch in batches}, source)
        return await self.add_plan(self.plan(batches, facts, zone, source))

    async def add(
        self, batches: Sequence[EnqueueBatch], facts: EnqueueFacts, zone: tzinfo, source: Source
    ) -> list[Run]:
        """The same of runs that come after none. May be called on any loop that the store takes."""
        return await self.add_plan(self.plan(batches, facts, zone, source))

    async def add_plan(self, plan: EnqueuePlan) -> list[Run]:
        """Add the runs of a plan, all in one commit, and return one for each payload."""
        await self._check_upstream(plan.upstream)
        added = await self._engine.store.add(plan.runs)
        for item in added:
            if not item.duplicate:
                skipped = item.run.state is State.SKIPPED
                self._engine.emit("run.skipped" if skipped else "run.enqueued", item.run)
        if plan.upstream:  # it may have ended before its follower was added
            with contextlib.suppress(StoreError):  # the run is added; the next sweep releases it
                await self._releaser.release_followers(plan.upstream)
        return plan.results(added)

    async def read_facts(self, job_ids: Collection[str], source: Source) -> EnqueueFacts:
        """Read what the plan of an enqueue needs to know."""
        now = await self._engine.store.now()
        self._engine.time.correct(now)
        jobs = {job_id: await self._jobs.get_cached_job(job_id) for job_id in job_ids}
        followers = await followers_to_run(self._engine, jobs.keys())
        workers = await self._live_workers.find_nodes(
            [*jobs.values(), *followers.after(jobs).values()], only_here=source is Source.START
        )
        return EnqueueFacts(jobs, followers, workers, now)

    def known_facts(self, job_ids: Collection[str]) -> EnqueueFacts | None:
        """The same where all of it was read within the last second, and no run follows or belongs
        to a node. May be called from any thread."""
        cached, time = self._engine.jobs.cached(job_ids), self._engine.time
        if cached is None or time.age > self._engine.jobs.MAX_AGE:
            return None
        jobs, followers = cached
        if followers.after(jobs) or any(job.policy.each_node for job in jobs.values()):
            return None
        return EnqueueFacts(jobs, followers, (), time.now())

    def facts_for_any_loop(self, batches: Sequence[EnqueueBatch]) -> EnqueueFacts | None:
        """The same where the runs may be added from the caller's loop."""
        if not self._any_loop or any(batch.options.upstream() for batch in batches):
            return None
        return self.known_facts({batch.job_id for batch in batches})

    def plan(
        self, batches: Sequence[EnqueueBatch], facts: EnqueueFacts, zone: tzinfo, source: Source
    ) -> EnqueuePlan:
        """Make the runs of an enqueue."""
        roots: list[Run] = []
        for batch in batches:
            job = facts.jobs[batch.job_id]
            made_at = facts.now + timedelta(microseconds=len(roots))
            roots += self._make_runs(job, batch, zone, source, made_at)
        instances = [
            with_followers(
                on_nodes(root, facts.jobs[root.job_id], facts.now, facts.workers),
                facts.followers,
                root.created_at,
                facts.workers,
            )
            for root in roots
        ]
        upstream = dict.fromkeys(id for batch in batches for id in batch.options.upstream())
        return EnqueuePlan(instances, tuple(upstream))

    async def find_targets(self, job_ids: Iterable[str]) -> dict[str, Target]:
        """The handlers that this process has for jobs, and the payloads of the jobs."""
        targets: dict[str, Target] = {}
        for job_id in job_ids:
            job = await self._jobs.get_cached_job(job_id)
            targets[job_id] = self._engine.registry.find(job.handler), job.payload
        return targets

    async def chain(
        self, links: Sequence[EnqueueBatch], after_failure: str | None, zone: tzinfo
    ) -> list[Run]:
        """Add a run of each job, each after the one before it, all in one commit. A link has one
        payload.

        A link starts the workflow of its job, so a later link may be of a job that follows it
        already. The run that follows is the link then: the job runs once.
        """
        now = await self._engine.store.now()
        followers = await followers_to_run(self._engine, {link.job_id for link in links})
        jobs = [await self._jobs.get_cached_job(link.job_id) for link in links]
        workers = await self._live_workers.find_nodes(
            [*jobs, *followers.after(job.id for job in jobs).values()]
        )
        runs: list[Run] = []
        last: tuple[Run, ...] = ()  # the last link: a run, or one for each node
        runs_by_id: dict[str, Run] = {}
        following: dict[str, list[Run]] = {}  # runs of jobs that follow a link, by job
        for at, (job, batch) in enumerate(zip(jobs, links, strict=True)):
            if last:
                after = [run.id for run in last]
                options = CheckedEnqueueOptions(after=after, after_failure=after_failure)
                batch = dataclasses.replace(batch, options=options)
            made_at = now + timedelta(microseconds=at)
            [run] = self._make_runs(job, batch, zone, Source.ENQUEUE, made_at)
            link = on_nodes(run, job, now, workers)
            if (there := following.pop(job.id, None)) is not None:
                refuse_cycle_of_links(last[0], there[0], runs_by_id)
                by_handler = {one.handler: one for one in there}
                link = tuple(_as_link(by_handler[run.handler], run) for run in link)
                runs_by_id |= {one.id: one for one in link}
            else:
                instance = with_followers(link, followers, run.created_at, workers)
                runs_by_id |= {one.id: one for one in instance}
                for one in instance[len(link) :]:
                    following.setdefault(one.job_id, []).append(one)
            runs.append(link[0])
            last = link
        for added in await self._engine.store.add(upstream_first(runs_by_id)):
            self._engine.emit("run.enqueued", added.run)
        return runs

    async def cancel(self, run_id: str, reason: str) -> bool:
        """Cancel a run; return False if it has ended. The handler of a running one is stopped, and
        the run ends as cancelled whatever the handler does."""
        for _ in range(TRIES):
            run = await self.get_run(run_id)
            if run.finished:
                return False
            if run.cancel_requested:
                return True
            change = transitions.cancelled_or_requested(run, await self._engine.store.now(), reason)
            [kept] = await self._engine.store.commit([change])
            if kept:
                self.announce_cancel(change.after(run))
                return True
        raise contended(f"run {run_id}")

    def announce_cancel(self, after: Run) -> None:
        """After a cancel was committed: emit its end, or stop the handler if it runs here."""
        if after.finished:
            self._engine.run_ended(after.id)
            self._engine.emit("run.cancelled", after)
        else:
            self._worker.leases.apply_remote_changes([after])

    async def retry(self, run_id: str) -> Run:
        """Make a failed or cancelled run pending again, or let it wait again while a run that it
        comes after has not ended. Runs that were skipped because it did not succeed wait for it
        again."""
        run = await self.get_run(run_id)
        if run.state not in _REVIVABLE:
            raise InvalidState(
                f"only a failed or cancelled run can be tried again; {run_id} is {run.state}"
            )
        if run.unreadable is not None:
            raise RecordUnreadable("run", run_id, run.unreadable)
        if await self.find_runs_of_removed_jobs([run]):
            raise InvalidState(
                f"run {run_id} cannot be tried again: its job {run.job_id!r} was removed"
            )
        [change] = changes = await self.make_retries([run])
        [kept] = await self.commit_retries([run], changes)
        if not kept:
            now = await self.get_run(run_id)
            held = f"its dedupe key {run.dedupe_key!r} is held by another run"
            raise InvalidState(
                f"run {run_id} cannot be tried again: "
                + (held if now.state is run.state else f"it is {now.state} by now")
            )
        after = change.after(run)
        self._engine.emit("run.enqueued", after)
        return after

    async def make_retries(self, runs: Sequence[Run]) -> list[Change]:
        """Make the changes that try these runs again."""
        upstream = {name for run in runs for name in run.after}
        before = (await read_runs(self._engine.store, upstream)).values()
        states = {run.id: run.state for run in before}
        states |= dict.fromkeys((run.id for run in runs), State.PENDING)
        now = await self._engine.store.now()
        return [
            transitions.revived(run, now, waits_for=transitions.awaited_again(run, states))
            for run in runs
        ]

    async def commit_retries(self, runs: Sequence[Run], changes: Sequence[Change]) -> list[bool]:
        """Commit changes of `make_retries`, and return which were kept. The runs after them wait
        again. If that is interrupted, the leader completes it."""
        note = await note_retry(self._engine, runs)
        kept = await self._engine.store.commit(changes)
        revived = [run for run, was_kept in zip(runs, kept, strict=True) if was_kept]
        reached: list[str] = []
        if revived:
            try:
                reached = await revive_followers(self._engine, revived)
            except StoreError:
                return kept  # the note stands
        await forget_retry(self._engine, note)
        reached += _awaited(revived, changes)
        with contextlib.suppress(StoreError):  # the next sweep releases them
            # One may have ended before its followers waited again, and one that a retried run comes
            # after may have ended before that one waited.
            for start in range(0, len(reached), MANY_AT_ONCE):
                await self._releaser.release_followers(reached[start : start + MANY_AT_ONCE])
        return kept

    # Many runs: those named by id, or all that match a query, whose `limit` is the most that are
    # changed. Each page of runs is one commit.

    async def cancel_many(self, query: RunQuery, ids: list[str] | None, reason: str) -> Matched:
        matched = done = 0
        chosen = _Chosen(query, ids, LIVE)
        async for runs in self._pages(chosen):
            matched += len(runs)
            now = await self._engine.store.now()
            changes = [transitions.cancelled_or_requested(run, now, reason) for run in runs]
            kept = await self._engine.store.commit(changes)
            for run, change, was_kept in zip(runs, changes, kept, strict=True):
                if was_kept:
                    self.announce_cancel(change.after(run))
                done += was_kept or await _once_more(self.cancel(run.id, reason))
        return Matched(matched, done, chosen.more)

    async def retry_many(self, query: RunQuery, ids: list[str] | None) -> Matched:
        """Try the runs again, the oldest first: a run waits for those that it comes after only if
        they are tried again before it, or with it."""
        done = 0
        chosen = _Chosen(query, ids, _REVIVABLE)
        matching = [run async for runs in self._pages(chosen, brief=True) for run in runs]
        # A follower may have the same time as its root.
        matching.sort(key=lambda run: (run.created_at, bool(run.after)))
        oldest_first = _Chosen(query, [run.id for run in matching], _REVIVABLE)
        async for runs in self._pages(oldest_first):
            without = await self.find_not_revivable(runs)
            runs = [run for run in runs if run.id not in without]
            changes = await self.make_retries(runs)
            kept = await self.commit_retries(runs, changes)
            for run, change, was_kept in zip(runs, changes, kept, strict=True):
                if was_kept:
                    self._engine.emit("run.enqueued", change.after(run))
                done += was_kept or await _once_more(self.retry(run.id))
        return Matched(len(matching), done, chosen.more)

    async def remove_many(self, query: RunQuery, ids: list[str] | None) -> Matched:
        matched = done = 0
        chosen = _Chosen(query, ids, FINISHED)
        async for runs in self._pages(chosen, brief=True):
            matched += len(runs)
            done += sum(await self._engine.store.commit([transitions.deleted(run) for run in runs]))
        return Matched(matched, done, chosen.more)

    async def _pages(self, chosen: _Chosen, *, brief: bool = False) -> AsyncIterator[list[Run]]:
        if chosen.ids is not None:
            for start in range(0, len(chosen.ids), PAGE):
                ids = chosen.ids[start : start + PAGE]
                runs = await read_runs(self._engine.store, ids, brief=brief)
                yield [run for run in runs.values() if run.state in chosen.states]
            return
        query, left = chosen.query, chosen.query.limit
        cursor = query.cursor
        while left > 0 and chosen.states:
            page = await self._engine.store.find(
                replace(query, brief=brief, limit=min(PAGE, left), cursor=cursor)
            )
            left -= len(page.items)
            yield page.items
            if (cursor := page.cursor) is None:
                return
        if cursor is not None:
            one_more = replace(query, brief=True, limit=1, cursor=cursor)
            chosen.more = bool((await self._engine.store.find(one_more)).items)

    async def find_runs_of_removed_jobs(self, runs: Sequence[Run]) -> set[str]:
        """Return the runs whose job was removed: a retry would only end as cancelled."""
        ids = {run.job_id for run in runs}
        jobs = await self._engine.jobs.get(ids, newest=ids)
        return {run.id for run in runs if job_was_removed(run, jobs[run.job_id])}

    async def find_not_revivable(self, runs: Sequence[Run]) -> set[str]:
        """Return the runs that cannot be retried, whatever their state."""
        unreadable = {run.id for run in runs if run.unreadable is not None}
        return unreadable | await self.find_runs_of_removed_jobs(runs)

    async def get_run(self, run_id: str) -> Run:
        return await self._run_waiters.read(run_id)

    async def backfill(
        self, job_id: str, plan: BackfillPlan, progress: Progress | None
    ) -> Backfill:
        """Add a run for each slot of the plan that has none."""
        job = await self._jobs.get_job(job_id)
        return await backfill(self._engine, self._live_workers, job, plan, progress)

    async def run_on_start(self, job_ids: Sequence[str]) -> None:
        """Enqueue one run of each job. If another node that is alive did so within the last minute,
        a skipped run says that this node shares that one. None while all firing is paused."""
        if not job_ids or (await read_pause(self._engine.store)).since is not None:
            return
        for job_id in job_ids:
            job = await self._jobs.find_job(job_id)
            if job is None or job.unreadable is not None or not job.enabled:
                continue
            node = None if job.policy.each_node else await self._take_start(job_id)
            if node is None:
                handler = self._engine.registry.find(job.handler)  # it was checked when defined
                start = EnqueueBatch(job_id, [None], CheckedEnqueueOptions(), handler)
                await self.enqueue([start], UTC, Source.START)
            else:
                await self._record_shared_start(job, node)

    async def _take_start(self, job_id: str) -> str | None:
        """Take the run at the start of a job for this node. Return the node that has taken it
        within the last minute, if that is alive; None: this node has it."""
        store, this_worker = self._engine.store, self._engine.settings.worker_id
        for _ in range(TRIES):
            note = await read_note(store, note_kinds.START, job_id)
            holder = note.value.get("node") if note and isinstance(note.value, dict) else None
            if isinstance(holder, str) and not process_is_gone(holder, this_worker):
                alive = {worker.id for worker in await find_workers(store)} - {this_worker}
                if holder in alive:
                    return holder
            version = 0 if note is None else note.version
            mine = Note(
                kind=note_kinds.START, name=job_id, value={"node": this_worker}, version=version
            )
            if await store.put_notes([NoteWrite.put(mine, ttl=START_HELD)]) != [None]:
                return None
        raise contended(f"the start of job {job_id}")

    async def _record_shared_start(self, job: Job, node: str) -> None:
        now = await self._engine.store.now()
        run = make_run(
            job,
            run_id=new_run_id(now, self._engine.rng),
            now=now,
            source=Source.START,
            scheduled_at=now,
            run_at=now,
            state=State.SKIPPED,
            finished_at=now,
            reason=transitions.STARTED_TOGETHER,
            result={"node": node},
        )
        [added] = await self._engine.store.add([run])
        self._engine.emit("run.skipped", added.run)

    def _make_runs(
        self, job: Job, batch: EnqueueBatch, zone: tzinfo, source: Source, now: datetime
    ) -> list[Run]:
        options, payloads = batch.options, batch.payloads
        handler = self._engine.registry.find(job.handler)
        if handler is not None and handler is not batch.checked_by:  # the job has changed since
            payloads = check_payloads(handler, payloads, job.payload)
        run_at, dedupe_until = options.run_at(now, zone), options.dedupe_until(now)
        after = options.upstream()
        first = make_run(
            job,
            run_id="",
            now=now,
            source=source,
            scheduled_at=run_at,
            run_at=run_at,
            priority=options.priority,
            queue=options.queue,
            dedupe_until=dedupe_until,
            trace=batch.trace,
        )
        if after:
            after_any = _runs_after_failure(job, options)
            first = replace(first, state=State.WAITING, after=after, after_any=after_any)
        keys = options.keys(len(payloads))
        return [
            replace(
                first,
                id=new_run_id(now, self._engine.rng),
                # They run, and are listed, in this order.
                created_at=first.created_at + timedelta(microseconds=at),
                payload=job.payload if payload is None else payload,
                dedupe_key=key,
            )
            for at, (payload, key) in enumerate(zip(payloads, keys, strict=True))
        ]

    async def _check_upstream(self, run_ids: tuple[str, ...]) -> None:
        """Raise RunNotFound for the first run of these that does not exist."""
        known = await read_runs(self._engine.store, run_ids)
        for run_id in run_ids:
            if run_id not in known:
                raise RunNotFound(run_id)


def check_payloads(handler: Handler, payloads: Sequence[Any], job_payload: Any) -> list[Any]:
    """Return payloads as they are stored; raise InvalidArguments for one that the handler does not
    take. None stands for the job's own payload. This runs the program's code (the types of the
    handler's arguments), so callers do it in their own thread."""
    encoded = [handler.encode_payload(payload) for payload in payloads]
    for payload in encoded:
        handler.check(job_payload if payload is None else payload)
    return encoded


def _runs_after_failure(job: Job, options: CheckedEnqueueOptions) -> bool:
    """Whether a run also runs if a run that it comes after did not succeed: as the caller says, or
    as the job's policy says."""
    chosen = job.policy.after_failure if options.after_failure is None else options.after_failure
    return chosen == AfterFailure.RUN


def _awaited(runs: Sequence[Run], changes: Sequence[Change]) -> list[str]:
    """The runs that those of these runs come after which their changes let wait."""
    waiting = {change.id for change in changes if change.set.get("state") is State.WAITING}
    names = (name for run in runs if run.id in waiting for name in run.after)
    return list(dict.fromkeys(names))


def _as_link(follower: Run, link: Run) -> Run:
    """A link of a chain whose job follows an earlier link already."""
    after = tuple(dict.fromkeys((*follower.after, *link.after)))
    return replace(link, id=follower.id, after=after)


class _Chosen:
    """Which runs to change: the query or the ids, and the states that the change applies to."""

    def __init__(self, query: RunQuery, ids: list[str] | None, fit: frozenset[State]) -> None:
        self.states = fit if query.states is None else fit & query.states
        self.query = replace(query, states=self.states)
        self.ids = None if ids is None else list(dict.fromkeys(ids))
        self.more = False


async def _once_more(change: Awaitable[object]) -> bool:
    try:
        return bool(await change)
    except (Conflict, NotFound):
        return False
