"""`mainspring doctor`: shows what keeps jobs from running, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sqlite3
import statistics
import sys
import zoneinfo
from collections import Counter
from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from mainspring import __version__
from mainspring.cli.command import INSPECT, Call, command
from mainspring.cli.errors import FAILED, CommandError
from mainspring.cli.jobs import describe_rescue, prune_command
from mainspring.cli.output import STYLES, Output, span
from mainspring.cli.store_access import (
    LocatedStore,
    StoreChoice,
    check_exists,
    database_file,
    find_store,
    open_existing,
)
from mainspring.core.clock import SystemClock
from mainspring.core.model import Job, State, is_node_handler, replace
from mainspring.core.plurals import plural
from mainspring.engine.firing_pause import FiringPause, read_pause
from mainspring.engine.jobs_without_worker import (
    describe_missing_worker,
    find_orphans,
    without_worker,
)
from mainspring.engine.live_workers import LiveWorker, find_workers, no_worker_fires
from mainspring.errors import MainspringError, SecretKeyMissing
from mainspring.stores.election import elect
from mainspring.stores.paging import all_items, pages
from mainspring.stores.protocol import Due, JobQuery, RunQuery, Store

if TYPE_CHECKING:
    from mainspring.scheduler import Client
    from mainspring.scheduler.statistics import JobHealth

commands = typer.Typer()


@command(
    commands,
    "doctor",
    "mainspring doctor --store sqlite:///jobs.db",
    "mainspring doctor --json",
    panel=INSPECT,
)
async def doctor(call: Call) -> None:
    """Check the store, the clock, the workers and the jobs. Exit code 1 if a check fails."""
    checks = await run_checks(call.choice)
    passed = all(check.status != "fail" for check in checks)
    call.output.document({"ok": passed, "checks": [asdict(check) for check in checks]})
    _print(call.output, checks)
    if not passed:
        raise typer.Exit(FAILED)


def _print(output: Output, checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        output.line(
            f"{check.status:4}  {check.name:{width}}  {check.detail}",
            style="" if check.status == "ok" else STYLES[check.status],
        )
        if check.advice:
            output.line(f"      {'':{width}}  → {check.advice}")
    failed = sum(check.status == "fail" for check in checks)
    warned = sum(check.status == "warn" for check in checks)
    output.line()
    if failed or warned:
        output.line(f"{plural(failed, 'fault')}, {plural(warned, 'warning')}")
    else:
        output.line("all checks passed")


DUE_TOO_LONG = timedelta(seconds=60)
"""Due work that no worker takes for longer than this is reported."""

SLOW_SECONDS = 0.1
MAX_SKEW = timedelta(seconds=2)
NEGLIGIBLE_CLOCK_ERROR = timedelta(milliseconds=10)
"""`doctor` does not mention an error of the clock that is no larger than this."""
READ_SAMPLES = 5
PAGE_SIZE = 100
MOST_SHOWN = 3
WHOLE_RUNS_AT_ONCE = 20
"""Runs that are read with payload, result and attempts: each may hold megabytes."""


@dataclass(frozen=True, slots=True)
class Check:
    status: Literal["ok", "warn", "fail"]
    name: str
    detail: str
    advice: str = ""


def _check(name: str, detail: str, *, warn: str = "", fail: str = "") -> Check:
    """A line of the doctor: a fault or a warning where there is an advice about one."""
    return Check("fail" if fail else "warn" if warn else "ok", name, detail, fail or warn)


async def run_checks(choice: StoreChoice) -> list[Check]:
    clock = SystemClock()
    checks = [
        _check("python", f"{platform.python_version()} at {sys.executable}"),
        _check("mainspring", __version__),
        _check("sqlite", sqlite3.sqlite_version),
        _check_tzdata(),
    ]
    try:
        located = find_store(choice)
        check_exists(located)
        await open_existing(located.store)
    except (CommandError, MainspringError, OSError) as error:
        advice = error.advice if isinstance(error, CommandError) else _REACH
        return [*checks, _check("store", str(error), fail=advice)]
    try:
        checks += await _check_store(located, clock)
    except (MainspringError, OSError) as error:
        checks.append(_check("store", str(error), fail=_REACH))
    finally:
        with contextlib.suppress(Exception):
            await located.store.close()
    return checks


_REACH = "check the URL, the permissions and the disk; --store names another store"


async def _check_store(located: LocatedStore, clock: SystemClock) -> list[Check]:
    from mainspring.scheduler import Client

    store = located.store
    jobs = [job async for job in all_items(store.jobs, JobQuery(limit=1000))]
    checks = [
        await _check_reads(located, clock),
        await _check_writes(store, clock),
        await check_store_clock(store, clock),
        *_check_files(located),
        *await _check_work(store, jobs, located.url),
    ]
    jobs = [job for job in jobs if job.unreadable is None]
    async with Client(store, inline=True, wait_for_store=0) as client:  # it closes the store
        checks += await _check_failures(client, [job for job in jobs if job.enabled])
        checks += await _check_secrets(client, [job for job in jobs if job.webhook is not None])
    return checks


# This machine


def _check_tzdata() -> Check:
    """Python prefers the system's zones to the package's; outdated ones give wrong slots."""
    system, folder = _find_system_tzdata()
    try:
        package = metadata.version("tzdata")
    except metadata.PackageNotFoundError:
        package = ""
    if not folder:
        if not package:
            return _check("tzdata", "no time zones here", fail="pip install tzdata")
        return _check("tzdata", f"{package} (package)")
    detail = f"{system or 'of unknown age'} in {folder}"
    if system and package and system[:4] < package[:4]:
        advice = "update the system's, or set PYTHONTZPATH to nothing to use the package's"
        return _check("tzdata", f"{detail} is older than the package's {package}", warn=advice)
    return _check("tzdata", detail)


def _find_system_tzdata() -> tuple[str, str]:
    """The version (empty if unknown) and the folder of the system's zones."""
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "Europe").is_dir():
            with contextlib.suppress(OSError):
                text = (folder / "tzdata.zi").read_text("ascii", errors="replace")
                return text.splitlines()[0].removeprefix("# version").strip(), str(folder)
            return "", str(folder)
    return "", ""


