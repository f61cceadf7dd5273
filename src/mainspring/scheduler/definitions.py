"""Reads and checks what `add_job`, `update_job` and the decorator take, and makes jobs of it; says
what differs between two definitions of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from mainspring.core import codec, schedules
from mainspring.core.clock import EPOCH
from mainspring.core.durations import duration, humanize, warn_of_bare_number
from mainspring.core.handlers import Handler, Registry
from mainspring.core.job_updates import ended_schedule_error, next_slot, rebind, refuse_owned
from mainspring.core.model import Job, Owner, Webhook, check_job_id, check_key, replace
from mainspring.core.options import JobChanges, JobOptions, option_names
from mainspring.core.policy import (
    EFFECT_ONCE_IN_PROCESS,
    MAX_NAME,
    Breaker,
    Delivery,
    Isolation,
    Origin,
    Policy,
    field_of,
    merge_policy,
)
from mainspring.core.schedules import FixedDelay, Interval, Schedule
from mainspring.core.schedules.cron import Cron
from mainspring.core.schedules.zones import check_zone
from mainspring.engine.executors.process_pool import Target
from mainspring.engine.job_operations import Replacement
from mainspring.errors import (
    InputErrors,
    InvalidArguments,
    InvalidInput,
    JobExists,
    UnknownOption,
    refused,
)
from mainspring.webhooks.redaction import MASK
from mainspring.webhooks.service import HANDLER, Webhooks, masked_webhook

_SCHEDULE_OPTIONS: tuple[str, ...] = ("schedule", "timezone", "jitter")
MAX_DESCRIPTION = 65_536
MAX_TAGS = 1000
"""Of one job."""

_DESCRIPTIVE_OPTIONS: tuple[str, ...] = ("description", "tags", "metadata")

WEBHOOK_TIMEOUT = timedelta(seconds=30)
WEBHOOK_DEFAULTS = {"timeout": WEBHOOK_TIMEOUT, "breaker": Breaker()}
"""The policy options of a webhook that differ from those of other jobs."""

LONGEST_UNSUSPICIOUS = timedelta(hours=4)
"""A longer timeout or delay that is given as a bare number was perhaps meant in milliseconds: it is
warned of."""

LONGEST_WEBHOOK = timedelta(hours=1)

_ANY_WEBHOOK = Webhook(url="https://example.org/")
"""Stands for a wrong webhook while the other options are checked."""


_UNITS = frozenset({"seconds", "minutes", "hours", "days", "weeks"})


def refuse_unknown_options(
    options: Mapping[str, Any], kind: type, beside: tuple[str, ...] = ()
) -> None:
    """Refuse options that `kind` does not name. `beside`: options that the caller takes itself, for
    the list in the message."""
    allowed = option_names(kind)
    if unknown := options.keys() - allowed:
        error = UnknownOption(unknown, allowed.union(beside))
        for unit in unknown & _UNITS:
            every = f"every({unit}={options[unit]!r})"
            error.add_advice(f'an interval is a schedule: {every}, or "{options[unit]}{unit[0]}"')
        raise error


def draft_job(
    job_id: str,
    handler: Handler | str,
    owner: Owner,
    default_zone: str,
    *,
    schedule: Any = None,
    payload: Any = None,
    enabled: bool | None = None,
    timezone: str | None = None,
    jitter: Any = None,
    webhook: Webhook | None = None,
    defaults: Mapping[str, Any] | None = None,
    file: str | None = None,
    errors: InputErrors | None = None,
    **options: Any,
) -> Job:
    """A checked job that is not stored yet: it has no times and no version. A handler is given by
    its name if another process has it; that process then checks the payload. `defaults` are the
    policy options that the job has where it gives none itself. `errors` are those found so far: all
    are raised together."""
    _warn_of_bare_numbers({**options, "jitter": jitter})
    descriptive = {name: options.pop(name) for name in _DESCRIPTIVE_OPTIONS if name in options}
    errors = errors or InputErrors()
    # Where a value is wrong, its default stands in while the others are checked.
    read_schedule = None
    with errors:
        check_job_id(job_id)
    with errors:
        payload = payload if isinstance(handler, str) else handler.encode_payload(payload)
    with errors:
        read_schedule = _schedule(schedule, timezone, default_zone, jitter)
    policy, origins = merge_policy(
        options,
        defaults or {},
        WEBHOOK_DEFAULTS if webhook else {},
        errors,
        longest_timeout=LONGEST_WEBHOOK if webhook else None,
    )
    about = _describe(descriptive, errors)
    job = Job(
        id=job_id,
        handler=handler if isinstance(handler, str) else handler.name,
        created_at=EPOCH,
        updated_at=EPOCH,
        payload=payload,
        schedule=read_schedule,
        policy=policy,
        enabled=True if enabled is None else enabled,
        stated_enabled=None if owner is Owner.API else enabled,
        owner=owner,
        file=file,
        webhook=webhook,
        origins=origins,
        **about,
    )
    own_handler = None if isinstance(handler, str) else handler
    _check(job, own_handler, errors, has_schedule=schedule is not None)
    errors.check()
    return job


def new_job(
    job_id: str,
    registry: Registry,
    webhooks: Webhooks,
    default_zone: str,
    *,
    defaults: Mapping[str, Any],
    owner: Owner = Owner.API,
    file: str | None = None,
    handlers_elsewhere: bool = False,
    handler: Any = None,
    webhook: Any = None,
    **options: Any,
) -> Job:
    """A draft for a handler (its name, or the decorated function) or for a webhook. `defaults` is
    as for `draft_job`. With `handlers_elsewhere` a handler need not be registered here: another
    process may have it."""
    beside = ("schedule", "handler", "webhook", "replace", "dry_run", "defaults")
    refuse_unknown_options(
        {name: options[name] for name in options if name not in beside}, JobOptions, beside
    )
    errors = InputErrors()
    named_handler: Handler | str = HANDLER
    if webhook is not None and handler in (None, HANDLER):
        options["webhook"] = _ANY_WEBHOOK
        with errors:
            options["webhook"] = webhooks.define(_usable_id(job_id), webhook)
            named_handler = _find_handler(registry, HANDLER, handlers_elsewhere=handlers_elsewhere)
    elif webhook is not None or handler in (None, HANDLER):
        with errors:
            raise InvalidInput(
                "a job needs a handler, or a url (webhook) to call, and this one has neither"
                if webhook is None
                else "a job has a handler or a url (webhook) to call, and this one has both: leave"
                " one of them out",
                field="handler",
            )
    else:
        with errors:
            named_handler = _find_handler(registry, handler, handlers_elsewhere=handlers_elsewhere)
    return draft_job(
        job_id,
        named_handler,
        owner,
        default_zone,
        defaults=defaults,
        file=file,
        errors=errors,
        **options,
    )


def keep_secrets(draft: Job, stored: Job, webhooks: Webhooks, *, own_secret: bool) -> Job:
    """The draft with the signing secret of the stored webhook, which receivers know. With
    `own_secret` the draft's is used."""
    if draft.webhook is None or stored.webhook is None:
        return draft
    return replace(draft, webhook=webhooks.replace_stored(draft, stored, own_secret=own_secret))


