"""Fills a store with jobs, runs and notes of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from mainspring.core import transitions
from mainspring.core.model import Job, Run, Source, State, replace
from mainspring.core.policy import Policy
from mainspring.core.schedules import cron
from mainspring.stores.protocol import Claim, JobQuery, RunQuery, Store
from mainspring.testing.conformance.round_trip import JOB, RUN
from mainspring.testing.store_calls import claim_runs, put_job

LEASE = timedelta(milliseconds=1)
SOON = timedelta(minutes=5)


@asynccontextmanager
async def opened(*stores: Store) -> AsyncIterator[None]:
    for store in stores:
        await store.open()
    try:
        yield
    finally:
        for store in stores:
            await store.close()


async def everything(store: Store) -> tuple[list[Job], list[Run]]:
    """All jobs by id, all runs newest first."""
    jobs = (await store.jobs(JobQuery(limit=1000))).items
    runs: list[Run] = []
    cursor: str | None = None
    while True:
        page = await store.find(RunQuery(cursor=cursor, limit=100))
        runs += page.items
        if (cursor := page.cursor) is None:
            return jobs, runs


def made(run_id: str, now: datetime, number: int, **fields: object) -> Run:
    """The `number`-th run of a store: made that many milliseconds after the first."""
    created = now - timedelta(hours=1) + timedelta(milliseconds=number)
    times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), created)
    return Run(**{"id": run_id, "job_id": "job", "handler": "work", **times, **fields})  # type: ignore[arg-type]


async def fill(store: Store, plain: int = 0) -> None:
    """Jobs of every kind, and runs of every state by every way that leads there."""
    now = await store.now()
    job = Job(id="job", handler="work", created_at=now, updated_at=now)
    await put_job(store, replace(job, policy=Policy(concurrency=2)))
    for _ in range(4):  # a job that was edited, and so has a version
        [kept] = (await store.jobs(JobQuery(ids=frozenset({"job"})))).items
        await put_job(store, replace(kept, description=f"edit {kept.version}"))
    often = replace(job, id="often", schedule=cron("* * * * *"), next_run_at=now + SOON)
    await put_job(store, often)
    await put_job(store, JOB)
    await store.add([made(f"plain-{n}", now, n) for n in range(plain)])
    created, held_until = made("", now, plain).created_at, now + timedelta(hours=1)
    await store.add([replace(RUN, created_at=created, dedupe_until=held_until)])
    at = plain + 1
    ways = ("succeeds", "fails", "retries", "cancels", "dies", "waits", "is due")
    await store.add(
        [
            made(way, now, at + n, dedupe_key=f"key of {way}", payload={"$n": [n]}, handler="ways")
            for n, way in enumerate(ways)
        ]
    )
    claim = Claim(worker="w", handlers=frozenset({"ways"}), limit=9, lease=LEASE)
    held: dict[str, Run] = {}
    while taken := await claim_runs(store, claim):
        held |= {run.id: run for run in taken}
        ends = {
            "succeeds": lambda run: transitions.succeeded(
                run, now, {"a": 1}, transitions.AttemptDetails(log=("said",))
            ),
            "fails": lambda run: transitions.failed(run, now, transitions.Failure("no", "trace")),
            "retries": lambda run: transitions.retrying(
                run, now, transitions.Failure("no"), now + SOON
            ),
            "cancels": lambda run: transitions.cancelled(run, now, "asked"),
            "waits": lambda run: transitions.snoozed(run, now, now + SOON),
            "is due": lambda run: transitions.snoozed(run, now, now + SOON),
        }
        await store.commit([ends[run.id](run) for run in taken if run.id in ends])
    assert held["dies"].state is State.RUNNING
    slot = {"source": Source.SCHEDULE, "job_id": "often"}
    await store.add(
        [
            made("follower", now, at + 20, state=State.WAITING, after=("retries", "gone")),
            made("skipped", now, at + 21, state=State.SKIPPED, reason="overlap", finished_at=now),
            made("often@20300101T000000Z", now, at + 22, run_at=now + SOON, **slot),
        ]
    )