# The store


async def _check_reads(located: LocatedStore, clock: SystemClock) -> Check:
    taken = []
    for _ in range(READ_SAMPLES):
        sent = clock.monotonic()
        await located.store.jobs(JobQuery(limit=1))
        taken.append(clock.monotonic() - sent)
    median = statistics.median(taken)
    slow = "that is slow: claims and renewals wait for it" if median > SLOW_SECONDS else ""
    return _check("store", f"{located.name} responds in {median * 1000:.1f} ms", warn=slow)


async def _check_writes(store: Store, clock: SystemClock) -> Check:
    """Win a test election and resign: that tests writing and leaves no note."""
    holder = f"doctor:{os.getpid()}"
    sent = clock.monotonic()
    try:
        won = await elect(store, "doctor", holder, timedelta(seconds=5))
        taken = clock.monotonic() - sent
        if won is not None:
            await elect(store, "doctor", holder, timedelta(0))
    except MainspringError as error:
        return _check("store writes", str(error), fail="workers need to write to it")
    slow = "that is slow: every run commits twice" if taken > 10 * SLOW_SECONDS else ""
    return _check("store writes", f"a commit takes {taken * 1000:.1f} ms", warn=slow)


async def check_store_clock(store: Store, clock: SystemClock) -> Check:
    before = clock.now()
    reading = await store.now()
    after = clock.now()
    skew = timedelta(0)
    error = store.info().clock_error  # the true time is up to so much later than the reading
    if reading + error < before:
        skew = reading + error - before
    elif reading > after:
        skew = reading - after
    is_exact = error <= NEGLIGIBLE_CLOCK_ERROR
    known = "" if is_exact else f" (it is read to {error.total_seconds():.2f} s)"
    detail = f"the store's is {skew.total_seconds():+.2f} s from this machine's{known}"
    advice = "runs are not affected (the store's clock decides), but times look wrong: check NTP"
    return _check("clock", detail, warn=advice if abs(skew) > MAX_SKEW else "")