def replace_job(draft: Job, stored: Job, webhooks: Webhooks, *, own_secret: bool) -> Job:
    """The draft with what `add_job(replace=True)` keeps of the stored job."""
    refuse_owned(stored)
    if (draft.webhook is None) is not (stored.webhook is None):
        raise _other_kind(stored)
    return keep_secrets(draft, stored, webhooks, own_secret=own_secret)


def adopt_job(
    draft: Job, stored: Job, webhooks: Webhooks, *, own_secret: bool, take_over: bool
) -> Job:
    """The draft of a file in the place of the stored job, with the signing secret that receivers
    know. Only with `take_over` may it replace a job that another owner made."""
    if (stored.owner, stored.file) != (draft.owner, draft.file) and not take_over:
        made_by = {
            Owner.CODE: "is defined in code",
            Owner.API: "was made through the API or the command line",
            Owner.FILE: f"is defined in the file {stored.file!r}",
        }[stored.owner]
        raise JobExists(
            f"there is a job {draft.id!r} already, which {made_by}: give this one another id, or"
            " take it over with `mainspring apply --take-over`",
            job_id=draft.id,
        )
    return keep_secrets(draft, stored, webhooks, own_secret=own_secret)


def edit_job(
    job: Job,
    changes: Mapping[str, Any],
    registry: Registry,
    webhooks: Webhooks,
    default_zone: str,
    now: datetime,
    *,
    handlers_elsewhere: bool = False,
) -> Job:
    """A stored job with changes; what is not named stays. A new schedule counts from now.
    `handlers_elsewhere`: see `new_job`."""
    refuse_unknown_options(changes, JobChanges)
    options = dict(changes)
    _warn_of_bare_numbers(options)
    errors = InputErrors()
    webhook, signing_secret = options.pop("webhook", None), options.pop("signing_secret", None)
    if "webhook" in changes:
        with errors:
            job = replace(job, webhook=webhooks.change(job, webhook))
    if "signing_secret" in changes:
        with errors:
            rotated, _ = webhooks.rotate_secret(job, now, secret=signing_secret)
            job = replace(job, webhook=rotated)
    descriptive = {name: options.pop(name) for name in _DESCRIPTIVE_OPTIONS if name in options}
    about = _describe(descriptive, errors)
    handler = registry.find(job.handler)
    if "handler" in options:
        asked, handler = options.pop("handler"), None  # the payload is checked by the new handler
        with errors:
            named_handler = _find_handler(registry, asked, handlers_elsewhere=handlers_elsewhere)
            handler = None if isinstance(named_handler, str) else named_handler
            job = replace(
                job, handler=named_handler if isinstance(named_handler, str) else named_handler.name
            )
            if (job.handler == HANDLER) is not (job.webhook is not None):
                raise _other_kind(job)
    rescheduling = {name: options.pop(name) for name in _SCHEDULE_OPTIONS if name in options}
    enabled = options.pop("enabled", job.enabled)
    payload = options.pop("payload", job.payload)
    if handler is not None:
        with errors:
            payload = handler.encode_payload(payload)
    policy = Policy.collect(errors, job.policy, **options)
    after = replace(job, payload=payload, enabled=enabled, policy=policy, **about)
    if job.origins is not None:
        own = {field_of(name): str(Origin.JOB) for name in options}
        after = replace(after, origins={**job.origins, **own})
    if rescheduling:
        with errors:
            after = replace(after, schedule=_rescheduled(job, rescheduling, default_zone, now))
    # An edit that repeats the same schedule must not skip a slot that is due.
    if after.schedule != job.schedule or enabled is not job.enabled:
        upcoming = next_slot(after, enabled, now)
        if after.schedule and enabled is True and upcoming is None:
            errors.add(ended_schedule_error(job.id, after.schedule, now))
        after = replace(after, next_run_at=upcoming)
    has_schedule = rescheduling.get("schedule", after.schedule) is not None
    _check(after, handler, errors, has_schedule=has_schedule)
    errors.check()
    return after


