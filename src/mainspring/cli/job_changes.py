"""Commands that change jobs: `mainspring jobs add`, `update`, `pause`, `trigger`, `remove` …,
and `mainspring pause --all`, which stops all firing."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli import time_format
from mainspring.cli.command import CHANGE, Call, command
from mainspring.cli.errors import BAD_INPUT, FAILED, CommandError
from mainspring.cli.jobs import group, job_columns
from mainspring.cli.options import (
    JobArgument,
    YesOption,
    argument,
    flag,
    option,
    read_duration,
    shared_flag,
)
from mainspring.cli.output import Column, Output, when
from mainspring.core.plurals import plural
from mainspring.errors import InvalidInput, JobExists, UnknownOption

if TYPE_CHECKING:
    from mainspring.core.model import Job
    from mainspring.scheduler import Client

commands = typer.Typer()

_UNSET: dict[str, Any] = {
    "schedule": None,
    "payload": None,
    "description": "",
    "tags": [],
    "metadata": {},
}
"""What `none` means for options that are no policy."""


def read_options(
    schedule: str | None = option(
        "A cron text, an interval such as 5m, '5m after end', a date-time, an RRULE; or none."
    ),
    timezone: str | None = option(
        "The zone of the schedule, as in Europe/Berlin.", "ZONE", "--timezone", "--tz"
    ),
    handler: str | None = option("The name of a handler that workers have."),
    url: str | None = option("Instead of a handler: the URL to call."),
    payload: str | None = option("The handler's arguments; - reads them from stdin.", "JSON"),
    description: str | None = option("Text for people."),
    tags: list[str] | None = option("A tag; may be given several times.", None, "--tag"),
    settings: list[str] | None = option(
        "Any other option, as in --set retries=3 --set timeout=5m --set webhook.method=GET;"
        " `none` empties one that may be empty, as in --set timeout=none. May be given several"
        " times.",
        "KEY=VALUE",
        "--set",
    ),
) -> dict[str, Any]:
    """The options of `add_job` and `update_job` that were given."""
    named: dict[str, Any] = {
        "schedule": schedule,
        "timezone": timezone,
        "handler": handler,
        "description": description,
        "tags": tags,
    }
    options = {name: value for name, value in named.items() if value is not None}
    if schedule == "none":
        options["schedule"] = None
    if payload is not None:
        from mainspring.cli.json_values import read_payload

        options["payload"] = read_payload(payload, "--payload")
    for text in settings or ():
        path, value = _read_setting(text)
        _put(options, path, value, text)
    if url is not None:
        webhook = options.setdefault("webhook", {})
        if not isinstance(webhook, dict) or "url" in webhook:
            raise CommandError("give the url once", code=BAD_INPUT)
        webhook["url"] = url
    return options


@command(
    group,
    "add",
    "mainspring jobs add ping --schedule 5m --url https://example.org/ping --set retries=3",
    "mainspring jobs add nightly --schedule '0 2 * * *' --handler report --set timeout=10m",
    shared=read_options,
)
async def add(
    call: Call,
    options: dict[str, Any],
    job: str = argument("The id of the new job.", "JOB"),
) -> None:
    """Add a job, for a handler or for a URL to call."""
    async with call.client() as client:
        secret = _make_secret(client, options)
        try:
            added = await client.add_job(job, **options)
        except JobExists:
            raise CommandError(
                f"there is a job {job!r} already",
                code=FAILED,
                advice=f"`mainspring jobs update {job}` changes it",
            ) from None
        except InvalidInput as error:
            if error.field == "handler" and not {"handler", "webhook"} & options.keys():
                error.args = (f"{error}: mainspring jobs add {job} --handler NAME --schedule 5m",)
            raise _name_fields(error) from None
        _print_saved(
            call.output, "added", added, {} if secret is None else {"signing_secret": secret}
        )
        if secret is not None and not call.output.as_json:
            call.output.line(f"signing secret, shown only now: {secret}")
        if added.webhook is not None and not added.webhook.signing:
            call.output.note(
                "its requests are not signed: set MAINSPRING_SECRET_KEY, which encrypts secrets,"
                f" then `mainspring jobs rotate-secret {added.id}`"
            )


def _make_secret(client: Client, options: dict[str, Any]) -> str | None:
    """Give a new webhook a signing secret that is made here, so that it can be printed. None if
    the caller gave one, or if there is no key to encrypt it with."""
    from mainspring.webhooks.vault import new_signing_secret

    webhook = options.get("webhook")
    if isinstance(webhook, str):
        webhook = {"url": webhook}
    if not isinstance(webhook, dict) or webhook.get("signing_secret") is not None:
        return None
    if not client.webhooks.can_sign:
        return None
    secret = new_signing_secret()
    options["webhook"] = {**webhook, "signing_secret": secret}
    return secret


@command(
    group,
    "update",
    "mainspring jobs update ping --schedule 10m --set retries=5",
    shared=read_options,
)
async def update(call: Call, options: dict[str, Any], job: JobArgument) -> None:
    """Change a job that the API or the command line made. What is not named stays."""
    if not options:
        raise CommandError(
            "there is nothing to change",
            code=BAD_INPUT,
            advice=f"name what changes: mainspring jobs update {job} --set retries=3",
        )
    async with call.client() as client:
        before = await client.get_job(job)
        try:
            after = await client.update_job(job, **options)
        except InvalidInput as error:
            raise _name_fields(error) from None
    dropped = _dropped_headers(before, after)
    _print_saved(call.output, "updated", after, {"dropped_headers": dropped} if dropped else {})
    if dropped and not call.output.as_json:
        call.output.note(_describe_dropped(before, after, dropped))


def _dropped_headers(before: Job, after: Job) -> list[str]:
    """The headers that an update has removed, in lower case."""
    from mainspring.webhooks.service import masked_headers

    if before.webhook is None or after.webhook is None:
        return []
    old, new = (
        {name.lower() for name in masked_headers(webhook)}
        for webhook in (before.webhook, after.webhook)
    )
    return sorted(old - new)


def _describe_dropped(before: Job, after: Job, dropped: list[str]) -> str:
    from mainspring.webhooks.definition import origin_of

    assert before.webhook is not None
    assert after.webhook is not None
    names = f"{'header' if len(dropped) == 1 else 'headers'} {', '.join(dropped)}"
    if origin_of(before.webhook.url) != origin_of(after.webhook.url):
        command = f'mainspring jobs update {after.id} --set \'webhook.headers={{"Name": "value"}}\''
        return (
            f"removed the {names}: secrets are not sent to another host. Set all headers of the job"
            f" again: {command}"
        )
    return f"removed the {names}: the headers that were given replace all that the job had"


def _print_saved(
    output: Output, done: str, job: Job, more: Mapping[str, Any] | None = None
) -> None:
    """Print what was done. `more` is added to the JSON document."""
    from mainspring.cli.json_values import job_document

    if output.as_json:
        output.document({**job_document(job), **(more or {})})
        return
    if job.next_run_at is None:
        output.line(f"{done} {job.id}")
    else:
        moment = (when if output.pretty else time_format.seconds)(job.next_run_at)
        output.line(f"{done} {job.id}: next run {moment}")


@command(
    group,
    "rotate-secret",
    "mainspring jobs rotate-secret ping",
    "mainspring jobs rotate-secret ping --old-valid-for 0",
)
async def rotate_secret(
    call: Call,
    job: JobArgument,
    old_valid_for: str = option(
        "How long requests are also signed with the old secret, as in 1h.",
        "DURATION",
        default="24h",
    ),
) -> None:
    """Give a webhook job a new signing secret, and print it. It cannot be shown again.

    Give it to the receiver while requests are also signed with the old one.
    """
    span = read_duration(old_valid_for, "--old-valid-for")
    async with call.client(with_code=True) as client:
        secret = await client.rotate_secret(job, old_valid_for=span)
    if call.output.as_json:
        call.output.document({"id": job, "signing_secret": secret})
        return
    call.output.line(secret)
    call.output.note(f"the new signing secret of {job}, shown only now")


@command(group, "pause", "mainspring jobs pause daily_report")
async def pause(call: Call, job: JobArgument) -> None:
    """Pause a job's schedule. The job can still be triggered, and queued runs still run."""
    async with call.client() as client:
        paused = await client.pause_job(job)
    _print_saved(call.output, "paused", paused)


