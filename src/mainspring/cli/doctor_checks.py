"""The checks of `mainspring doctor`."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sqlite3
import statistics
import sys
import zoneinfo
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mainspring import __version__
from mainspring.cli.errors import CommandError
from mainspring.cli.store_access import (
    LocatedStore,
    StoreChoice,
    check_exists,
    database_file,
    find_store,
    open_existing,
)
from mainspring.cli.time_format import span
from mainspring.core.clock import SystemClock
from mainspring.core.model import Job, State, replace
from mainspring.core.node_runs import is_node_handler
from mainspring.core.plurals import plural
from mainspring.engine.firing_pause import FiringPause, read_pause
from mainspring.engine.live_workers import (
    LiveWorker,
    describe_missing_worker,
    find_orphans,
    find_workers,
    keeping_code,
    lacks_only_queue,
    no_worker_fires,
    prune_command,
    removal_command,
    without_worker,
)
from mainspring.errors import MainspringError, SecretKeyMissing
from mainspring.stores.election import elect
from mainspring.stores.paging import all_items, pages
from mainspring.stores.protocol import Due, JobQuery, RunQuery, Store

if TYPE_CHECKING:
    from mainspring.scheduler import Client
    from mainspring.scheduler.statistics import JobHealth

DUE_TOO_LONG = timedelta(seconds=60)
"""Due work that no worker takes for longer than this is reported."""

SLOW_SECONDS = 0.1
MAX_SKEW = timedelta(seconds=2)
NEGLIGIBLE_CLOCK_ERROR = timedelta(milliseconds=10)
"""`doctor` does not mention an error of the clock that is no larger than this."""
READ_SAMPLES = 5
PAGE_SIZE = 100
WHOLE_RUNS_AT_ONCE = 20
"""Runs that are read with payload, result and attempts: each may hold megabytes."""


@dataclass(frozen=True, slots=True)
class Check:
    status: Literal["ok", "warn", "fail"]
    name: str
    detail: str
    advice: str = ""

    def document(self) -> dict[str, str]:
        return asdict(self)


async def run_checks(choice: StoreChoice) -> list[Check]:
    clock = SystemClock()
    began = clock.now(), clock.monotonic()
    checks = [*_check_versions()]
    try:
        found = find_store(choice)
        check_exists(found)
        await open_existing(found.store)
    except (CommandError, MainspringError, OSError) as error:
        advice = error.advice if isinstance(error, CommandError) else _REACH
        return [*checks, Check("fail", "store", str(error), advice)]
    try:
        checks += await _check_store(found, clock)
    except (MainspringError, OSError) as error:
        checks.append(Check("fail", "store", str(error), _REACH))
    finally:
        with contextlib.suppress(Exception):
            await found.store.close()
    return [*checks, _check_clock_steady(began, (clock.now(), clock.monotonic()))]


_REACH = "check the URL, the permissions and the disk; --store names another store"


async def _check_store(found: LocatedStore, clock: SystemClock) -> list[Check]:
    from mainspring.scheduler import Client

    store = found.store
    checks = [
        await _check_reads(found, clock),
        await _check_writes(store, clock),
        await check_store_clock(store, clock),
        *_check_files(found),
        *await _check_work(store, found.url),
    ]
    jobs = [job for job in await _read_all_jobs(store) if job.unreadable is None]
    async with Client(store, inline=True, wait_for_store=0) as client:  # it closes the store
        checks += await _check_failures(client, [job for job in jobs if job.enabled])
        checks += await _check_secrets(client, [job for job in jobs if job.webhook is not None])
    return checks


# This machine


def _check_versions() -> Iterator[Check]:
    yield Check("ok", "python", f"{platform.python_version()} at {sys.executable}")
    yield Check("ok", "mainspring", __version__)
    yield Check("ok", "sqlite", sqlite3.sqlite_version)
    yield _check_tzdata()


def _check_tzdata() -> Check:
    """Python prefers the system's zones to the package's; outdated ones give wrong slots."""
    system, folder = _find_system_tzdata()
    try:
        package = metadata.version("tzdata")
    except metadata.PackageNotFoundError:
        package = ""
    if not folder:
        if not package:
            return Check("fail", "tzdata", "no time zones here", "pip install tzdata")
        return Check("ok", "tzdata", f"{package} (package)")
    detail = f"{system or 'of unknown age'} in {folder}"
    if system and package and system[:4] < package[:4]:
        advice = "update the system's, or set PYTHONTZPATH to nothing to use the package's"
        return Check("warn", "tzdata", f"{detail} is older than the package's {package}", advice)
    return Check("ok", "tzdata", detail)


def _find_system_tzdata() -> tuple[str, str]:
    """The version (empty if unknown) and the folder of the system's zones."""
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "Europe").is_dir():
            with contextlib.suppress(OSError):
                text = (folder / "tzdata.zi").read_text("ascii", errors="replace")
                return text.splitlines()[0].removeprefix("# version").strip(), str(folder)
            return "", str(folder)
    return "", ""


