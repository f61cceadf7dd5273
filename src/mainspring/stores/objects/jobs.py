"""Jobs, and the firing of their slots."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.core.overlap import resolve_overlap, runs_ended_by
from mainspring.stores import evaluation
from mainspring.stores.codec import JOB, job_to_record, run_to_record, update_record
from mainspring.stores.objects import counters
from mainspring.stores.objects.commit import add_runs, commit_changes
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.protocol import Fired, Firing, JobWrite


def put_jobs(work: Workspace, writes: Sequence[JobWrite]) -> list[bool]:
    return [_put_job(work, write) for write in writes]


def _put_job(work: Workspace, write: JobWrite) -> bool:
    stored = work.state.job(write.id)
    if write.expected_version not in (None, stored.version if stored else 0):
        return False
    if write.job is not None:
        work.state.put("jobs", write.id, job_to_record(write.job))
        return True
    if stored is None:
        return False
    work.state.put("jobs", write.id, None)
    counters.remove_job(work.state, write.id)
    return True


def fire(work: Workspace, firings: Sequence[Firing]) -> list[Fired]:
    broken_chains: set[str] = set()
    return [_fire(work, firing, broken_chains) for firing in firings]


def _fire(work: Workspace, firing: Firing, broken_chains: set[str]) -> Fired:
    job = work.state.job(firing.job_id)
    is_late = firing.valid_until is not None and work.now > firing.valid_until
    if job is None or job.version != firing.version or job.id in broken_chains or is_late:
        broken_chains.add(firing.job_id)
        return Fired(False)
    unfinished = evaluation.unfinished_slots(work.state.unfinished(), job.id)
    runs, changes = resolve_overlap(firing.overlap, firing.runs, unfinished, work.now)
    done = commit_changes(work, changes)
    replaced = runs_ended_by(unfinished, changes, done)
    stored = tuple(added.run for added in add_runs(work, list(map(run_to_record, runs))))
    fields = {"next_run_at": firing.next_run_at, "last_run_at": firing.last_run_at}
    record = work.state.get("jobs", job.id) or {}
    advanced = update_record(JOB, {**record, "version": job.version + 1}, fields)
    work.state.put("jobs", job.id, advanced)
    return Fired(True, stored, replaced)
