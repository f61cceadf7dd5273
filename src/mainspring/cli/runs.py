"""`mainspring runs`: lists runs, shows, cancels and retries them."""

from __future__ import annotations

import json as jsonlib
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import typer

from mainspring.cli.command import (
    CURSOR_OPTION,
    RUN_ARGUMENT,
    YES_FLAG,
    Call,
    argument,
    command,
    complete_job,
    complete_run,
    complete_state,
    flag,
    limit_option,
    option,
)
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.output import (
    STYLES,
    Column,
    Output,
    iso_seconds,
    plain_json,
    run_document,
    span,
    time_column,
)
from mainspring.core.clock import utcnow
from mainspring.core.durations import duration
from mainspring.core.model import LIVE, State
from mainspring.core.plurals import plural
from mainspring.core.schedules.base import moment
from mainspring.errors import InvalidInput, RunNotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator

    from mainspring.core.model import Attempt, Page, Run, State
    from mainspring.engine.run_operations import Matched
    from mainspring.scheduler import Client

BODY_SHOWN = 500
"""Characters of an answer's body that are printed. `--json` has all that was kept."""

WHOLE_RUNS_AT_ONCE = 10
MOST_COUNTED = 1000

SHORTEST_BEGINNING = 6
"""Characters of an id that must be given."""

MOST_SEARCHED = 1000
MOST_NAMED = 10

_WHOLE = re.compile(r"[0-9a-f]{32}|[^@]+@[0-9]{8}T[0-9]{6}(\.[0-9]+)?Z")
_TIME = re.compile(r"[0-9a-f]{8,31}")
_TIME_DIGITS = 12
_CLOCK_ERROR = timedelta(minutes=1)
"""How far the time in an id may be from the time at which the store says the run was made."""


class Filters(TypedDict):
    job: str | None
    state: list[str] | None
    since: datetime | None


group = typer.Typer(help="List and show runs; cancel and retry them.")


def read_filters(
    job: str | None = option("Only runs of this job.", "JOB", autocompletion=complete_job),
    state: list[str] | None = option(
        "Only runs in this state; several with commas, or the option again.",
        "STATE",
        autocompletion=complete_state,
    ),
    since: str | None = option(
        "Only runs made since then: ISO 8601 (UTC if it has no offset), or 2h for the last two"
        " hours.",
        "TIME",
    ),
) -> Filters:
    """The options that choose runs."""
    states = [_check_state(name.strip()) for names in state or [] for name in names.split(",")]
    return {"job": job, "state": states or None, "since": _read_since(since)}


RUNS_ARGUMENT = argument(
    "The run's id, or its beginning (6 characters or more). Without it: the runs that --job,"
    " --state, --since or --all choose.",
    "RUN",
    default=None,
    autocompletion=complete_run,
)


@command(
    group,
    "list",
    "mainspring runs list --job send_email --state failed --limit 20",
    "mainspring runs list --state pending,running --since 2h --json",
    shared=read_filters,
)
async def list_(
    call: Call,
    filters: Filters,
    timed_out: bool = flag("--timed-out", "Only runs of which an attempt timed out."),
    limit: int = limit_option(20),
    cursor: str | None = CURSOR_OPTION,
) -> None:
    """List runs, newest first."""
    output = call.output
    job = filters["job"]
    async with call.client() as client:
        if job is not None and not (await client.list_runs(job=job, brief=True, limit=1)).items:
            await client.get_job(job)  # an unknown job is an error, not an empty list
        if output.as_json:
            pages = _read_pages(client, {**filters, "timed_out": timed_out}, limit, cursor)
            await output.item_pages(pages, run_document)
            return
        page = await client.list_runs(
            **filters, timed_out=timed_out, brief=True, limit=limit, cursor=cursor
        )
        page.items[:] = [
            await client.get_run(run.id) if _stands_for_slots(run) else run for run in page.items
        ]
    if page.items:
        output.table(COLUMNS, page.items)
    if page.cursor:
        output.note(f"there are more: --cursor {page.cursor}")
    elif not page.items:
        nothing = _nothing(filters, timed_out=timed_out)
        output.note(nothing if cursor is None else "no more runs")


