"""Answers "why did it not run?" for a run, a job, or a slot of a job.

An answer says only what is known: from the run itself, from the record of missed slots, from the
notes of workers, and from the note that says when no worker was alive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct

from mainspring.core import model, transitions
from mainspring.core.durations import duration, humanize
from mainspring.core.model import Job, Run, State, replace, slot_of, slot_run_id
from mainspring.core.plurals import list_some
from mainspring.engine.breakers import breaker_status
from mainspring.engine.engine import Engine
from mainspring.engine.jobs_without_worker import describe_full_worker, without_worker
from mainspring.engine.live_workers import LiveWorker, no_worker_fires, read_uptime
from mainspring.engine.pruner import history_begins, history_of, retention_of
from mainspring.errors import InvalidInput, JobNotFound, RunNotFound
from mainspring.stores.limits import next_start
from mainspring.stores.paging import all_items, pages, read_jobs, read_runs
from mainspring.stores.protocol import JobQuery, RunQuery

MAX_UPSTREAM_DEPTH = 10
"""Upstream runs that are followed to find what a run waits for in the end."""

MOST_NAMED = 5
MOST_UNFINISHED = 100_000
"""Unfinished runs of a job in one state that are looked through for the earliest."""

MOST_GAPS = 10_000
"""Skipped runs that are looked through for the record of a missed slot."""

_RUN_ID = re.compile(r"@|^[0-9a-f]{32}$")
"""No job id contains `@`, and enqueued runs have 32 digits."""

_GAP_REASONS = (transitions.MISFIRE, transitions.PAUSED, transitions.JOB_PAUSED)
_INSTANT = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)


class Reason(StrEnum):
    """The code of an answer."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RUNNING = "running"
    NOT_DUE = "not_due"
    PAUSED = "paused"
    ALL_PAUSED = "all_paused"
    DISABLED = "disabled"
    OVERLAP = "overlap"
    MISFIRE = "misfire"
    DOWN = "down"
    EXPIRED = "expired"
    UPSTREAM = "upstream"
    WAITING = "waiting"
    BREAKER = "breaker_open"
    CONCURRENCY = "concurrency"
    RATE = "rate_limited"
    NO_WORKER = "no_worker"
    NO_QUEUE = "no_worker_for_queue"
    NO_HANDLER = "no_handler"
    NO_CAPACITY = "no_capacity"
    NODE_GONE = "node_gone"
    NOT_FIRED = "not_fired"
    NO_SCHEDULE = "no_schedule"
    SCHEDULE_OVER = "schedule_over"
    NOT_A_SLOT = "not_a_slot"
    NOT_CREATED = "not_created"
    PRUNED = "pruned"
    UNREADABLE = "unreadable"
    SKIPPED = "skipped"
    NO_RECORD = "no_record"