@command(group, "resume", "mainspring jobs resume daily_report")
async def resume(call: Call, job: JobArgument) -> None:
    """Resume a paused job's schedule with its next slot."""
    async with call.client() as client:
        resumed = await client.resume_job(job)
    _print_saved(call.output, "resumed", resumed)


AllOption = Annotated[bool, shared_flag("--all", help="All jobs, on every node.")]


@command(commands, "pause", "mainspring pause --all", panel=CHANGE)
async def pause_all(call: Call, everything: AllOption = False) -> None:
    """Fire no slots of any job until `mainspring resume --all`.

    That holds on every node. Jobs are not changed. What is queued or triggered still runs. Slots
    that pass meanwhile do not run later.
    """
    _need_all("pause", everything)
    async with call.client() as client:
        since = await client.pause_all()
    if call.output.as_json:
        call.output.document({"paused_since": time_format.iso(since)})
    else:
        call.output.line(f"all firing is paused since {time_format.seconds(since)}")


@command(commands, "resume", "mainspring resume --all", panel=CHANGE)
async def resume_all(call: Call, everything: AllOption = False) -> None:
    """Fire slots again, from now on. A job that was paused by itself stays paused."""
    _need_all("resume", everything)
    async with call.client() as client:
        resumed = await client.resume_all()
    if call.output.as_json:
        call.output.document({"paused_since": None, "resumed": resumed})
    else:
        call.output.line("firing is resumed" if resumed else "firing was not paused")