def is_stored_as(draft: Job, job: Job, webhooks: Webhooks) -> bool:
    """Whether the job is the draft as it was stored, with no edit since."""
    schedule = draft.schedule
    if schedule is not None:
        anchor = getattr(job.schedule, "anchor", None) or job.created_at
        schedule = schedule.bind(draft.id, anchor)
    as_stored = replace(draft, schedule=schedule, created_at=job.created_at, webhook=None)
    same = as_stored.definition() == replace(job, webhook=None).definition()
    return same and webhooks.sends_same_requests(draft, job)


def _warn_of_bare_numbers(options: Mapping[str, Any]) -> None:
    for name in ("timeout", "start_deadline", "retry_delay", "jitter"):
        warn_of_bare_number(options.get(name), name, LONGEST_UNSUSPICIOUS)


def _find_handler(registry: Registry, asked: Any, *, handlers_elsewhere: bool) -> Handler | str:
    if isinstance(asked, Handler):
        return asked
    name = getattr(asked, "id", asked)
    registered = registry.find(name) if isinstance(name, str) else None
    if registered is not None:
        return registered
    if handlers_elsewhere and isinstance(name, str):
        return check_job_id(name, "the name of a handler", "handler")
    return registry.get(name)


def _other_kind(job: Job) -> InvalidInput:
    kind = "a webhook job" if job.webhook is not None else "a job with a Python handler"
    return InvalidInput(
        f"job {job.id!r} is {kind}, and a job's kind cannot change. Remove it and add a new one",
        field="handler",
    )


def _schedule(spec: Any, timezone: str | None, default_zone: str, jitter: Any) -> Schedule | None:
    """The schedule that was given, in its own zone, else in the job's, else in the default."""
    errors, schedule, spread = InputErrors(), None, None
    with errors:
        if spec is not None:
            schedule = schedules.parse(spec, timezone=timezone, default_timezone=default_zone)
        elif timezone is not None:
            check_zone(timezone)
    with errors:
        spread = None if jitter is None else duration(jitter, what="jitter")
    if spec is None and spread is not None:
        why = "jitter spreads a schedule's slots, and there is no schedule"
        errors.add(InvalidInput(why, field="jitter"))
    errors.check()
    if schedule is not None and spread is not None:
        schedule = dataclasses.replace(schedule, jitter=spread)
    return schedule