def _check_files(located: LocatedStore) -> Iterator[Check]:
    """Whether other users of this machine can read or stop an embedded store."""
    from mainspring.stores.sqlite.files import all_files, wide_open
    from mainspring.webhooks.vault import key_file

    database = database_file(located.url or "")
    if database is None:
        return
    files = [*all_files(database), key_file(database)]
    wide = [(file, mode) for file in files if (mode := wide_open(file))]
    if not wide:
        yield _check("files", "other users of this machine cannot use them")
        return
    detail = ", ".join(f"{file.name} ({mode})" for file, mode in wide)
    advice = f"chmod o= {' '.join(shlex.quote(str(file)) for file, _ in wide)}"
    yield _check("files", f"every user of this machine may use {detail}", warn=advice)


# The work


async def _check_work(store: Store, jobs: list[Job], url: str | None) -> list[Check]:
    now = await store.now()
    counts = await store.counts()
    workers = await find_workers(store)
    orphaned = without_worker([job for job in jobs if job.enabled], workers)
    pause = await read_pause(store)
    checks = [_check_workers(workers, now), _check_pause(pause, now, workers)]
    if workers:
        checks += _check_handlers(orphaned, workers, url)
    running: Counter[str] = Counter()
    for job in jobs:
        running[job.handler] += counts.runs.get(job.id, {}).get(State.RUNNING, 0)
    checks += _check_due_work(counts.due, running, find_orphans(orphaned, workers), now, url)
    if pause.since is None and not no_worker_fires(workers):
        unfired = {job.id for job in orphaned} if workers else set()
        checks.append(await _check_schedules(store, now, unfired, workers))
    paused = sum(not job.enabled for job in jobs)
    runs = ", ".join(f"{total} {state}" for state in State if (total := counts.total(state)))
    about_paused = f" ({paused} paused)" if paused else ""
    return [
        *checks,
        await _check_leases(store, now),
        await _check_cancelled_runs(store, now),
        await _check_records(store, jobs),
        _check("jobs", f"{len(jobs)}{about_paused}; runs: {runs or 'none'}"),
    ]


def _check_pause(pause: FiringPause, now: datetime, workers: list[LiveWorker]) -> Check:
    if pause.since is not None:
        detail = f"all firing is paused for {span((now - pause.since).total_seconds())}"
        return _check("firing", detail, warn="mainspring resume --all resumes it")
    if no_worker_fires(workers):
        detail = "no slot fires: it is switched off (enabled=False) on every worker that is alive"
        return _check("firing", detail, warn="start a worker that fires")
    return _check("firing", "it is not paused")


def _check_due_work(
    due: Mapping[str, Due],
    running: Counter[str],
    orphans: list[Job],
    now: datetime,
    url: str | None,
) -> Iterator[Check]:
    late = {handler: work for handler, work in due.items() if now - work.oldest > DUE_TOO_LONG}
    if not late:
        waiting = sum(work.count for work in due.values())
        yield _check("due work", f"{waiting} due, none for longer than a minute")
    for handler, work in sorted(late.items()):
        since = span((now - work.oldest).total_seconds())
        warn, fail = "", ""
        if running[handler]:
            warn = "workers are behind: start more, or raise --workers"
        elif is_node_handler(handler):
            warn = "only this worker takes it; if that is gone, it is skipped in about a minute"
        else:
            fail = f"no worker takes it: start one that has the handler {handler!r}"
            if handler in {job.handler for job in orphans}:
                fail += f"; if its code is gone, `{prune_command(url)}` lists what to remove"
        detail = f"{work.count} due of {handler}, the oldest for {since}"
        yield _check("due work", detail, warn=warn, fail=fail)