def _check_clock_steady(began: tuple[datetime, float], ended: tuple[datetime, float]) -> Check:
    """Whether wall time and monotonic time advanced equally during the checks."""
    wall = (ended[0] - began[0]).total_seconds()
    drift = wall - (ended[1] - began[1])
    if ended[1] < began[1] or abs(drift) > 0.5:
        advice = "the system clock was set just now, or is being slewed hard: check NTP"
        detail = f"the wall clock moved {drift:+.2f} s against the monotonic clock"
        return Check("warn", "clock steady", detail, advice)
    return Check("ok", "clock steady", f"{drift * 1000:+.1f} ms against the monotonic clock")


# The store


async def _check_reads(found: LocatedStore, clock: SystemClock) -> Check:
    taken = []
    for _ in range(READ_SAMPLES):
        sent = clock.monotonic()
        await found.store.jobs(JobQuery(limit=1))
        taken.append(clock.monotonic() - sent)
    middle = statistics.median(taken)
    detail = f"{found.name} answers in {middle * 1000:.1f} ms"
    if middle > SLOW_SECONDS:
        return Check("warn", "store", detail, "that is slow: claims and renewals wait for it")
    return Check("ok", "store", detail)


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
        return Check("fail", "store writes", str(error), "workers need to write to it")
    detail = f"a commit takes {taken * 1000:.1f} ms"
    if taken > 10 * SLOW_SECONDS:
        return Check("warn", "store writes", detail, "that is slow: every run commits twice")
    return Check("ok", "store writes", detail)


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
    if abs(skew) > MAX_SKEW:
        advice = (
            "runs are not affected (the store's clock decides), but times look wrong: check NTP"
        )
        return Check("warn", "clock", detail, advice)
    return Check("ok", "clock", detail)


def _check_files(found: LocatedStore) -> Iterator[Check]:
    """Whether other users of this machine can read or stop an embedded store."""
    from mainspring.stores.sqlite.files import all_files, wide_open
    from mainspring.webhooks.vault import key_file

    database = database_file(found.url or "")
    if database is None:
        return
    files = [*all_files(database), key_file(database)]
    wide = [(file, mode) for file in files if (mode := wide_open(file))]
    if not wide:
        yield Check("ok", "files", "other users of this machine cannot use them")
        return
    detail = ", ".join(f"{file.name} ({mode})" for file, mode in wide)
    advice = f"chmod o= {' '.join(shlex.quote(str(file)) for file, _ in wide)}"
    yield Check("warn", "files", f"every user of this machine may use {detail}", advice)


# The work


async def _check_work(store: Store, url: str | None) -> list[Check]:
    now = await store.now()
    counts = await store.counts()
    jobs = await _read_all_jobs(store)
    running = _running_by_handler(jobs, counts.runs)
    workers = await find_workers(store)
    orphaned = without_worker([job for job in jobs if job.enabled], workers)
    pause = await read_pause(store)
    return [
        _check_workers(workers, now),
        _check_pause(pause, now, workers),
        *_check_handlers(orphaned if workers else [], workers, url),
        *_check_due_work(counts.due, running, find_orphans(orphaned, workers), now, url),
        *(
            [
                await _check_schedules(
                    store, now, {job.id for job in orphaned} if workers else set(), workers
                )
            ]
            if pause.since is None and not no_worker_fires(workers)
            else []
        ),
        await _check_leases(store, now),
        await _check_cancelled_runs(store, now),
        await _check_records(store, jobs),
        Check("ok", "jobs", _describe_totals(jobs, counts.total)),
    ]


def _check_pause(pause: FiringPause, now: datetime, workers: list[LiveWorker]) -> Check:
    if pause.since is None and no_worker_fires(workers):
        detail = "no slot fires: it is switched off (enabled=False) on every worker that is alive"
        return Check("warn", "firing", detail, "start a worker that fires")
    if pause.since is None:
        return Check("ok", "firing", "it is not paused")
    detail = f"all firing is paused for {span((now - pause.since).total_seconds())}"
    return Check("warn", "firing", detail, "mainspring resume --all resumes it")