def _need_all(verb: str, everything: bool) -> None:
    if not everything:
        raise CommandError(
            f"`mainspring {verb}` needs --all",
            code=BAD_INPUT,
            advice=f"one job: mainspring jobs {verb} JOB; all firing: mainspring {verb} --all",
        )


@command(group, "reset-breaker", "mainspring jobs reset-breaker call_api")
async def reset_breaker(call: Call, job: JobArgument) -> None:
    """Close a job's circuit breaker on all nodes. Its runs that are due start."""
    async with call.client() as client:
        opened = await client.reset_breaker(job)
    if call.output.as_json:
        call.output.document({"id": job, "was_open": opened})
    elif opened:
        call.output.line(f"closed the circuit breaker of {job}: its runs start again")
    else:
        call.output.line(
            f"the circuit breaker of {job} was closed already: its failures are forgotten"
        )


@command(group, "trigger", "mainspring jobs trigger daily_report")
async def trigger(call: Call, job: JobArgument) -> None:
    """Run a job now with its own payload, even if it is paused."""
    from mainspring.cli.json_values import run_document

    async with call.client(with_code=True) as client:
        run = await client.trigger(job)
    if call.output.as_json:
        call.output.document(run_document(run))
    else:
        call.output.line(f"triggered {job}: run {run.id}" if call.output.pretty else run.id)


@command(group, "remove", "mainspring jobs remove old_report --force")
async def remove(
    call: Call,
    job: JobArgument,
    force: bool = flag(
        "--force", "Also remove a job that code defines, for when that code is gone."
    ),
) -> None:
    """Delete a job and cancel its pending runs. Running ones may end."""
    async with call.client() as client:
        await client.remove_job(job, force=force)
    if call.output.as_json:
        call.output.document({"id": job, "removed": True})
    else:
        call.output.line(f"removed {job}")