def _check_workers(workers: list[LiveWorker], now: datetime) -> Check:
    if not workers:
        advice = "start one: mainspring worker app:scheduler"
        return _check("workers", "no worker is alive", warn=advice)
    full = [worker.id for worker in workers if worker.memory_limit_reached]
    if full:
        detail = f"at the memory limit, and taking no more runs: {_some(full)}"
        return _check("workers", detail, warn="restart them, or give them a higher limit")
    seen = max((worker.seen_at for worker in workers if worker.seen_at is not None), default=now)
    ago = f"last seen {max(0, round((now - seen).total_seconds()))} s ago"
    names = _some([worker.id for worker in workers])
    return _check("workers", f"{len(workers)} alive, {ago}: {names}")


def _check_handlers(jobs: list[Job], workers: list[LiveWorker], url: str | None) -> Iterator[Check]:
    """Check for jobs that no live worker can run: their code was renamed, their worker is down, or
    no worker takes their queue."""
    for job in jobs[:MOST_SHOWN]:
        detail = f"{describe_missing_worker(job, workers)}; {_what_follows(job)}"
        yield _check("handlers", detail, warn=describe_rescue(job, workers, url))
    more, orphans = len(jobs) - MOST_SHOWN, len(find_orphans(jobs, workers))
    advice = f"`{prune_command(url)}` lists all whose code is gone" if orphans > 1 else ""
    if more > 0:
        detail = f"and {plural(more, 'more job')} without a worker"
        yield Check("warn", "handlers", detail, advice)
    elif orphans > 1:
        yield Check("warn", "handlers", f"{orphans} jobs are orphaned", advice)


def _what_follows(job: Job) -> str:
    if job.schedule is not None:
        return "its slots are no longer fired when that lasts for a minute"
    if job.policy.after:
        return "when that lasts for a minute, it gets no further run while one waits"
    return "its runs wait"


async def _check_schedules(
    store: Store, now: datetime, orphaned: set[str], workers: list[LiveWorker]
) -> Check:
    """Check for slots that should have been fired. A live worker fires them within a minute."""
    due = now - DUE_TOO_LONG if workers else now
    page = await store.jobs(JobQuery(due=due, limit=PAGE_SIZE + len(orphaned)))
    overdue = [job for job in page.items if job.unreadable is None and job.id not in orphaned]
    if not overdue:
        return _check("schedules", f"none is overdue{' by more than a minute' * bool(workers)}")
    detail = f"{_many(overdue)} overdue: {_some([job.id for job in overdue])}"
    advice = "no worker is alive to fire them: start one"
    if workers:
        advice = "workers are alive and do not fire them: see their logs"
    return _check("schedules", detail, fail=advice)


async def _check_leases(store: Store, now: datetime) -> Check:
    page = await store.find(RunQuery(lapsed=True, brief=True, limit=PAGE_SIZE))
    if not page.items:
        return _check("leases", "none has lapsed")
    detail = f"{_many(page.items)} lapsed: {page.items[0].id} of {page.items[0].job_id}"
    oldest = min(run.lease_until for run in page.items if run.lease_until is not None)
    if now - oldest > DUE_TOO_LONG:
        advice = "their workers died, and no other rescues them: start one"
        return _check("leases", detail, fail=advice)
    advice = "their workers died; another rescues them within seconds"
    return _check("leases", detail, warn=advice)


async def _check_cancelled_runs(store: Store, now: datetime) -> Check:
    """Check for runs that were cancelled but are still running."""
    page = await store.find(RunQuery(states=frozenset({State.RUNNING}), brief=True, limit=1000))
    ignoring = [run for run in page.items if run.cancel_requested]
    if not ignoring:
        return _check("running", f"{_many(page.items, 1000)} running, none ignores a cancel")
    first = f"{ignoring[0].id} of {ignoring[0].job_id}"
    advice = 'a sync handler must check ctx.cancelled; isolation="process" can always be stopped'
    detail = f"{_many(ignoring)} cancelled and still running: {first}"
    return _check("running", detail, warn=advice)