def _rescheduled(
    job: Job, rescheduling: Mapping[str, Any], default_zone: str, now: datetime
) -> Schedule | None:
    """The schedule after an edit. A new schedule without a zone keeps the job's zone. A new zone
    alone keeps the wall times and moves them to that zone."""
    old, timezone, jitter = (
        job.schedule,
        rescheduling.get("timezone"),
        rescheduling.get("jitter"),
    )
    if "schedule" in rescheduling or old is None:
        zone = zone_of_new_schedule(old, default_zone)
        schedule = _schedule(rescheduling.get("schedule"), timezone, zone, jitter)
        if schedule is None or type(schedule) is not type(old):
            return None if schedule is None else schedule.bind(job.id, now)
        return rebind(schedule, job, now)
    errors, changes = InputErrors(), dict[str, Any]()
    if timezone is not None:
        with errors:
            changes["timezone"] = check_zone(timezone)
    if jitter is not None:
        with errors:
            changes["jitter"] = duration(jitter, what="jitter")
    errors.check()
    return dataclasses.replace(old, **changes)


def zone_of_new_schedule(old: Schedule | None, default_zone: str) -> str:
    """The zone of a new schedule that names none: that of the `old` schedule, if one was given for
    it. (An interval in UTC was given none.)"""
    if old is None or (isinstance(old, Interval | FixedDelay) and old.timezone == "UTC"):
        return default_zone
    return old.timezone


def _describe(options: dict[str, Any], errors: InputErrors) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if "description" in options:
        described["description"] = _description(options["description"], errors)
    if "tags" in options:
        tags = [options["tags"]] if isinstance(options["tags"], str) else options["tags"]
        with errors:
            described["tags"] = _tags(tags)
    if "metadata" in options:
        with errors:
            described["metadata"] = _metadata(options["metadata"])
    return described


def _tags(names: Iterable[object]) -> tuple[str, ...]:
    tags = [str(name) for name in names]
    if len(tags) > MAX_TAGS:
        why = f"has at most {MAX_TAGS} items, not {len(tags):,}"
        raise InvalidInput(why, subject="tags", field="tags")
    for place, tag in enumerate(tags):
        check_key(tag, "a tag", f"tags.{place}")
        if not 1 <= len(tag) <= MAX_NAME:
            why = f"has 1 to {MAX_NAME} characters, not {len(tag):,}"
            raise InvalidInput(why, subject="a tag", field=f"tags.{place}", given=tag)
    return tuple(tags)


def _metadata(metadata: Any) -> Any:
    if not isinstance(metadata, Mapping):
        raise refused("metadata", metadata, "is an object")
    return codec.decode(codec.encode(dict(metadata), what="metadata"))


def _usable_id(job_id: Any) -> str:
    """The id, or one that stands for a wrong id while the webhook is checked."""
    try:
        return check_job_id(job_id)
    except InvalidInput:
        return "job"


def _check(job: Job, handler: Handler | None, errors: InputErrors, *, has_schedule: bool) -> None:
    """Collect what is wrong with the options together, and with the handler. `has_schedule`: one is
    given, be it right or wrong."""
    if not isinstance(job.enabled, bool):
        errors.add(refused("enabled", job.enabled, "is True or False"))
    with errors:
        codec.encode(job.payload)
    if job.policy.delivery is Delivery.EFFECT_ONCE and job.webhook is None:
        _check_effect_once(job, handler, errors)
    if has_schedule and job.policy.after:
        why = (
            f"job {job.id!r} has a schedule and comes after {', '.join(job.policy.after)}:"
            " it can have one or the other"
        )
        errors.add(InvalidInput(why, field="after"))
    if job.policy.each_node and job.schedule is not None and job.schedule.after_end:
        why = (
            f"job {job.id!r} runs on each node, where its runs end at different times: its schedule"
            f' cannot count from their end. Leave out after="end"'
        )
        errors.add(InvalidInput(why, field="schedule"))
    if job.id in job.policy.after:
        errors.add(InvalidInput(f"job {job.id!r} cannot come after itself", field="after"))
    if job.webhook is not None:
        _check_webhook(job, errors)
    if handler is None:
        return
    if has_schedule or job.policy.after or job.policy.run_on_start:
        with errors:
            _check_arguments(job, handler)
    elif job.payload is not None and not isinstance(job.payload, Mapping):
        with errors:
            handler.check(job.payload)
    if job.policy.isolation is Isolation.PROCESS and job.webhook is None:
        with errors:
            Target.check(handler.function)  # raises now, not when the first run is due