@command(
    group,
    "prune-orphans",
    "mainspring jobs prune-orphans --dry-run",
    "mainspring jobs prune-orphans --yes --json",
)
async def prune_orphans(
    call: Call,
    dry_run: bool = flag("--dry-run", "List the jobs; remove none."),
    yes: YesOption = False,
    force: bool = flag("--force", "Also if no worker is alive to say which handlers exist."),
) -> None:
    """Remove jobs whose code is gone.

    These are jobs that code defined and whose handler no live worker has. Jobs that the API made
    stay. Pending runs of a removed job are cancelled.
    """
    output = call.output
    if not (yes or dry_run):
        call.check_can_ask("it removes jobs", "--dry-run lists the jobs, --yes removes them")
    async with call.client() as client:
        found = await client.prune_orphans(dry_run=dry_run or not yes, force=force)
        pending = 0 if yes or not found else await _count_unstarted(client, found)
        asked = bool(found) and not (dry_run or yes)
        if asked:
            output.table(_orphan_columns(), found)
            runs = plural(pending, "pending run")
            typer.confirm(f"Remove {_count_jobs(found)}, and cancel {runs}?", abort=True)
            found = await client.prune_orphans(force=force)
    if output.as_json:
        document = {"jobs": [job.id for job in found], "removed": not dry_run}
        output.document({**document, "pending_runs": pending} if dry_run else document)
    elif not found:
        output.note(
            "every job that code defines has its handler in a live worker: nothing to remove"
        )
    elif dry_run:
        output.table(_orphan_columns(), found)
        from mainspring.engine.live_workers import keeping_code

        runs = plural(pending, "pending run")
        output.note(
            f"{_count_jobs(found)} would be removed, and {runs} cancelled; --yes does both. If a"
            f" function was only renamed, {keeping_code(found[0])} on the new one keeps its job"
        )
    else:
        output.line(f"removed {_count_jobs(found)}: {', '.join(job.id for job in found)}")


async def _count_unstarted(client: Client, jobs: list[Job]) -> int:
    """How many runs the removal of these jobs would cancel."""
    from mainspring.core.model import State

    counts = (await client.counts()).runs
    by_state = [counts.get(job.id, {}) for job in jobs]
    return sum(by.get(State.PENDING, 0) + by.get(State.WAITING, 0) for by in by_state)


def _count_jobs(jobs: list[Job]) -> str:
    return plural(len(jobs), "job")


def _orphan_columns() -> list[Column[Any]]:
    return [column for column in job_columns(set(), {}) if column.title not in ("state", "result")]


def _read_setting(text: str) -> tuple[list[str], Any]:
    """The path and the value of one `--set`: `webhook.method=GET`."""
    from mainspring.scheduler.job_file import JOB_KEYS, read_value

    key, equals, value = text.partition("=")
    if not equals:
        raise CommandError(
            f"--set {text} gives no value",
            code=BAD_INPUT,
            advice=f"write KEY=VALUE, as in --set {key}=3",
        )
    path = key.split(".")
    if path[0] not in JOB_KEYS:
        raise UnknownOption([path[0]], JOB_KEYS, "key")
    if value != "none":
        return path, _value(value)
    if len(path) > 1:
        return path, None
    if key in _UNSET:
        return path, _UNSET[key]
    if read_value(key, value) is not None:
        raise CommandError(
            f"--set {text}: {key} always has a value", code=BAD_INPUT, advice=_default_advice(key)
        )
    return path, None


def _default_advice(key: str) -> str:
    from mainspring.core.policy import Policy

    built_in = Policy().to_dict(complete=True)
    return (
        f"--set {key}={jsonlib.dumps(built_in[key])} is the built-in value"
        if key in built_in
        else ""
    )


def _put(options: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    held = options
    for part in path[:-1]:
        held = held.setdefault(part, {})
        if not isinstance(held, dict):
            raise CommandError(f"--set {text}: {part} has a value already", code=BAD_INPUT)
    if path[-1] in held:
        raise CommandError(f"--set {text}: {'.'.join(path)} is given twice", code=BAD_INPUT)
    held[path[-1]] = value


def _name_fields(error: InvalidInput) -> InvalidInput:
    """The error with the option at fault in each message that does not name it."""
    for one in error.each():
        if one.field and one.subject is None and not isinstance(one, UnknownOption):
            one.args = (f"{one.field}: {one}",)
    error.__notes__ = []  # each is shown by itself
    return error


def _value(text: str) -> Any:
    """A JSON value, or the text itself: 3 is a number, 5m a text."""
    try:
        return jsonlib.loads(text)
    except ValueError:
        return text