def _check_due_work(
    due: Any, running: dict[str, int], orphans: list[Job], now: datetime, url: str | None
) -> Iterator[Check]:
    gone = {job.handler for job in orphans}
    late: list[tuple[str, Due]] = [
        (handler, item) for handler, item in sorted(due.items()) if now - item.oldest > DUE_TOO_LONG
    ]
    for handler, item in late:
        since = span((now - item.oldest).total_seconds())
        detail = f"{item.count} due of {handler}, the oldest for {since}"
        if running.get(handler):
            advice = "workers are behind: start more, or raise --workers"
            yield Check("warn", "due work", detail, advice)
        elif is_node_handler(handler):
            advice = (
                "only this worker takes it; if the worker is gone, it is skipped in two minutes"
            )
            yield Check("warn", "due work", detail, advice)
        else:
            advice = f"no worker takes it: start one that has the handler {handler!r}"
            if handler in gone:
                advice += f"; if its code is gone, `{prune_command(url)}` lists what to remove"
            yield Check("fail", "due work", detail, advice)
    if not late:
        waiting = sum(item.count for item in due.values())
        yield Check("ok", "due work", f"{waiting} due, none for longer than a minute")


def _check_workers(workers: list[LiveWorker], now: datetime) -> Check:
    if not workers:
        return Check(
            "warn", "workers", "no worker is alive", "start one: mainspring worker app:scheduler"
        )
    full = [worker for worker in workers if worker.memory_limit_reached]
    if full:
        names = ", ".join(worker.id for worker in full[:3])
        detail = f"at the memory limit, and taking no more runs: {names}{_more(full)}"
        return Check("warn", "workers", detail, "restart them, or give them a higher limit")
    names = ", ".join(worker.id for worker in workers[:3])
    seen = max((worker.seen_at for worker in workers if worker.seen_at is not None), default=now)
    ago = f"last seen {max(0, round((now - seen).total_seconds()))} s ago"
    return Check("ok", "workers", f"{len(workers)} alive, {ago}: {names}{_more(workers)}")


def _check_handlers(jobs: list[Job], workers: list[LiveWorker], url: str | None) -> Iterator[Check]:
    """Check for jobs that no live worker can run: their code was renamed, their worker is down, or
    no worker takes their queue."""
    for job in jobs[:3]:
        detail = f"{describe_missing_worker(job, workers)}; {_what_follows(job)}"
        if lacks_only_queue(job, workers):
            advice = f"start a worker that takes queue {job.policy.queue!r}"
        elif find_orphans([job], workers):
            advice = (
                "if its program is down, start it; if its function was renamed,"
                f" {keeping_code(job)} on the new function keeps the job with its history; if its"
                f" code is gone, remove the job: {removal_command(job, url)}"
            )
        else:
            advice = f"start a worker that has it, or remove the job: {removal_command(job, url)}"
        yield Check("warn", "handlers", detail, advice)
    orphans = len(find_orphans(jobs, workers))
    advice = f"`{prune_command(url)}` lists all whose code is gone" if orphans > 1 else ""
    if len(jobs) > 3:
        more = plural(len(jobs) - 3, "more job")
        yield Check("warn", "handlers", f"and {more} without a worker", advice)
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
        return Check(
            "ok", "schedules", f"none is overdue{' by more than a minute' * bool(workers)}"
        )
    names = ", ".join(job.id for job in overdue[:3])
    detail = f"{_many(overdue)} overdue: {names}{_more(overdue)}"
    advice = "no worker is alive to fire them: start one"
    if workers:
        advice = "workers are alive and do not fire them: see their logs"
    return Check("fail", "schedules", detail, advice)


async def _check_leases(store: Store, now: datetime) -> Check:
    page = await store.find(RunQuery(lapsed=True, brief=True, limit=PAGE_SIZE))
    if not page.items:
        return Check("ok", "leases", "none has lapsed")
    detail = f"{_many(page.items)} lapsed: {page.items[0].id} of {page.items[0].job_id}"
    oldest = min(run.lease_until for run in page.items if run.lease_until is not None)
    if now - oldest > DUE_TOO_LONG:
        return Check(
            "fail", "leases", detail, "their workers died, and no other rescues them: start one"
        )
    return Check(
        "warn", "leases", detail, "their workers died; another rescues them within seconds"
    )


async def _check_cancelled_runs(store: Store, now: datetime) -> Check:
    """Check for runs that were cancelled but are still running."""
    page = await store.find(RunQuery(states=frozenset({State.RUNNING}), brief=True, limit=1000))
    ignoring = [run for run in page.items if run.cancel_requested]
    if not ignoring:
        return Check("ok", "running", f"{_many(page.items, 1000)} running, none ignores a cancel")
    detail = (
        f"{_many(ignoring)} cancelled and still running: {ignoring[0].id} of {ignoring[0].job_id}"
    )
    advice = 'a sync handler must check ctx.cancelled; isolation="process" can always be stopped'
    return Check("warn", "running", detail, advice)