def _description(text: object, errors: InputErrors) -> str:
    if text is None:
        return ""
    if isinstance(text, str) and len(text) <= MAX_DESCRIPTION:
        return codec.encodable_text(text)
    why = (
        f"has at most {MAX_DESCRIPTION:,} characters, not {len(text):,}"
        if isinstance(text, str)
        else f"is a text, not {text!r}"
    )
    errors.add(InvalidInput(why, subject="description", field="description", given=text))
    return ""


def _check_arguments(job: Job, handler: Handler) -> None:
    try:
        handler.check(job.payload)
    except InvalidArguments as error:
        raise InvalidArguments(
            f"{error}; a job that runs by itself needs them in its payload"
        ) from None


def _check_effect_once(job: Job, handler: Handler | None, errors: InputErrors) -> None:
    if EFFECT_ONCE_IN_PROCESS.exists(job.policy):
        why = f"job {job.id!r}: {EFFECT_ONCE_IN_PROCESS.message}"
        errors.add(InvalidInput(why, field="delivery"))
    if handler is not None and not handler.takes_context:
        why = (
            f'job {job.id!r}: with delivery="effect_once" the handler writes inside'
            " `with ctx.transaction()`; give it a first parameter `ctx: RunContext`"
        )
        errors.add(InvalidInput(why, field="delivery"))


def _check_webhook(job: Job, errors: InputErrors) -> None:
    if job.policy.delivery is Delivery.EFFECT_ONCE:
        why = (
            "is at_least_once or at_most_once for a webhook: what an endpoint does cannot be"
            " committed together with the run"
        )
        errors.add(InvalidInput(why, subject="delivery", field="delivery", given="effect_once"))
    timeout = job.policy.timeout
    if timeout is None or timeout > LONGEST_WEBHOOK:
        why = (
            f"a webhook's timeout is at most {humanize(LONGEST_WEBHOOK)}, not"
            f" {'None' if timeout is None else humanize(timeout)}"
        )
        errors.add(InvalidInput(why, field="timeout", given=timeout, allowed=LONGEST_WEBHOOK))
    if job.payload is not None:
        why = "a webhook sends its body: give it there, not as payload"
        errors.add(InvalidInput(why, field="payload"))
    if job.policy.isolation is not Isolation.AUTO:
        why = (
            f"isolation {job.policy.isolation.value!r} is for Python handlers, and job {job.id!r}"
            " calls a webhook: leave it out"
        )
        errors.add(InvalidInput(why, field="isolation"))


# Differences


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
    applied = AppliedJobs(
        name=name, added=[], changed=[], removed=[], unchanged=[], kept=kept, dry_run=dry_run
    )
    for old, new in pairs:
        if old is None and new is not None:
            applied.added.append(new)
        elif old is not None and new is None:
            applied.removed.append(old)
        elif old is not None and new is not None:
            if changes := differences(old, new):
                applied.changed.append(ChangedJob(new, changes))
            else:
                applied.unchanged.append(new)
    return applied


def differences(old: Job, new: Job) -> list[Difference]:
    """What differs between two definitions of one job."""
    before, after = dict(_fields(old)), dict(_fields(new))
    names = [*before, *(name for name in after if name not in before)]
    changed = [
        Difference(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]
    if old.webhook is not None and new.webhook is not None:
        headers = old.webhook.secret_headers, new.webhook.secret_headers
        if headers[0] != headers[1] or old.webhook.signing != new.webhook.signing:
            changed.append(Difference("webhook.secrets", MASK, MASK))
    return changed


def _fields(job: Job) -> Iterator[tuple[str, Any]]:
    yield "schedule", _schedule_text(job.schedule)
    yield "timezone", None if job.schedule is None else job.schedule.timezone
    jitter = None if job.schedule is None else job.schedule.jitter
    yield "jitter", None if jitter is None else humanize(jitter)
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


def _schedule_text(schedule: Schedule | None) -> str | None:
    if isinstance(schedule, Cron):
        return schedule.expression
    if isinstance(schedule, Interval):
        return humanize(schedule.interval)
    if isinstance(schedule, FixedDelay):
        return f"{humanize(schedule.interval)} after end"
    return None if schedule is None else schedule.describe()