async def _read_pages(
    client: Client, filters: dict[str, Any], limit: int, cursor: str | None
) -> AsyncIterator[Page[Run]]:
    """Whole runs, a few at a time: each may hold megabytes of payload, result and logs."""
    while limit > 0:
        at_once = min(limit, WHOLE_RUNS_AT_ONCE)
        page = await client.list_runs(**filters, limit=at_once, cursor=cursor)
        yield page
        limit, cursor = limit - len(page.items), page.cursor
        if cursor is None:
            return


def _check_state(name: str) -> str:
    if name not in [*State]:
        raise CommandError(
            f"--state is one of {', '.join(State)}, not {name!r}",
            code=BAD_INPUT,
            advice="several: --state pending,running",
        )
    return name


def _read_since(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return utcnow() - duration(text)
    except InvalidInput:
        return moment(text, "UTC", "--since")


def _nothing(filters: Filters, *, timed_out: bool = False) -> str:
    job, states, since = filters["job"], filters["state"] or [], filters["since"]
    if not (timed_out or any(filters.values())):
        return "no runs yet: `mainspring enqueue JOB` or `mainspring jobs trigger JOB` makes one"
    which = f"{' or '.join(states)} " if states else ""
    return (
        f"no {which}runs"
        + (f" of {job}" if job else "")
        + (f" since {iso_seconds(since)}" if since else "")
        + (" with an attempt that timed out" if timed_out else "")
    )


@command(group, "show", "mainspring runs show 0199c2f4a1b3")
async def show(call: Call, run: str = RUN_ARGUMENT) -> None:
    """Show a run: its result, attempts and logs, or why it has not run."""
    async with call.client() as client:
        run_id = await find_run_id(client, run)
        whole = await client.get_run(run_id)
        why = await client.explain(run_id)
    print_run(call.output, whole, why.problem)


ALL_FLAG = flag("--all", "All runs, whatever their job.")


@command(
    group,
    "cancel",
    "mainspring runs cancel 0199c2f4a1b3",
    "mainspring runs cancel --job send_email --state pending",
    shared=read_filters,
)
async def cancel(
    call: Call,
    filters: Filters,
    run: str | None = RUNS_ARGUMENT,
    reason: str = option("Stored with the run.", "TEXT", default="cancelled on the command line"),
    everything: bool = ALL_FLAG,
    yes: bool = YES_FLAG,
) -> None:
    """Cancel a run, or all that match. If one is running, its worker stops it."""
    _check_choice(run, everything, filters)
    async with call.client() as client:
        if run is None:
            await _change_all(
                call,
                client,
                "cancel",
                filters,
                LIVE,
                yes=yes,
                change=lambda: client.cancel_runs(reason=reason, **filters),
            )
            return
        run_id = await find_run_id(client, run)
        done = await client.cancel(run_id, reason=reason)
        cancelled = await client.get_run(run_id)
    if not done:
        raise CommandError(f"run {run_id} had ended already: it is {cancelled.state}")
    call.output.document(run_document(cancelled))
    if cancelled.finished:
        call.output.line(f"cancelled {run_id}")
    else:
        call.output.line(f"{run_id} is being cancelled: its worker {cancelled.worker} stops it")


@command(
    group,
    "retry",
    "mainspring runs retry 0199c2f4a1b3",
    "mainspring runs retry --job send_email --state failed --since 1d --yes",
    shared=read_filters,
)
async def retry(
    call: Call,
    filters: Filters,
    run: str | None = RUNS_ARGUMENT,
    everything: bool = ALL_FLAG,
    yes: bool = YES_FLAG,
) -> None:
    """Make a failed or cancelled run pending again, or all that match. Its earlier failures do not
    count."""
    _check_choice(run, everything, filters)
    async with call.client() as client:
        if run is None:
            await _change_all(
                call,
                client,
                "retry",
                filters,
                {State.FAILED, State.CANCELLED},
                yes=yes,
                change=lambda: client.retry_runs(**filters),
            )
            return
        run_id = await find_run_id(client, run)
        revived = await client.retry(run_id)
    call.output.document(run_document(revived))
    call.output.line(f"{run_id} is {revived.state} again")


def _check_choice(run: str | None, everything: bool, filters: Filters) -> None:
    """Refuse a command that names neither a run nor options that choose several, or both."""
    several = everything or any(filters.values())
    if run is not None and several:
        raise CommandError(
            "give RUN, or options that choose several runs, not both", code=BAD_INPUT
        )
    if run is None and not several:
        raise CommandError(
            "name a run, or choose several with --job, --state, --since or --all",
            code=BAD_INPUT,
            advice="`mainspring runs list` lists runs",
        )


async def _change_all(
    call: Call,
    client: Client,
    verb: str,
    filters: Filters,
    changeable: Collection[State],
    *,
    yes: bool,
    change: Callable[[], Awaitable[Matched]],
) -> None:
    """Cancel or retry the runs that match, after a question that tells how many they are."""
    if not yes:
        call.check_can_ask(f"it {_THIRD_PERSON[verb]} runs", "--yes does so without asking")
    if filters["job"] is not None:
        await client.get_job(filters["job"])  # an unknown job is an error
    if not yes:
        named = filters["state"]
        states = [state for state in changeable if named is None or state in named]
        matching: dict[str, Any] = {**filters, "state": states}
        page = await client.list_runs(**matching, brief=True, limit=MOST_COUNTED)
        if not page.items:
            call.output.note(f"no run matches that can be {_DONE[verb]}")
            return
        count = f"{MOST_COUNTED:,} runs or more" if page.cursor else plural(len(page.items), "run")
        typer.confirm(f"{verb.capitalize()} {count}?", abort=True)
    matched = await change()
    call.output.document(matched)
    call.output.line(f"{_DONE[verb]} {matched.done:,} of {plural(matched.matched, 'run')}")
    if matched.more:
        call.output.note("more runs match: the same command goes on with them")


_DONE = {"cancel": "cancelled", "retry": "retried"}
_THIRD_PERSON = {"cancel": "cancels", "retry": "retries"}


async def find_run_id(client: Client, given: str) -> str:
    """The whole id of the one run whose id is given or begins so; `RunNotFound` if there is none.
    Only the newest runs that can match are searched, at most MOST_SEARCHED."""
    if _WHOLE.fullmatch(given):
        return given
    try:
        return (await client.get_run(given)).id
    except RunNotFound as unknown:
        if len(given) < SHORTEST_BEGINNING:
            wanted = f"give the id, or its first {SHORTEST_BEGINNING} characters or more"
            unknown.args = (f"there is no run {given!r}: {wanted}",)
            raise
    page = await client.list_runs(brief=True, limit=MOST_SEARCHED, **_known_of(given))
    matching = [run for run in page.items if run.id.startswith(given)]
    if not matching:
        missing = RunNotFound(given)
        searched = f"none of the newest {MOST_SEARCHED:,} runs has" if page.cursor else "no run has"
        missing.args = (f"{missing}, and {searched} an id that begins so",)
        raise missing
    if len(matching) > 1:
        named = [f"{run.id}  {run.job_id}, {run.state}" for run in matching[:MOST_NAMED]]
        more = len(matching) - MOST_NAMED
        raise CommandError(
            f"the ids of {len(matching)} runs begin with {given!r}: give more of the one you mean",
            code=BAD_INPUT,
            advice="\n  ".join([*named, f"and {more:,} more"] if more > 0 else named),
        )
    return matching[0].id


def _known_of(given: str) -> dict[str, Any]:
    """What is known of a run by the beginning of its id: the job of a slot's run, or about when
    another one was made. So a run is found among millions of newer ones."""
    job, at, _ = given.partition("@")
    if at:
        return {"job": job}
    if not _TIME.fullmatch(given):
        return {}
    digits = given[:_TIME_DIGITS]
    try:
        since, until = (
            datetime.fromtimestamp(int(digits.ljust(_TIME_DIGITS, fill), 16) / 1000, UTC)
            for fill in "0f"
        )
    except (ValueError, OverflowError, OSError):  # no time of this epoch: a job may be named so
        return {}
    return {"since": since - _CLOCK_ERROR, "until": until + _CLOCK_ERROR}


def print_run(output: Output, run: Run, why: str | None = None) -> None:
    """Print a run; `why` says why it has not run, or not yet."""
    output.document({**run_document(run), "why": why})
    output.fields(_about(run, output, why))
    for attempt in run.attempts:
        _print_attempt(output, attempt)
    if run.error and not run.attempts:
        output.line(run.error)


def _about(run: Run, output: Output, why: str | None) -> list[tuple[str, str | None]]:
    moment = output.moment
    running = run.state == "running"
    return [
        ("id", run.id),
        ("job", run.job_id),
        ("state", run.state.value),
        ("reason", run.reason),
        ("why", why),
        ("error", run.error),
        ("made by", run.source.value),
        ("created", moment(run.created_at)),
        *_first_due(run, moment),
        ("due", moment(run.run_at)),
        ("started", moment(run.started_at) if run.started_at else None),
        ("finished", moment(run.finished_at) if run.finished_at else None),
        ("took", None if run.duration is None else span(run.duration)),
        ("attempt", str(run.attempt) if run.attempt else None),
        ("failures", str(run.failures) if run.failures else None),
        ("waits for", ", ".join(run.after) if run.state == "waiting" else None),
        ("worker", run.worker if running else None),
        ("lease until", moment(run.lease_until) if running and run.lease_until else None),
        ("cancelling", "yes" if running and run.cancel_requested else None),
        ("progress", _progress(run)),
        ("queue", f"{run.queue}, priority {run.priority}"),
        ("dedupe key", run.dedupe_key),
        ("payload", None if run.payload is None else _json(run.payload)),
        ("result", None if run.result is None else _json(run.result)),
    ]


def _first_due(run: Run, moment: Callable[[datetime], str]) -> Iterator[tuple[str, str]]:
    """When the run was due at first, or its slot, where it is due later: after a retry, or by
    jitter. A run after others has the time of the first of them there, which says nothing."""
    if run.scheduled_at != run.run_at and run.source != "after":
        is_slot = run.source in ("schedule", "backfill")
        yield "slot" if is_slot else "first due", moment(run.scheduled_at)


def _progress(run: Run) -> str | None:
    if run.progress is None:
        return None
    of = "" if run.progress.total is None else f" of {run.progress.total:g}"
    return f"{run.progress.done:g}{of} {run.progress.message}".strip()


def _print_attempt(output: Output, attempt: Attempt) -> None:
    took = span((attempt.finished_at - attempt.started_at).total_seconds())
    started = output.moment(attempt.started_at)
    output.line()
    output.line(
        f"attempt {attempt.number}: {attempt.outcome.value} after {took},"
        f" started {started} on {attempt.worker}",
        style=STYLES.get(attempt.outcome.value, ""),
    )
    for line in _call(attempt.detail):
        output.line(f"  {line}")
    for line in attempt.log:
        output.line(f"  {line.rstrip()}")
    trace = (attempt.traceback or attempt.error or "").rstrip()
    for line in trace.splitlines():
        output.line(f"  {line}", style="dim" if attempt.traceback else "red")


def _call(detail: Any) -> list[str]:
    """What a webhook's attempt kept of its call: the request, the status, and the beginning of the
    answer. Secrets were masked before it was stored."""
    if not isinstance(detail, dict):
        return []
    request, response = detail.get("request"), detail.get("response")
    lines = []
    if isinstance(request, dict) and "url" in request:
        lines.append(f"{request.get('method', '')} {request['url']}".strip())
    if isinstance(response, dict) and "status" in response:
        lines.append(f"answered {response['status']}")
        body = response.get("body")
        if body and "encoding" not in response:  # else it is no text
            text = body if isinstance(body, str) else _json(body)
            lines[-1] += f": {text[:BODY_SHOWN]}" + ("…" if len(text) > BODY_SHOWN else "")
    return lines


def _json(value: Any) -> str:
    return jsonlib.dumps(plain_json(value), ensure_ascii=False)


def _duration(run: Run) -> str:
    return "-" if run.duration is None else span(run.duration)


def _stands_for_slots(run: Run) -> bool:
    """Whether this is the one record of several slots that were not fired."""
    return run.state == "skipped" and run.reason in ("misfire", "paused")


def _why(run: Run) -> str:
    if run.error:
        return run.error
    words = [run.reason] if run.reason else []
    if _stands_for_slots(run) and isinstance(run.result, dict):
        words.append(plural(run.result.get("count", 1), "slot"))
    if run.source == "backfill":
        words.append(f"backfill of {iso_seconds(run.scheduled_at)}")
    return ", ".join(words)


COLUMNS: list[Column[Any]] = [
    Column("id", lambda run: run.id, whole=True, by_prefix=True),
    Column("job", lambda run: run.job_id, whole=True, least=8, hide=1),
    Column("state", lambda run: run.state.value, state=True),
    time_column("due", lambda run: run.run_at, hide=2),
    Column("took", _duration, whole=True, hide=3),
    Column("tries", lambda run: str(run.attempt), whole=True, hide=4),
    Column("why", _why, least=10),
]
