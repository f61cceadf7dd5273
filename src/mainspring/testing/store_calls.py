"""Calls of a store for one item, for tests: the protocol itself takes lists alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mainspring.core import transitions
from mainspring.core.model import Job, Note, Run
from mainspring.stores.paging import read_runs
from mainspring.stores.protocol import Claim, JobWrite, NoteWrite, Store


async def put_job(store: Store, job: Job) -> bool:
    [done] = await store.put_jobs([JobWrite.put(job)])
    return done


async def add_jobs(store: Store, jobs: Sequence[Job]) -> list[bool]:
    return await store.put_jobs([JobWrite.add(job) for job in jobs])


async def drop_job(store: Store, job_id: str, expected_version: int | None = None) -> bool:
    [done] = await store.put_jobs([JobWrite.drop(job_id, expected_version)])
    return done


async def put_note(store: Store, note: Note) -> int | None:
    [version] = await store.put_notes([NoteWrite.put(note)])
    return version


async def drop_note(store: Store, kind: str, name: str) -> bool:
    [version] = await store.put_notes([NoteWrite.drop(kind, name)])
    return version is not None


async def claim_runs(store: Store, claim: Claim) -> list[Run]:
    return (await store.claim(claim)).runs


async def drop_runs(store: Store, ids: Iterable[str]) -> int:
    """Delete those of the runs that have finished; how many of them are gone now."""
    runs = (await get_runs(store, ids, brief=True)).values()
    done = await store.commit([transitions.deleted(run) for run in runs if run.finished])
    return sum(done)


async def get_runs(store: Store, ids: Iterable[str], *, brief: bool = False) -> dict[str, Run]:
    """The runs of these ids that exist, in the order of the ids."""
    wanted = list(dict.fromkeys(ids))
    stored = await read_runs(store, wanted, brief=brief)
    return {run_id: stored[run_id] for run_id in wanted if run_id in stored}