NO_PROBLEM = frozenset(
    {
        Reason.SUCCEEDED,
        Reason.RUNNING,
        Reason.NOT_DUE,
        Reason.NO_SCHEDULE,
        Reason.WAITING,
    }
)
"""Codes of answers that are no problem."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a run, a job or a slot has not run, or not yet; or that it has.

    `code` is for programs, `sentence` for people. `facts` are what the sentence is made of: ids of
    runs, times, names of workers. `at` is the slot that was asked about.
    """

    code: Reason
    sentence: str
    job_id: str
    run_id: str | None = None
    at: datetime | None = None
    facts: Mapping[str, Any] = {}

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong: it ran, it runs, or its time has not come."""
        return self.code in NO_PROBLEM

    @property
    def problem(self) -> str | None:
        """The sentence, unless a worker runs it or it has ended by itself."""
        ended = self.code is Reason.FAILED and self.facts.get("reason") is None
        runs = self.code is Reason.RUNNING and not self.facts["lapsed"]
        return None if ended or runs or self.code is Reason.SUCCEEDED else self.sentence


async def explain(engine: Engine, name: str, at: datetime | None) -> Explanation:
    """Explain a job (with `at`: its slot at that moment) or a run, by id."""
    if (job := await engine.job_operations.find_job(name)) is not None:
        return await (_explain_job(engine, job) if at is None else _explain_slot(engine, job, at))
    try:
        explanation = await explain_run(engine, name)
    except RunNotFound:
        if not _RUN_ID.search(name):
            raise JobNotFound(name) from None
        return await _explain_deleted(engine, name)
    if at is not None:
        raise InvalidInput(
            f"{name!r} is a run, and a time is given for a job: leave it out", field="at", given=at
        )
    return explanation


async def _explain_deleted(engine: Engine, run_id: str) -> Explanation:
    """Explain the run of a slot that is not in the store, by what is known of the slot."""
    job_id, _, slot = run_id.partition("@")
    job, at = await engine.job_operations.find_job(job_id), slot_of(slot.partition("@")[0])
    if job is None or at is None:
        raise RunNotFound(run_id)
    return await _explain_slot(engine, job, at)


async def explain_run(engine: Engine, run_id: str) -> Explanation:
    return await _explain_run(engine, await engine.run_operations.get_run(run_id))


# Jobs


async def _explain_job(engine: Engine, job: Job) -> Explanation:
    """What keeps the job from running now; else when it runs next."""
    if job.unreadable is not None:
        return _explained(job, Reason.UNREADABLE, f"its record cannot be read: {job.unreadable}")
    if job.schedule is not None and not job.enabled:
        return _paused(job)
    now = await engine.store.now()
    pending = await _find_earliest(engine, job, State.PENDING)
    if pending is not None and pending.run_at <= now:
        return await _explain_run(engine, pending)
    since = await engine.job_operations.paused_since()
    if job.schedule is not None and since is not None:
        text = f"all firing is paused since {_moment(since)}: mainspring resume --all resumes it"
        return _explained(job, Reason.ALL_PAUSED, text, since=since)
    if job.schedule is not None and no_worker_fires(
        workers := await engine.live_workers.read_workers()
    ):
        return _disabled(job, workers, job.next_run_at, now)
    if job.next_run_at is not None and job.next_run_at <= now:
        return await _not_fired(engine, job, job.next_run_at, now)
    for state in (State.RUNNING, State.WAITING):
        if (run := await _find_earliest(engine, job, state)) is not None:
            return await _explain_run(engine, run)
    if pending is not None:
        return await _explain_run(engine, pending)
    return await _explain_idle_job(engine, job, now)


async def _find_earliest(engine: Engine, job: Job, state: State) -> Run | None:
    """The run of the job in this state that is due first. Of a long backlog only the times are
    read: payloads would make it slow."""
    query = RunQuery(job=job.id, states=frozenset({state}), brief=True, limit=1000)
    earliest: Run | None = None
    async for page in pages(engine.store.find, query, MOST_UNFINISHED):
        ahead = page if earliest is None else [earliest, *page]
        earliest = min(ahead, key=lambda run: run.run_at)
    if earliest is None:
        return None
    whole = await read_runs(engine.store, [earliest.id], brief=False)
    return whole.get(earliest.id) or earliest


async def _explain_idle_job(engine: Engine, job: Job, now: datetime) -> Explanation:
    if job.next_run_at is not None:
        next_slot = _moment(job.next_run_at, exact=True)
        text = f"its next slot is at {next_slot}, in {_span(job.next_run_at - now)}"
        workers = await engine.live_workers.read_workers()
        if without_worker([job], workers):
            _, why = _lacking(job.handler, job.policy.queue, workers)
            text += f". But {why}"
        return _explained(job, Reason.NOT_DUE, text, next_slot=job.next_run_at)
    if job.schedule is not None:
        last = job.schedule.previous(now)
        text = "its schedule is over" + (f": its last slot was at {_moment(last)}" if last else "")
        return _explained(job, Reason.SCHEDULE_OVER, text, last_slot=last)
    if job.policy.after and not job.enabled:
        text = f"the job is paused, so no run of it is made after {_listed(job.policy.after)}"
        return _explained(job, Reason.PAUSED, text, changed_at=job.updated_at)
    newest = (await engine.store.find(RunQuery(job=job.id, brief=True, limit=1))).items
    when = f"after {_listed(job.policy.after)}" if job.policy.after else "when it is enqueued"
    text = f"it has no schedule: it runs {when}"
    if job.policy.after:
        there = await read_jobs(engine.store, job.policy.after)
        if gone := [id for id in job.policy.after if id not in there]:
            text = f"it comes after {_listed(gone)}, and there is no such job"
    if newest:
        text += f". Its last run is {newest[0].id}, {newest[0].state}"
    return _explained(job, Reason.NO_SCHEDULE, text, last_run=newest[0].id if newest else None)


def _paused(job: Job, at: datetime | None = None) -> Explanation:
    text = "the job is paused, so no slot fires"
    return _explained(job, Reason.PAUSED, text, at=at, changed_at=job.updated_at)


async def _not_fired(engine: Engine, job: Job, slot: datetime, now: datetime) -> Explanation:
    """Why a slot that is due was not fired."""
    late = f"its slot at {_moment(slot)} has not been fired for {_span(now - slot)}"
    workers = await engine.live_workers.read_workers()
    if not workers:
        uptime = await read_uptime(engine.store)
        since = "" if uptime is None else f" since {_moment(uptime.alive_at)}"
        return _explained(
            job,
            Reason.NO_WORKER,
            f"{late}: no worker is alive{since}",
            at=slot,
            alive_at=None if uptime is None else uptime.alive_at,
        )
    if no_worker_fires(workers):
        return _disabled(job, workers, slot, now)
    if without_worker([job], workers):
        code, why = _lacking(job.handler, job.policy.queue, workers)
        return _explained(job, code, f"{late}: {why}", at=slot, workers=_ids(workers))
    seen = max(workers, key=lambda worker: worker.seen_at or now)
    age = _span(now - (seen.seen_at or now))
    text = f"{late}: worker {seen.id}, last seen {age} ago, fires it within seconds if it is alive"
    return _explained(job, Reason.NOT_FIRED, text, at=slot, workers=_ids(workers))


def _disabled(
    job: Job, workers: list[LiveWorker], slot: datetime | None, now: datetime
) -> Explanation:
    """Workers are alive, and none of them fires slots."""
    late = slot if slot is not None and slot <= now else None
    text = "no slot fires"
    if late is not None:
        text = f"its slot at {_moment(late)} has not been fired for {_span(now - late)}"
    off = "firing is switched off (enabled=False) on every worker that is alive"
    text += f": {off}. Start one that fires"
    return _explained(job, Reason.DISABLED, text, at=late, workers=_ids(workers))


# Slots


async def _explain_slot(engine: Engine, job: Job, at: datetime) -> Explanation:
    """Why a job did not run at a moment: by the run of that slot, else by what else is known."""
    at = _exact_slot(job, at.astimezone(UTC))
    own = slot_run_id(job.id, at)
    by_id = await read_runs(engine.store, [own, f"{own}@backfill"], brief=False)
    run = by_id.get(f"{own}@backfill") or by_id.get(own)
    if run is not None and not (run.reason == transitions.MISFIRE and run.id == own):
        return replace(await _explain_run(engine, run), at=at)
    if job.unreadable is not None:
        return _explained(job, Reason.UNREADABLE, f"its record cannot be read: {job.unreadable}")
    if job.policy.each_node and (on_nodes := await _find_on_nodes(engine, job, own, at)):
        return replace(await _explain_on_nodes(engine, on_nodes), at=at)
    if run is None and (unnamed := _not_a_slot(job, at)) is not None:
        return unnamed
    if run is None and job.created_at > at:
        text = f"the job did not exist yet: it was created at {_moment(job.created_at)}"
        return _explained(job, Reason.NOT_CREATED, text, at=at, created_at=job.created_at)
    now = await engine.store.now()
    if at > now:
        if not job.enabled:
            return _paused(job, at)
        text = f"its time has not come: the slot is in {_span(at - now)}"
        return _explained(job, Reason.NOT_DUE, text, at=at)
    gap = run or await _find_gap(engine, job, at)
    if gap is not None and gap.reason == transitions.JOB_PAUSED:
        text = "somebody paused the job before this slot had fired"
        return _explained(job, Reason.PAUSED, text, at=at, changed_at=gap.finished_at)
    if gap is not None and gap.reason == transitions.PAUSED:
        return replace(_paused_then(gap), at=at)
    if gap is not None:
        return await _missed(engine, job, gap, at)
    return await _explain_unrecorded_slot(engine, job, at, now)


async def _find_on_nodes(engine: Engine, job: Job, own: str, at: datetime) -> list[Run]:
    """The runs of a slot on all nodes."""
    query = RunQuery(job=job.id, since=at, brief=True, limit=1000)
    runs: list[Run] = []
    seen = 0
    async for page in pages(engine.store.find, query):
        runs += [run for run in page if model.without_node(run) == own and run.id != own]
        seen += len(page)
        if seen >= MOST_GAPS:
            break
    return runs


async def _explain_on_nodes(engine: Engine, runs: list[Run]) -> Explanation:
    """Explain a slot by its run on a node where it did not succeed, if there is one."""
    shown = min(runs, key=lambda run: (run.state is State.SUCCEEDED, run.id))
    whole = await explain_run(engine, shown.id)
    succeeded = sum(run.state is State.SUCCEEDED for run in runs)
    text = f"it succeeded on {succeeded} of {len(runs)} nodes"
    if shown.state is not State.SUCCEEDED:
        text += f"; on {model.node_of(shown)}: {whole.sentence}"
    nodes = {model.node_of(run): str(run.state) for run in runs}
    return replace(whole, sentence=text, facts={**whole.facts, "nodes": nodes})


def _exact_slot(job: Job, at: datetime) -> datetime:
    """The slot that a time in whole milliseconds names: JSON documents show slots so, and those of
    an interval have microseconds. Any other time stays as it is."""
    if job.schedule is None or job.unreadable is not None or at.microsecond % 1000:
        return at
    for slot in (job.next_run_at, job.schedule.next(_just_before(at))):
        if slot is not None and timedelta() <= slot - at < _MILLISECOND:
            return slot
    return at


def _just_before(at: datetime) -> datetime:
    """A microsecond earlier, or the first moment that there is."""
    return at - _INSTANT if at > datetime.min.replace(tzinfo=UTC) else at


def _not_a_slot(job: Job, at: datetime) -> Explanation | None:
    if job.schedule is None:
        return _explained(job, Reason.NO_SCHEDULE, "the job has no schedule, so no slots", at=at)
    before, after = job.schedule.previous(at), job.schedule.next(at)
    if job.schedule.after_end:  # no slot is known before the run before it has ended
        before = after = None
    if at in (job.next_run_at, job.schedule.next(_just_before(at))):
        return None
    near = [
        f"{_moment(slot, exact=True)} ({word})"
        for slot, word in ((before, "before"), (after, "after"))
        if slot is not None
    ]
    text = f"{_moment(at, exact=True)} is not a slot of its schedule ({job.schedule.describe()})"
    if near:
        text += f": the nearest {'is' if len(near) == 1 else 'are'} {' and '.join(near)}"
    return _explained(job, Reason.NOT_A_SLOT, text, at=at, before=before, after=after)


async def _find_gap(engine: Engine, job: Job, at: datetime) -> Run | None:
    """The record of missed slots that covers a slot, if there is one."""
    states = frozenset({State.SKIPPED})
    seen = 0
    query = RunQuery(job=job.id, states=states, since=at, brief=True, limit=1000)
    async for page in pages(engine.store.find, query):
        gaps = [run for run in page if run.reason in _GAP_REASONS and run.scheduled_at <= at]
        if gaps:
            whole = await read_runs(engine.store, [run.id for run in gaps], brief=False)
            for run in whole.values():
                if run.scheduled_at <= at <= _last_missed(run):
                    return run
        seen += len(page)
        if seen >= MOST_GAPS:
            break
    return None


def _last_missed(gap: Run) -> datetime:
    last = gap.result.get("last") if isinstance(gap.result, dict) else None
    return last if isinstance(last, datetime) else gap.scheduled_at


async def _missed(engine: Engine, job: Job | None, gap: Run, at: datetime) -> Explanation:
    """A slot that no scheduler fired in time."""
    facts: dict[str, Any] = {"noticed_at": gap.created_at, "first": gap.scheduled_at}
    if isinstance(gap.result, dict):
        facts |= {name: gap.result.get(name) for name in ("last", "count")}
    uptime = await read_uptime(engine.store)
    downtime = None
    if uptime is not None:  # the last slots of a gap may have passed while a worker was starting
        downtime = uptime.downtime_at(at) or uptime.downtime_at(gap.scheduled_at)
    if downtime is not None:
        text = (
            f"it was missed: no worker was alive from {_moment(downtime.start)} to"
            f" {_moment(downtime.end)} (stopped, stalled, or cut off from the store)"
        )
        facts |= {"down_from": downtime.start, "down_to": downtime.end}
        return _explained(gap, Reason.DOWN, text, at=at, **facts)
    text = f"it was missed: no worker fired it before {_moment(gap.created_at)}"
    if job is not None:
        kind = str(job.policy.misfire.kind)
        grace = humanize(duration(job.policy.misfire.grace))
        text += {
            "once": ', and with misfire="once" only the newest of the missed slots runs',
            "skip": f', more than {grace} late, and with misfire="skip" it does not run then',
            "all": f', and misfire="all" runs only the newest {job.policy.misfire.limit}',
        }[kind]
    return _explained(gap, Reason.MISFIRE, text, at=at, **facts)


async def _explain_unrecorded_slot(
    engine: Engine, job: Job, at: datetime, now: datetime
) -> Explanation:
    """A slot of the past without a run and without a record that it was missed."""
    if job.enabled and job.next_run_at is not None and job.next_run_at <= at:
        return await _not_fired(engine, job, at, now)
    if not job.enabled and job.updated_at <= at:
        return _paused(job, at)
    if now - at > retention_of(job, engine.context.settings):
        kept = humanize(retention_of(job, engine.context.settings))
        text = f"its run is not kept any more: runs are deleted {kept} after they have ended"
        return _explained(job, Reason.PRUNED, text, at=at)
    kept_since = await history_begins(engine.context, job)
    if kept_since is not None and at < kept_since:
        most = history_of(job, engine.context.settings)
        kept = f"the newest {most} runs are kept" if most else "no finished runs are kept"
        text = f"its run is not kept any more: of this job {kept}"
        return _explained(job, Reason.PRUNED, text, at=at)
    text = "there is no record of this slot"
    if job.updated_at > at:
        text += (
            f": the job was changed at {_moment(job.updated_at)}, and may have been paused, or have"
            " had another schedule, before"
        )
    else:
        text += ": its run may have been deleted"
    return _explained(job, Reason.NO_RECORD, text, at=at, changed_at=job.updated_at)


# Runs


async def _explain_run(engine: Engine, run: Run, depth: int = MAX_UPSTREAM_DEPTH) -> Explanation:
    match run.state:
        case State.PENDING:
            return await _explain_pending(engine, run)
        case State.WAITING:
            return await _explain_waiting(engine, run, depth)
        case State.RUNNING:
            return await _explain_running(engine, run)
        case State.SKIPPED:
            return await _explain_skipped(engine, run)
        case State.SUCCEEDED:
            text = f"it ran, and succeeded at {_moment(run.finished_at)}"
            return _explained(run, Reason.SUCCEEDED, text, finished_at=run.finished_at)
        case State.FAILED:
            text = FAILURES.get(run.reason or "") or await _describe_failure(engine, run)
            return _explained(
                run,
                Reason.FAILED,
                text,
                error=run.error,
                reason=run.reason,
                finished_at=run.finished_at,
            )
        case State.CANCELLED:
            text = f"it was cancelled: {run.reason or 'no reason was given'}"
            return _explained(run, Reason.CANCELLED, text, finished_at=run.finished_at)


async def _describe_failure(engine: Engine, run: Run) -> str:
    job = await engine.job_operations.find_job(run.job_id)
    last = "no other follows"
    if job is not None and run.failures > job.policy.retries:
        last = f"the last that retries={job.policy.retries} allows"
    return f"it ran, and failed at attempt {run.attempt}, {last}: {run.error}"


FAILURES = {
    transitions.POISON: "each worker that held it died, until no further try was allowed",
    transitions.LAPSED: "its workers lost its lease, frozen or cut off, until no further try was"
    " allowed",
    transitions.LOST: "its worker died or stopped, and no other worker may start it again",
    transitions.MEMORY: "it ran when its process reached its memory limit, and no further try was"
    " allowed",
}


async def _explain_pending(engine: Engine, run: Run) -> Explanation:
    if run.unreadable is not None:
        text = f"its record cannot be read: {run.unreadable}"
        return _explained(run, Reason.UNREADABLE, text)
    now = await engine.store.now()
    job = await engine.job_operations.find_job(run.job_id)
    if run.run_at > now:
        held = None if job is None else await _breaker_open(engine, run, job, now)
        return held or _explain_later(run, now)
    workers = await engine.live_workers.read_workers()
    node = model.node_of(run)
    if node is not None and node not in _ids(workers):
        text = f"its node {node} is gone: the run ends in about a minute"
        return _explained(run, Reason.NODE_GONE, text, node=node)
    owner = None if job is None else job.owner
    able = [worker for worker in workers if worker.takes(run.handler, run.queue, owner)]
    if node is None and not able:
        code, why = _lacking(run.handler, run.queue, workers)
        return _explained(run, code, why, workers=_ids(workers))
    if job is not None and (held := await _find_blocker(engine, run, job, now)) is not None:
        return held
    due = f"it has been due for {_span(now - run.run_at)}"
    if node is not None:
        text = f"{due}, and its node {node} was not free yet"
        return _explained(run, Reason.NO_CAPACITY, text, node=node)
    text = f"{due}, and no worker that can run it was free yet"
    return _explained(run, Reason.NO_CAPACITY, text, workers=_ids(able))


def _explain_later(run: Run, now: datetime) -> Explanation:
    if run.reason is not None:
        why = run.reason
    elif run.failures:
        why = f"its last attempt failed ({run.error})"
    else:
        why = "its time has not come"
    text = f"{why}: it is due in {_span(run.run_at - now)}"
    return _explained(run, Reason.NOT_DUE, text, until=run.run_at)


def _lacking(handler: str, queue: str, workers: list[LiveWorker]) -> tuple[Reason, str]:
    if not workers:
        return Reason.NO_WORKER, "no worker is alive"
    if (full := describe_full_worker(handler, workers)) is not None:
        return Reason.NO_CAPACITY, full
    if any(handler in worker.handlers for worker in workers):
        text = f"no live worker that has its handler takes the queue {queue!r}"
        return Reason.NO_QUEUE, text
    return Reason.NO_HANDLER, f"no live worker has its handler {handler!r}"


async def _explain_waiting(engine: Engine, run: Run, depth: int) -> Explanation:
    upstream = (await read_runs(engine.store, run.after, brief=False)).values()
    unfinished = sorted((up for up in upstream if not up.finished), key=lambda up: up.id)
    names = [upstream.id for upstream in unfinished]
    if not unfinished:
        text = "the runs that it waits for have ended: it goes on within seconds"
        return _explained(run, Reason.WAITING, text, upstream=[])
    text = f"it waits for the end of {_listed(names)}"
    facts: dict[str, Any] = {"upstream": names}
    if depth:
        first = await _explain_run(engine, unfinished[0], depth - 1)
        text += f" ({first.sentence})" if len(names) == 1 else f" ({names[0]}: {first.sentence})"
        facts |= {"upstream_code": str(first.code), "upstream_facts": first.facts}
    return _explained(run, Reason.WAITING, text, **facts)


async def _explain_running(engine: Engine, run: Run) -> Explanation:
    now = await engine.store.now()
    until = run.lease_until
    facts: dict[str, Any] = {
        "worker": run.worker,
        "lease_until": until,
        "started_at": run.started_at,
        "lapsed": until is not None and until <= now,
    }
    if facts["lapsed"]:
        rescue = "another worker rescues the run within seconds"
        if not await engine.live_workers.read_workers():
            rescue = "no worker is alive to rescue the run: start one"
        text = (
            f"its worker {run.worker} has not renewed its lease, which ended at {_moment(until)}:"
            f" {rescue}"
        )
        return _explained(run, Reason.RUNNING, text, **facts)
    text = (
        f"it is running: {run.worker} holds its lease until {_moment(until)}; if that worker is"
        " gone, another takes it over then"
    )
    return _explained(run, Reason.RUNNING, text, **facts)


async def _explain_skipped(engine: Engine, run: Run) -> Explanation:
    match run.reason:
        case transitions.MISFIRE:
            job = await engine.job_operations.find_job(run.job_id)
            return replace(await _missed(engine, job, run, run.scheduled_at), at=None)
        case transitions.PAUSED:
            return _paused_then(run)
        case transitions.OVERLAP:
            return await _overlapped(engine, run)
        case transitions.EXPIRED:
            limit = f" ({_moment(run.start_by)})" if run.start_by else ""
            text = f"its start deadline{limit} had passed before a worker could start it"
            return _explained(run, Reason.EXPIRED, text, start_by=run.start_by)
        case (
            transitions.UPSTREAM_FAILED
            | transitions.UPSTREAM_SKIPPED
            | transitions.UPSTREAM_DELETED
        ):
            return await _after_failure(engine, run)
        case transitions.NODE_GONE:
            node = model.node_of(run)
            text = f"its node {node} ended before it took the run"
            return _explained(run, Reason.NODE_GONE, text, node=node)
        case model.NO_NODE:
            text = "no worker was alive that could run it when it was made"
            return _explained(run, Reason.NO_WORKER, text)
    return _explained(run, Reason.SKIPPED, f"it was skipped: {run.reason or 'no reason was given'}")


def _paused_then(run: Run) -> Explanation:
    """The slots that one record stands for passed while all firing was paused."""
    gap = run.result if isinstance(run.result, dict) else {}
    slots, last = "this slot", ""
    if gap.get("count", 1) != 1:
        slots, last = f"{gap['count']} slots", f", the last at {_moment(gap['last'])}"
    text = f"all firing was paused while {slots} passed{last}"
    return _explained(run, Reason.ALL_PAUSED, text, **gap)


async def _overlapped(engine: Engine, run: Run) -> Explanation:
    named = run.result.get("unfinished") if isinstance(run.result, dict) else None
    earlier = list(map(str, named)) if isinstance(named, list) else []
    text = "an earlier run of the job had not ended, and its overlap policy is to skip"
    if earlier:
        text += f": {_listed(earlier)}"
        for first in (await read_runs(engine.store, earlier[:1])).values():
            ended = f"is {first.state}"
            if first.finished:
                ended = f"ended at {_moment(first.finished_at)}"
            text += f", which {ended}"
    return _explained(run, Reason.OVERLAP, text, unfinished=earlier)


async def _after_failure(engine: Engine, run: Run) -> Explanation:
    known = await read_runs(engine.store, run.after)
    if run.reason == transitions.UPSTREAM_DELETED:
        ids = told = [name for name in run.after if name not in known]
        text = (
            "a run that it comes after is not in the store, so it is not known whether it succeeded"
        )
    else:
        bad = [up for up in known.values() if up.finished and up.state is not State.SUCCEEDED]
        ids, told = [up.id for up in bad], [f"{up.id} {_is(up.state)}" for up in bad]
        text = "a run that it comes after did not succeed"
    return _explained(
        run, Reason.UPSTREAM, f"{text}: {_listed(told)}" if told else text, upstream=ids
    )


def _is(state: State) -> str:
    return "failed" if state is State.FAILED else f"was {state}"


# Limits


async def _find_blocker(engine: Engine, run: Run, job: Job, now: datetime) -> Explanation | None:
    """What keeps a due run from starting though a worker could take it."""
    return (
        await _breaker_open(engine, run, job, now)
        or await _limit_reached(engine, run, job, now)
        or await _rate_reached(engine, run, job)
    )


async def _breaker_open(engine: Engine, run: Run, job: Job, now: datetime) -> Explanation | None:
    """Whether the job's breaker holds the run: it would be due before the reset time is over, or
    before the trial has ended."""
    breaker = await breaker_status(engine.store, job)
    if breaker is None or breaker.state == "closed":
        return None
    if run.run_at > (breaker.until or now):
        return None
    facts: dict[str, Any] = {
        "until": breaker.until,
        "failures": breaker.failures,
        "trial": breaker.trial,
    }
    if breaker.until is not None:
        failures = "1 failure" if breaker.failures == 1 else f"{breaker.failures} failures in a row"
        text = f"its circuit breaker is open until {_moment(breaker.until)}, after {failures}"
        return _explained(run, Reason.BREAKER, text, **facts)
    trials = [] if breaker.trial is None else [breaker.trial]
    if not any(trial.is_held(now) for trial in (await read_runs(engine.store, trials)).values()):
        return None  # the next run that starts is the trial
    text = (
        f"its circuit breaker is half open: {breaker.trial} is the trial, and no other run starts"
        " before it has ended"
    )
    return _explained(run, Reason.BREAKER, text, **facts)


async def _rate_reached(engine: Engine, run: Run, job: Job) -> Explanation | None:
    """Whether as many runs have started as the job's rate allows, together with all jobs that share
    its key."""
    at = await next_start(engine.store, job)
    if at is None:
        return None
    rate, key = str(job.policy.rate), job.policy.rate_key
    over = "" if key is None else f", which all jobs with the key {key!r} share,"
    text = f"its rate limit of {rate}{over} is reached; the next start is possible at {_moment(at)}"
    return _explained(run, Reason.RATE, text, rate=rate, key=key, next_start=at)


async def _limit_reached(engine: Engine, run: Run, job: Job, now: datetime) -> Explanation | None:
    """Whether the job's concurrency is used up, counted over all jobs that share its key. Runs
    whose lease has lapsed use no capacity under a limit."""
    if (limit := job.policy.concurrency) is None:
        return None
    sharing = await _sharing_limit(engine, job)
    query = RunQuery(states=frozenset({State.RUNNING}), brief=True, limit=1000)
    running = [
        other.id
        async for other in all_items(engine.store.find, query)
        if other.job_id in sharing and other.is_held(now)
    ]
    if len(running) < limit:
        return None
    key = job.policy.concurrency_key
    over = "" if key is None else f" of all jobs with the key {key!r}"
    runs, are = ("run", "is") if len(running) == 1 else ("runs", "are")
    text = (
        f"its concurrency limit is reached: {len(running)} {runs}{over} {are} running, {limit} may:"
        f" {_listed(running)}"
    )
    return _explained(run, Reason.CONCURRENCY, text, limit=limit, key=key, running=running)


async def _sharing_limit(engine: Engine, job: Job) -> set[str]:
    key = job.policy.concurrency_key
    if key is None:
        return {job.id}
    jobs = all_items(engine.store.jobs, JobQuery(limit=1000))
    return {other.id async for other in jobs if other.policy.concurrency_key == key}


# Words


def _explained(
    subject: Job | Run, code: Reason, sentence: str, at: datetime | None = None, **facts: Any
) -> Explanation:
    job_id, run_id = (
        (subject.id, None) if isinstance(subject, Job) else (subject.job_id, subject.id)
    )
    return Explanation(
        code=code, sentence=sentence, job_id=job_id, run_id=run_id, at=at, facts=facts
    )


def _moment(moment: datetime | None, *, exact: bool = False) -> str:
    if moment is None:
        return "an unknown time"
    text = f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
    # The slots of an interval have them, and a slot is typed as it is shown.
    return text + (f".{moment.microsecond:06}Z" if exact and moment.microsecond else "Z")


def _listed(ids: Sequence[str]) -> str:
    return list_some(ids, MOST_NAMED)


def _ids(workers: list[LiveWorker]) -> list[str]:
    return [worker.id for worker in workers]


def _span(span: timedelta) -> str:
    return humanize(timedelta(seconds=max(round(span.total_seconds()), 1)))
