"""What a stored job becomes when it is defined, defined again, paused or resumed, and which edits
are refused.

Pure decisions: the caller reads the stored job, decides here, and writes by compare-and-set.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from mainspring.core.clock import EPOCH
from mainspring.core.durations import duration
from mainspring.core.model import Job, Owner, replace
from mainspring.core.schedules import Interval, Recurrence, Schedule, dst
from mainspring.core.schedules.base import iso
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import (
    InvalidSchedule,
    JobChanged,
    JobExists,
    JobOwnedByCode,
    JobOwnedByFile,
    RecordUnreadable,
)

_INSTANT = timedelta(microseconds=1)


def with_first_slot(draft: Job, now: datetime) -> Job:
    """The job that is stored for a draft whose id is free."""
    schedule = _bind(draft.schedule, draft.id, now, now) if draft.schedule else None
    job = replace(draft, schedule=schedule, created_at=now, updated_at=now)
    return replace(job, next_run_at=_first_slot(job, now))


def merge_job(draft: Job, stored: Job, now: datetime) -> Job:
    """The job that is stored when a draft defines a stored job again. What has happened stays, and
    `enabled` too, unless the definition states another value than before. Raises `JobExists` if the
    draft may not change this job."""
    _refuse_other_owner(draft, stored)
    schedule, next_run_at = _merge_schedule(draft, stored, now)
    job = replace(
        draft,
        schedule=schedule,
        next_run_at=next_run_at,
        enabled=stored.enabled,
        last_run_at=stored.last_run_at,
        created_at=stored.created_at,
        updated_at=now,
        version=stored.version,
    )
    enabled = _stated_anew(draft, stored)
    if enabled is None or enabled is stored.enabled:
        return job
    return replace(job, enabled=enabled, next_run_at=next_slot(job, enabled, now))


def _stated_anew(draft: Job, stored: Job) -> bool | None:
    """The `enabled` that a definition states and did not state before; None: there is no news. One
    that states `enabled=False` no longer lets the job run again."""
    if draft.stated_enabled is None:
        return True if stored.stated_enabled is False else None
    return None if draft.stated_enabled is stored.stated_enabled else draft.stated_enabled


def next_slot(job: Job, enabled: bool, now: datetime) -> datetime | None:
    """The next slot of a job once it is `enabled`, or paused: then it has none.

    Of a schedule that counts from the end of runs it is the earliest that the slot can be. The
    slot firer knows when the last run ended."""
    if job.schedule is None or not enabled:
        return None
    if job.schedule.after_end:
        earliest = job.schedule.next(job.last_run_at or job.created_at)
        return None if earliest is None else max(earliest, now)
    return job.schedule.next(job.not_before(now))


def refuse_owned(job: Job) -> None:
    """Refuse an edit of a job that is defined elsewhere."""
    if job.owner is Owner.CODE:
        raise JobOwnedByCode(job.id)
    if job.owner is Owner.FILE:
        raise JobOwnedByFile(job.id, job.file)


def refuse_concurrent_edit(stored: Job, as_read: Job | None) -> None:
    """Refuse an edit if somebody edited the job since the caller read it. None: the caller does
    not mind."""
    if as_read is not None and stored.definition() != as_read.definition():
        raise JobChanged(stored.id)


def differ_only_in_enabled(job: Job, edited: Job) -> bool:
    """Whether the two differ in nothing but `enabled`."""
    return replace(edited, enabled=job.enabled).definition() == job.definition()


def refuse_unreadable_job(job: Job) -> None:
    """Refuse an edit of a record that this version cannot read: it would lose the rest."""
    if job.unreadable is not None:
        raise RecordUnreadable("job", job.id, job.unreadable)


def refuse_ended_schedule(job: Job, now: datetime) -> None:
    """Refuse a schedule that has no slot after `now`."""
    if job.schedule is not None and job.schedule.next(now) is None:
        raise ended_schedule_error(job.id, job.schedule, now)


def ended_schedule_error(job_id: str, schedule: Schedule, now: datetime) -> InvalidSchedule:
    """The error of a schedule that has no slot after `now`."""
    last = schedule.previous(now)
    passed = "" if last is None else f". Its last slot, {iso(last)}, has passed: give a later time"
    error = InvalidSchedule(f"the schedule of job {job_id!r} is over: it would never fire{passed}")
    error.job_id = job_id
    return error


def _first_slot(job: Job, now: datetime) -> datetime | None:
    """The first slot of a new job. If its schedule is over, the last slot still runs within the
    misfire grace: `at` a moment that passed while the program started."""
    upcoming = next_slot(job, job.enabled, now)
    if upcoming is not None or job.schedule is None or not job.enabled:
        return upcoming
    last = job.schedule.previous(now)
    fresh = last is not None and now - last <= duration(job.policy.misfire.grace)
    return last if fresh else None


def _refuse_other_owner(draft: Job, stored: Job) -> None:
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


def _merge_schedule(
    draft: Job, stored: Job, now: datetime
) -> tuple[Schedule | None, datetime | None]:
    """The schedule of a job that is defined again, and its next slot.

    An unchanged schedule keeps its anchor and its slot, so that slots that were missed while
    nothing ran are found.
    """
    if draft.schedule is None:
        return None, None
    schedule = rebind(draft.schedule, stored, now)
    if schedule == stored.schedule:
        return schedule, stored.next_run_at
    if not stored.enabled:
        return schedule, None
    return schedule, _slot_after_change(draft.schedule, schedule, stored, now)


def rebind(schedule: Schedule, stored: Job, now: datetime) -> Schedule:
    """A schedule as that of a stored job: the stored one, if it is the same.

    A changed interval counts from the last slot (or from when its job was added): if "1h" becomes
    "2h", the next slot is two hours after that, or now if that has passed. (Two versions of a
    program that register the job by turns, as in a rolling deploy, do not postpone it so.) A
    changed rule goes on from the anchor of the stored one."""
    anchor = _anchor_of(stored)
    unchanged = _bind(schedule, stored.id, anchor, now)
    if unchanged == stored.schedule:
        return unchanged
    # The stored schedule may start in the future; its replacement starts now.
    anchor = min(anchor, now) if _keeps_anchor(schedule) else now
    if isinstance(schedule, Interval) and isinstance(stored.schedule, Interval):
        anchor = max(stored.last_run_at or stored.created_at, now - schedule.interval + _INSTANT)
    return _bind(schedule, stored.id, anchor, now)


def _bind(schedule: Schedule, key: str, anchor: datetime, now: datetime) -> Schedule:
    """The schedule as that of a job. One that has ended already counts from an early moment: it is
    over then, and says when its last slot was. Refusing it would stop a program with all its jobs
    on a new machine, while it still starts where the job is stored."""
    try:
        return schedule.bind(key, anchor)
    except InvalidSchedule:
        ended = schedule.bind(key, EPOCH)
        if ended.next(now) is None:
            return ended
        raise


def _slot_after_change(
    schedule: Schedule, bound: Schedule, stored: Job, now: datetime
) -> datetime | None:
    """The next slot of a job whose schedule changes to `given`, which is `bound` to the job.

    A slot that is due stays. Where a rule without a DTSTART becomes another one, or an interval, or
    the other way round, the next slot never moves to a later time: two versions of a program that
    register the same job by turns would otherwise postpone it again and again. Of a stored rule it
    is not known whether its DTSTART was given.
    """
    former = stored.next_run_at
    if former is not None and former <= now:
        return former
    upcoming = next_slot(replace(stored, schedule=bound), enabled=True, now=now)
    if former is None or upcoming is None:
        return upcoming
    kinds = {type(schedule), type(stored.schedule)}
    of_rules = Recurrence in kinds and kinds <= {Recurrence, Interval}
    return min(former, upcoming) if of_rules and _counts_from_anchor(schedule) else upcoming


def _anchor_of(stored: Job) -> datetime:
    """The moment from which a schedule without its own start counts."""
    match stored.schedule:
        case Interval(anchor=datetime() as anchor):
            return anchor
        case Recurrence(dtstart=datetime() as dtstart, timezone=timezone):
            return dst.instant_of(dtstart, zone_named(timezone))
        case _:
            return stored.created_at


def _keeps_anchor(schedule: Schedule) -> bool:
    """Whether a changed schedule goes on from the anchor of the stored one. A rule with COUNT
    does not: its times would be used up from the beginning."""
    ends_by_count = isinstance(schedule, Recurrence) and schedule.ends_by_count
    return _counts_from_anchor(schedule) and not ends_by_count


def _counts_from_anchor(schedule: Schedule) -> bool:
    """Whether a schedule, as given, counts from the moment that it is bound to."""
    match schedule:
        case Interval(start=start):
            return start is None
        case Recurrence(dtstart=dtstart):
            return dtstart is None
        case _:
            return False
