"""`mainspring runs`: lists runs, shows, cancels and retries them."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from mainspring.cli import completion, time_format
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import (
    AppOption,
    CursorOption,
    JsonOption,
    LimitOption,
    RunArgument,
    StoreOption,
    example,
    run_coroutine,
)
from mainspring.cli.output import STYLES, Column, Output, when, when_short
from mainspring.cli.run_lookup import find_run_id
from mainspring.cli.store_access import StoreChoice, open_client
from mainspring.core.plurals import plural

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from datetime import datetime

    from mainspring.core.model import Attempt, Page, Run
    from mainspring.scheduler import Client

__all__ = ["COLUMNS", "group", "print_run"]

BODY_SHOWN = 500
"""Characters of an answer's body that are printed. `--json` has all that was kept."""

WHOLE_RUNS_AT_ONCE = 10


class Filters(TypedDict):
    job: str | None
    state: list[str] | None
    timed_out: bool


group = typer.Typer(help="List and show runs; cancel and retry them.")


@group.command(
    "list",
    epilog=example(
        "mainspring runs list --job send_email --state failed --limit 20",
        "mainspring runs list --state pending,running --json",
    ),
)
def list_(
    job: Annotated[
        str | None,
        typer.Option("--job", help="Only runs of this job.", autocompletion=completion.job_ids),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            help="Only runs in this state; several with commas, or the option again.",
            autocompletion=completion.states,
        ),
    ] = None,
    timed_out: Annotated[
        bool, typer.Option("--timed-out", help="Only runs of which an attempt timed out.")
    ] = False,
    limit: LimitOption = 20,
    cursor: CursorOption = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    states = [_check_state(name.strip()) for given in state or [] for name in given.split(",")]
    filters: Filters = {"job": job, "state": states or None, "timed_out": timed_out}
    run_coroutine(_list(StoreChoice.of(store, app), Output(as_json=json), filters, limit, cursor))


async def _list(
    choice: StoreChoice,
    output: Output,
    filters: Filters,
    limit: int,
    cursor: str | None,
) -> None:
    job = filters["job"]
    async with open_client(choice) as client:
        if job is not None and not (await client.list_runs(job=job, brief=True, limit=1)).items:
            await client.get_job(job)  # an unknown job is an error, not an empty list
        if output.as_json:
            from mainspring.cli.json_output import run_document

            await output.item_pages(_read_pages(client, filters, limit, cursor), run_document)
            return
        page = await client.list_runs(**filters, brief=True, limit=limit, cursor=cursor)
        page.items[:] = [
            await client.get_run(run.id) if _stands_for_slots(run) else run for run in page.items
        ]
    if page.items:
        output.table(COLUMNS, page.items)
    if page.cursor:
        output.note(f"there are more: --cursor {page.cursor}")
    elif not page.items:
        output.note(_nothing(filters) if cursor is None else "no more runs")


async def _read_pages(
    client: Client, filters: Filters, limit: int, cursor: str | None
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
    from mainspring.core.model import State

    if name not in [*State]:
        raise CommandError(
            f"--state is one of {', '.join(State)}, not {name!r}",
            code=BAD_INPUT,
            advice="several: --state pending,running",
        )
    return name


def _nothing(filters: Filters) -> str:
    job, states = filters["job"], filters["state"] or []
    if any(filters.values()):
        which = f"{' or '.join(states)} " if states else ""
        timed_out = " with an attempt that timed out" if filters["timed_out"] else ""
        return f"no {which}runs" + (f" of {job}" if job else "") + timed_out
    return "no runs yet: `mainspring enqueue JOB` or `mainspring jobs trigger JOB` makes one"


@group.command("show", epilog=example("mainspring runs show 0199c2f4a1b3"))
def show(
    run: RunArgument, store: StoreOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Show a run: its result, attempts and logs, or why it has not run."""
    run_coroutine(_show(StoreChoice.of(store, app), Output(as_json=json), run))


async def _show(choice: StoreChoice, output: Output, run_id: str) -> None:
    async with open_client(choice) as client:
        run_id = await find_run_id(client, run_id)
        run = await client.get_run(run_id)
        why = await client.explain(run_id)
    print_run(output, run, why.problem)


@group.command("cancel", epilog=example("mainspring runs cancel 0199c2f4a1b3"))
def cancel(
    run: RunArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="Stored with the run.")
    ] = "cancelled on the command line",
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Cancel a run. If it is running, its worker stops it."""
    run_coroutine(_cancel(StoreChoice.of(store, app), Output(as_json=json), run, reason))


async def _cancel(choice: StoreChoice, output: Output, run_id: str, reason: str) -> None:
    from mainspring.cli.json_output import run_document

    async with open_client(choice) as client:
        run_id = await find_run_id(client, run_id)
        done = await client.cancel(run_id, reason=reason)
        run = await client.get_run(run_id)
    if not done:
        raise CommandError(f"run {run_id} had ended already: it is {run.state}")
    if output.as_json:
        output.document(run_document(run))
    elif run.finished:
        output.line(f"cancelled {run_id}")
    else:
        output.line(f"{run_id} is being cancelled: its worker {run.worker} stops it")


@group.command("retry", epilog=example("mainspring runs retry 0199c2f4a1b3"))
def retry(
    run: RunArgument, store: StoreOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Make a failed or cancelled run pending again. Its earlier failures do not count."""
    run_coroutine(_retry(StoreChoice.of(store, app), Output(as_json=json), run))


async def _retry(choice: StoreChoice, output: Output, run_id: str) -> None:
    from mainspring.cli.json_output import run_document

    async with open_client(choice) as client:
        run_id = await find_run_id(client, run_id)
        run = await client.retry(run_id)
    if output.as_json:
        output.document(run_document(run))
    else:
        output.line(f"{run_id} is {run.state} again")


def print_run(output: Output, run: Run, why: str | None = None) -> None:
    """Print a run; `why` says why it has not run, or not yet."""
    if output.as_json:
        from mainspring.cli.json_output import run_document

        output.document({**run_document(run), "why": why})
        return
    output.fields(_about(run, output, why))
    for attempt in run.attempts:
        _print_attempt(output, attempt)
    if run.error and not run.attempts:
        output.line(run.error)


def _about(run: Run, output: Output, why: str | None) -> list[tuple[str, str | None]]:
    moment = when if output.pretty else time_format.seconds
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
        ("took", None if run.duration is None else time_format.span(run.duration)),
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
    took = time_format.span((attempt.finished_at - attempt.started_at).total_seconds())
    started = when(attempt.started_at) if output.pretty else time_format.seconds(attempt.started_at)
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
    from mainspring.cli.json_output import plain_json

    return jsonlib.dumps(plain_json(value), ensure_ascii=False)


def _duration(run: Run) -> str:
    return "-" if run.duration is None else time_format.span(run.duration)


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
        words.append(f"backfill of {time_format.seconds(run.scheduled_at)}")
    return ", ".join(words)


COLUMNS: list[Column[Any]] = [
    Column("id", lambda run: run.id, whole=True, by_prefix=True),
    Column("job", lambda run: run.job_id, whole=True, least=8, hide=1),
    Column("state", lambda run: run.state.value, state=True),
    Column(
        "due",
        lambda run: time_format.seconds(run.run_at),
        lambda run: when(run.run_at),
        short=lambda run: when_short(run.run_at),
        whole=True,
        hide=2,
    ),
    Column("took", _duration, whole=True, hide=3),
    Column("tries", lambda run: str(run.attempt), whole=True, hide=4),
    Column("why", _why, least=10),
]