async def _check_records(store: Store, jobs: list[Job]) -> Check:
    """Records that this version cannot read. All jobs are checked, and of runs those that were set
    aside and the newest 1,000 of each state."""
    damaged = [f"job {job.id} ({job.unreadable})" for job in jobs if job.unreadable is not None]
    queries = [RunQuery(set_aside=True), *(RunQuery(states=frozenset({s})) for s in State)]
    runs: dict[str, str | None] = {}
    for query in queries:
        async for page in pages(store.find, replace(query, limit=WHOLE_RUNS_AT_ONCE), most=1000):
            runs |= {run.id: run.unreadable for run in page if run.unreadable is not None}
    damaged += [f"run {run_id} ({why})" for run_id, why in runs.items()]
    if not damaged:
        return _check("records", "all records that were checked can be read")
    advice = (
        "they are skipped and not changed; everything else works. A newer version may have"
        " written them: upgrade this one. If they are damaged, restore or remove them"
    )
    detail = f"{_many(damaged)} cannot be read: {_some(damaged, '; ')}"
    return _check("records", detail, fail=advice)


async def _check_failures(client: Client, jobs: list[Job]) -> list[Check]:
    """Check for jobs whose last run failed, and for those that fail too often."""
    failing: list[JobHealth] = []
    for at in range(0, len(jobs), PAGE_SIZE):
        healths = await client.jobs_health(jobs[at : at + PAGE_SIZE])
        failing += [health for health in healths if _is_failing(health)]
    if not failing:
        return [_check("failures", "no job failed when it last ran")]
    failing.sort(key=lambda health: -health.consecutive_failures)
    checks = [_describe_failing(health) for health in failing[:MOST_SHOWN]]
    if (more := len(failing) - MOST_SHOWN) > 0:
        advice = "`mainspring jobs list` shows how the last run of each job ended"
        checks.append(
            _check("failures", f"and {plural(more, 'more job')} that failed", warn=advice)
        )
    return checks


async def _check_secrets(client: Client, jobs: list[Job]) -> list[Check]:
    """Check that the secrets of these webhooks can be decrypted with the keys of this process."""
    if not jobs or not client.webhooks.available:
        return []
    faults: list[str] = []
    for job in jobs:
        try:
            await client.webhooks.decrypt_with_store_key(job)
        except SecretKeyMissing as error:
            faults.append(str(error))
    if not faults:
        return [_check("secrets", f"those of {plural(len(jobs), 'webhook')} can be decrypted")]
    detail = f"those of {plural(len(faults), 'webhook')} cannot be decrypted: {faults[0]}"
    advice = "give doctor the keys that the workers have; if they lack the key too, calls fail"
    return [_check("secrets", detail, warn=advice)]


def _is_failing(health: JobHealth) -> bool:
    failed = health.last_run is not None and health.last_run.state is State.FAILED
    return failed or health.status == "unhealthy"


def _describe_failing(health: JobHealth) -> Check:
    last = health.last_run
    if last is None or last.state is not State.FAILED:
        since = "since it was made" if health.rated_since is None else "in the last 24 hours"
        rate = f"{health.success_rate or 0:.0%} of its runs succeeded {since}"
        advice = f"mainspring runs list --job {health.job_id} --state failed"
        return _check("failures", f"job {health.job_id!r}: {rate}", warn=advice)
    count = health.consecutive_failures
    runs = f"the last {count} runs" if count > 1 else "the last run"
    error = f": {last.error.splitlines()[0]}" if last.error else ""
    detail = f"job {health.job_id!r}: {runs} failed{error}"
    return _check("failures", detail, warn=f"mainspring runs show {last.id}")


def _some(names: list[str], between: str = ", ") -> str:
    return between.join(names[:MOST_SHOWN]) + ("…" if len(names) > MOST_SHOWN else "")


def _many(items: Sized, most: int = PAGE_SIZE) -> str:
    return f"{len(items)}{'+' if len(items) >= most else ''}"
