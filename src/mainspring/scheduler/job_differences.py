"""What applying a set of jobs changes: which jobs it adds, changes and removes, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from msgspec import Struct

from mainspring.core.durations import humanize
from mainspring.core.model import Job
from mainspring.core.schedules import FixedDelay, Interval, Schedule
from mainspring.core.schedules.cron import Cron
from mainspring.engine.job_operations import Replacement
from mainspring.webhooks.redaction import MASK
from mainspring.webhooks.service import masked_webhook


class Difference(Struct, frozen=True):
    """A field of a job before and after, in JSON's types. Secrets are not shown."""

    field: str
    old: Any
    new: Any


class ChangedJob(Struct, frozen=True):
    """A job after the change, and what differs from before."""

    job: Job
    differences: list[Difference]


class AppliedJobs(Struct, frozen=True, kw_only=True):
    """What `apply_jobs` did, or with `dry_run` would do, to the jobs of the file `name`."""

    name: str
    added: list[Job]
    changed: list[ChangedJob]
    removed: list[Job]
    unchanged: list[Job]
    kept: list[Job]
    """Jobs that the file no longer lists, kept because it does not state its `name`."""
    dry_run: bool = False


def applied_jobs(
    name: str, pairs: Iterable[Replacement], kept: list[Job], *, dry_run: bool
) -> AppliedJobs:
    """What was done to each job, from the jobs before and after."""
    made = AppliedJobs(
        name=name, added=[], changed=[], removed=[], unchanged=[], kept=kept, dry_run=dry_run
    )
    for old, new in pairs:
        if old is None and new is not None:
            made.added.append(new)
        elif old is not None and new is None:
            made.removed.append(old)
        elif old is not None and new is not None:
            if found := differences(old, new):
                made.changed.append(ChangedJob(new, found))
            else:
                made.unchanged.append(new)
    return made


def differences(old: Job, new: Job) -> list[Difference]:
    """What differs between two definitions of one job."""
    before, after = dict(_fields(old)), dict(_fields(new))
    names = [*before, *(name for name in after if name not in before)]
    found = [
        Difference(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]
    if old.webhook is not None and new.webhook is not None:
        secrets = [(one.secret_headers, one.signing) for one in (old.webhook, new.webhook)]
        if secrets[0] != secrets[1]:
            found.append(Difference("webhook.secrets", MASK, MASK))
    return found


def _fields(job: Job) -> Iterator[tuple[str, Any]]:
    yield "schedule", _schedule(job.schedule)
    yield "timezone", None if job.schedule is None else job.schedule.timezone
    yield "jitter", None if job.schedule is None else _span(job.schedule.jitter)
    yield "enabled", job.enabled
    yield "handler", job.handler
    yield "payload", job.payload
    for name, value in job.policy.to_dict(complete=True).items():
        yield name, value
    if job.webhook is not None:
        for name, value in masked_webhook(job.webhook).items():
            yield f"webhook.{name}", value
    yield "description", job.description
    yield "tags", list(job.tags)
    yield "metadata", dict(job.metadata)
    yield "owner", str(job.owner) if job.file is None else f"{job.owner} {job.file}"
    for name, origin in (job.origins or {}).items():
        yield f"origins.{name}", origin


def _schedule(schedule: Schedule | None) -> str | None:
    if isinstance(schedule, Cron):
        return schedule.expression
    if isinstance(schedule, Interval):
        return humanize(schedule.interval)
    if isinstance(schedule, FixedDelay):
        return f"{humanize(schedule.interval)} after end"
    return None if schedule is None else schedule.describe()


def _span(span: timedelta | None) -> str | None:
    return None if span is None else humanize(span)