async def _check_records(store: Store, jobs: list[Job]) -> Check:
    """Records that this version cannot read. All jobs are checked, and of runs those that were set
    aside and the newest 1,000 of each state."""
    found = [f"job {job.id} ({job.unreadable})" for job in jobs if job.unreadable is not None]
    queries = [RunQuery(set_aside=True), *(RunQuery(states=frozenset({s})) for s in State)]
    runs: dict[str, str | None] = {}
    for query in queries:
        async for page in pages(store.find, replace(query, limit=WHOLE_RUNS_AT_ONCE), most=1000):
            runs |= {run.id: run.unreadable for run in page if run.unreadable is not None}
    found += [f"run {run_id} ({why})" for run_id, why in runs.items()]
    if not found:
        return Check("ok", "records", "all records that were checked can be read")
    detail = f"{_many(found)} cannot be read: {'; '.join(found[:3])}{'…' if found[3:] else ''}"
    advice = (
        "they are skipped and not changed; everything else works. A newer version may have"
        " written them: upgrade this one. If they are damaged, restore or remove them"
    )
    return Check("fail", "records", detail, advice)


async def _check_failures(client: Client, jobs: list[Job]) -> list[Check]:
    """Check for jobs whose last run failed, and for those that fail too often."""
    failing: list[JobHealth] = []
    for at in range(0, len(jobs), PAGE_SIZE):
        healths = await client.jobs_health(jobs[at : at + PAGE_SIZE])
        failing += [health for health in healths if _is_failing(health)]
    if not failing:
        return [Check("ok", "failures", "no job failed when it last ran")]
    failing.sort(key=lambda health: -health.consecutive_failures)
    checks = [
        Check("warn", "failures", _describe_failing(health), _failing_advice(health))
        for health in failing[:3]
    ]
    if len(failing) > 3:
        more = plural(len(failing) - 3, "more job")
        advice = "`mainspring jobs list` shows how the last run of each job ended"
        checks.append(Check("warn", "failures", f"and {more} that failed", advice))
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
        return [Check("ok", "secrets", f"those of {plural(len(jobs), 'webhook')} can be decrypted")]
    detail = f"those of {plural(len(faults), 'webhook')} cannot be decrypted: {faults[0]}"
    advice = "give doctor the keys that the workers have; if they lack the key too, calls fail"
    return [Check("warn", "secrets", detail, advice)]


def _is_failing(health: JobHealth) -> bool:
    failed = health.last_run is not None and health.last_run.state is State.FAILED
    return failed or health.status == "unhealthy"


def _describe_failing(health: JobHealth) -> str:
    last = health.last_run
    if last is None or last.state is not State.FAILED:
        since = "since it was made" if health.rated_since is None else "in the last 24 hours"
        return (
            f"job {health.job_id!r}: {health.success_rate or 0:.0%} of its runs succeeded {since}"
        )
    count = health.consecutive_failures
    runs = f"the last {count} runs" if count > 1 else "the last run"
    error = f": {last.error.splitlines()[0]}" if last.error else ""
    return f"job {health.job_id!r}: {runs} failed{error}"


def _failing_advice(health: JobHealth) -> str:
    last = health.last_run
    if last is None or last.state is not State.FAILED:
        return f"mainspring runs list --job {health.job_id} --state failed"
    return f"mainspring runs show {last.id}"


async def _read_all_jobs(store: Store) -> list[Job]:
    return [job async for job in all_items(store.jobs, JobQuery(limit=1000))]


def _running_by_handler(jobs: list[Job], runs: Any) -> dict[str, int]:
    running: dict[str, int] = {}
    for job in jobs:
        count = runs.get(job.id, {}).get(State.RUNNING, 0)
        running[job.handler] = running.get(job.handler, 0) + count
    return running


def _describe_totals(jobs: list[Job], total: Any) -> str:
    paused = sum(not job.enabled for job in jobs)
    held = ", ".join(f"{total(state)} {state}" for state in State if total(state))
    return f"{len(jobs)}{f' ({paused} paused)' if paused else ''}; runs: {held or 'none'}"


def _more(items: list[Any]) -> str:
    return "…" if len(items) > 3 else ""


def _many(items: list[Any], most: int = PAGE_SIZE) -> str:
    return f"{len(items)}{'+' if len(items) >= most else ''}"
