"""Evaluates queries, claims and counts over values in memory.

Stores whose database cannot search use it: the memory store, a file, a bucket of objects. Every
function is pure and follows the docstrings of `protocol.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from operator import attrgetter
from typing import Any

from mainspring.core import note_kinds
from mainspring.core.clock import from_us, to_us
from mainspring.core.model import (
    LIVE,
    Job,
    Note,
    Page,
    Run,
    Source,
    State,
    is_node_handler,
    replace,
)
from mainspring.core.transitions import UPSTREAM_FAILED, Change
from mainspring.stores.limits import (
    ClaimLimits,
    RateAllowance,
    Turns,
    concurrency_limit,
    rate_limit,
    turn_order,
)
from mainspring.stores.paging import cursor_number, note_cursor, read_note_cursor
from mainspring.stores.protocol import Claim, Counts, Due, JobQuery, NoteQuery, RunQuery

# -- claims ---------------------------------------------------------------------------------


def is_claimable(run: Run, claim: Claim) -> bool:
    """Whether the claim may take the run when it is due and no limit forbids it."""
    return (
        run.state is State.PENDING
        and run.unreadable is None
        and run.handler in claim.handlers
        and (claim.queues is None or run.queue in claim.queues)
        and claim.most.get(run.job_id, 1) > 0
    )


UsedCapacity = Counter[str]
"""How many runs have a valid lease, by the key of the limit that they count for."""


def choose_claimed(
    runs: Iterable[Run],
    jobs: Mapping[str, Job],
    claim: Claim,
    now: datetime,
    used: UsedCapacity,
    rates: RateAllowance,
) -> list[Run]:
    """The due runs that the claim takes, in order. With them no job exceeds its limit."""
    due: dict[int, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.run_at <= now and is_claimable(run, claim):
            due[run.priority][run.job_id].append(run)
    ids = {job_id for by_job in due.values() for job_id in by_job}
    concurrency = {i: limit for i in ids if (limit := concurrency_limit(jobs.get(i))) is not None}
    limits = ClaimLimits(claim, concurrency, used, rates)
    chosen: list[Run] = []
    for priority in sorted(due, reverse=True):
        by_job = due[priority]
        in_turn = sorted(by_job, key=lambda job_id: turn_order(claim, priority, job_id))
        turns = Turns[Run](in_turn, limits)
        for job_id, of_job in by_job.items():
            earliest = sorted(of_job, key=attrgetter("run_at"))[: claim.limit]
            turns.add(job_id, claim.limit + 1, earliest)
        chosen += turns.chosen()
    return chosen


def next_due(
    runs: Iterable[Run], claim: Claim, now: datetime, rates: RateAllowance
) -> datetime | None:
    """When the next run that the claim could take falls due, or a rate limit lets one start that is
    due already."""
    claimable = [run for run in runs if is_claimable(run, claim)]
    times = [run.run_at for run in claimable if run.run_at > now]
    start = rates.next_start({run.job_id for run in claimable if run.run_at <= now})
    return min(times if start is None else [*times, from_us(start)], default=None)


def rate_allowance(jobs: Mapping[str, Job], notes: Iterable[Note], now: datetime) -> RateAllowance:
    """What the rate limits of these jobs allow now. `notes` are all notes of the store."""
    limits = {i: limit for i, job in jobs.items() if (limit := rate_limit(job)) is not None}
    names = {limit.name for limit in limits.values()}
    counts = [
        note
        for note in (notes if limits else ())
        if note.kind == note_kinds.RATE and note.name in names and not has_expired(note, now)
    ]
    return RateAllowance(limits, counts, to_us(now))


def fields_of_claim(run: Run, claim: Claim, now: datetime) -> dict[str, Any]:
    """The fields that a claim sets on a run. A store that knows its time only within bounds decides
    by the earliest time, and sets `lease_until` from the latest."""
    return {
        "state": State.RUNNING,
        "token": run.token + 1,
        "attempt": run.attempt + 1,
        "worker": claim.worker,
        "started_at": now,
        "began": False,
        "lease_until": now + claim.lease,
        "progress": None,
    }


def has_capacity(job: Job | None, used: UsedCapacity) -> bool:
    """Whether the limit of the job allows one more run."""
    limit = concurrency_limit(job)
    return limit is None or used[limit.key] < limit.most


def used_capacity(runs: Iterable[Run], jobs: Mapping[str, Job], now: datetime) -> UsedCapacity:
    running = (run for run in runs if run.state is State.RUNNING)
    leased = (run for run in running if run.lease_until is not None and run.lease_until > now)
    limits = (concurrency_limit(jobs.get(run.job_id)) for run in leased)
    return Counter(limit.key for limit in limits if limit is not None)


def has_lapsed(run: Run, now: datetime) -> bool:
    return run.state is State.RUNNING and run.lease_until is not None and run.lease_until <= now


# -- dedupe keys, deletion, slots, steps of the clock ---------------------------------------


def dedupe_holder(
    runs: Iterable[Run], key: str | None, now: datetime, besides: str | None = None
) -> Run | None:
    """The run that holds the key, other than `besides`."""
    if key is None:
        return None
    of_key = (run for run in runs if run.dedupe_key == key and run.id != besides)
    return next((run for run in of_key if run.state in LIVE or _keeps_dedupe_key(run, now)), None)


def may_be_deleted(run: Run, now: datetime, awaited: Container[str]) -> bool:
    """`awaited`: the ids that `awaited_runs` returns."""
    return is_settled(run, now) and run.id not in awaited


def is_settled(run: Run, now: datetime) -> bool:
    """Whether a run has finished and keeps no dedupe key."""
    return run.finished and not _keeps_dedupe_key(run, now)


def awaited_runs(runs: Iterable[Run]) -> set[str]:
    """The runs that unfinished runs among these come after."""
    return {name for run in runs if run.state in LIVE for name in run.after}


def _keeps_dedupe_key(run: Run, now: datetime) -> bool:
    """Whether a finished run still keeps its dedupe key."""
    return run.dedupe_until is not None and run.dedupe_until > now


def unfinished_slots(runs: Iterable[Run], job_id: str) -> list[Run]:
    """The runs of earlier slots that have not finished: what `resolve_overlap` takes."""
    return [
        run
        for run in runs
        if run.job_id == job_id and run.source is Source.SCHEDULE and run.state in LIVE
    ]


CLOCK_SET_BACK = timedelta(seconds=1)
"""A time that a client read from the store's clock is ahead of that clock by so much only if
somebody has set the clock back since."""


def fields_of_change(change: Change, now: datetime) -> Mapping[str, Any]:
    """What a change sets. If the store's clock was set back since the change was decided, its
    `run_at` is moved, so that retries and snoozes keep their length."""
    decided_at, run_at = change.decided_at, change.set.get("run_at")
    if decided_at is None or run_at is None or decided_at <= now + CLOCK_SET_BACK:
        return change.set
    return {**change.set, "run_at": run_at - (decided_at - now)}


def new_run_by_clock(run: Run, now: datetime) -> Run:
    """The run to add, with the `run_at` that it has by the store's clock: one that was due when it
    was made is due. A delay ends at the wall time that it was given."""
    if run.created_at <= now + CLOCK_SET_BACK or run.finished:
        return run
    was_due = timedelta() <= run.created_at - run.run_at < CLOCK_SET_BACK
    return replace(run, run_at=now) if was_due else run


def fields_of_clock_step(run: Run, step: timedelta, now: datetime) -> dict[str, Any]:
    """The fields of a run that change when the wall clock was set by `step`. Leases, retry delays
    and snoozes keep their length, and a run that was due stays due. A snooze takes its attempt
    back, so the token says whether a run was claimed before."""
    fields: dict[str, Any] = {}
    before = now - step
    retries = run.state is State.PENDING and run.token > 0 and run.run_at > before
    stays_due = run.state in LIVE and now < run.run_at <= before
    if retries or stays_due:
        fields["run_at"] = run.run_at + step
    if run.state is State.RUNNING and run.lease_until is not None:
        fields["lease_until"] = run.lease_until + step
    return fields


# -- queries --------------------------------------------------------------------------------


def page_of_runs(
    runs: Iterable[Run], query: RunQuery, now: datetime, numbers: Mapping[str, int]
) -> Page[Run]:
    """The page of a query. `runs` are all runs, newest first. `numbers` has a number for each id,
    which grows from run to run: the cursor of a page is the number of its last run."""
    if query.ids is not None:
        return Page([run for run in runs if run.id in query.ids])
    before = None if query.cursor is None else cursor_number(query.cursor, query.cursor)
    matching = (
        run
        for run in runs
        if matches(run, query, now) and (before is None or numbers[run.id] < before)
    )
    if query.jobs is not None:
        return Page(list(_newest_of_each(matching, query.limit)))
    page = list(islice(matching, max(query.limit, 0)))
    full = page and len(page) == query.limit
    return Page(page, str(numbers[page[-1].id]) if full else None)


def _newest_of_each(runs: Iterable[Run], limit: int) -> Iterator[Run]:
    """The first `limit` of these runs of each job."""
    count = Counter[str]()
    for run in runs:
        count[run.job_id] += 1
        if count[run.job_id] <= limit:
            yield run


def matches(run: Run, query: RunQuery, now: datetime) -> bool:
    return (
        (query.job is None or run.job_id == query.job)
        and (query.jobs is None or run.job_id in query.jobs)
        and (query.states is None or run.state in query.states)
        and (not query.lapsed or has_lapsed(run, now))
        and (not query.failing or run.failures > 0)
        and (not query.tried or run.attempt > 0)
        and (not query.set_aside or (run.state is State.PENDING and run.unreadable is not None))
        and (
            query.upstream is None
            or (is_follower(run) and not query.upstream.isdisjoint(run.after))
        )
        and (query.since is None or run.created_at >= query.since)
        and (query.until is None or run.created_at < query.until)
    )


FOLLOWING = frozenset({State.WAITING, State.SKIPPED})
"""The states of runs that a query by `upstream` may give."""


def is_follower(run: Run) -> bool:
    """Whether a query by `upstream` may give the run."""
    return run.state is State.WAITING or (
        run.state is State.SKIPPED and run.reason == UPSTREAM_FAILED
    )


def count_runs(runs: Iterable[Run], now: datetime) -> Counts:
    by_job: dict[str, Counter[State]] = defaultdict(Counter)
    due: list[tuple[str, str, int, datetime]] = []
    for run in runs:
        if run.state in LIVE:
            by_job[run.job_id][run.state] += 1
        if run.state is State.PENDING and run.run_at <= now and run.unreadable is None:
            due.append((run.handler, run.queue, 1, run.run_at))
    return live_counts(by_job, due)


def live_counts(
    runs: Mapping[str, Mapping[State, int]], due: Iterable[tuple[str, str, int, datetime]]
) -> Counts:
    """The counts of unfinished runs, given groups of due ones: handler, queue, how many, and since
    when the oldest is due."""
    by_handler: dict[str, Due] = {}
    by_queue: dict[str, Due] = {}
    for handler, queue, count, oldest in due:
        group = Due(count, oldest)
        by_handler[handler] = group.plus(by_handler.get(handler))
        if not is_node_handler(handler):
            by_queue[queue] = group.plus(by_queue.get(queue))
    return Counts(runs, by_handler, due_by_queue=by_queue)


def page_of_jobs(jobs: Iterable[Job], query: JobQuery) -> Page[Job]:
    text = None if query.text is None else query.text.lower()
    matching = [
        job
        for job in jobs
        if (query.ids is None or job.id in query.ids)
        and (query.tag is None or query.tag in job.tags)
        and (query.queue is None or job.policy.queue == query.queue)
        and (not query.follows or job.policy.after)
        and (query.enabled is None or job.enabled is query.enabled)
        and (text is None or text in job.id.lower() or text in job.description.lower())
    ]
    total = len(matching) if query.with_total else None
    if query.due is not None:
        due = [j for j in matching if j.enabled and j.next_run_at and j.next_run_at <= query.due]
        return Page(sorted(due, key=lambda job: (job.next_run_at, job.id))[: query.limit])
    if has_cursor(query) and query.cursor is not None:
        matching = [job for job in matching if job.id > query.cursor]
    page = ordered_jobs(matching, query)[query.offset : query.offset + query.limit]
    full = has_cursor(query) and page and len(page) == query.limit
    return Page(page, page[-1].id if full else None, total)


def has_cursor(query: JobQuery) -> bool:
    """Whether a cursor can continue the list that the query asks for."""
    return query.due is None and query.order == "id" and not query.descending


def ordered_jobs(jobs: Iterable[Job], query: JobQuery) -> list[Job]:
    """The jobs in the order of the query: those without a value last, those with equal values by
    id."""
    by_id = sorted(jobs, key=lambda job: job.id)
    if query.order == "id":
        return by_id[::-1] if query.descending else by_id
    value = attrgetter(query.order)
    valued = [job for job in by_id if value(job) is not None]
    valued.sort(key=value, reverse=query.descending)  # a reversed sort keeps the order of equals
    return valued + [job for job in by_id if value(job) is None]


def page_of_notes(notes: Iterable[Note], query: NoteQuery, now: datetime) -> Page[Note]:
    behind = None if query.cursor is None else tuple(read_note_cursor(query.cursor))
    page = [
        note
        for note in sorted(notes, key=lambda note: (note.kind, note.name))
        if (query.kind is None or note.kind == query.kind)
        and (query.names is None or note.name in query.names)
        and (behind is None or (note.kind, note.name) > behind)
        and not has_expired(note, now)
    ][: query.limit]
    return Page(page, note_cursor(page[-1]) if page and len(page) == query.limit else None)


def has_expired(note: Note, now: datetime) -> bool:
    return note.expires_at is not None and note.expires_at <= now
