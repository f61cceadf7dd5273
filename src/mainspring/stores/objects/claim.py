"""Claims due runs and renews their leases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from mainspring.core.model import Run, State
from mainspring.stores import evaluation
from mainspring.stores.codec import to_us
from mainspring.stores.objects.notes import put_notes
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.protocol import Claim, Claimed, Held, Renewed


def claim_runs(work: Workspace, wanted: Claim) -> Claimed:
    state, now = work.state, work.now
    runs, known = state.unfinished(), state.jobs()
    rates = evaluation.rate_allowance(known, state.notes(), now)
    used = evaluation.used_capacity(runs, known, now)
    chosen = evaluation.choose_claimed(runs, known, wanted, now, used, rates)
    put_notes(work, rates.writes(to_us(work.latest)))
    taken = []
    for run in chosen:
        fields = evaluation.fields_of_claim(run, wanted, now)
        fields["lease_until"] = work.latest + wanted.lease
        taken.append(work.update(run.id, fields))
    if taken:
        return Claimed(taken)
    return Claimed([], evaluation.next_due(runs, wanted, now, rates))


def renew_leases(work: Workspace, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
    return [renewed for item in held if (renewed := _renew(work, item, lease)) is not None]


def _renew(work: Workspace, held: Held, lease: timedelta) -> Renewed | None:
    run = work.state.run(held.id)
    if run is None or run.state is not State.RUNNING or run.token != held.token:
        return None
    if evaluation.has_lapsed(run, work.now) and not _has_capacity(work, run):
        return None
    work.update(run.id, {"lease_until": work.latest + lease, "progress": held.progress})
    return Renewed(run.id, run.cancel_requested, run.reason)


def _has_capacity(work: Workspace, run: Run) -> bool:
    used = evaluation.used_capacity(work.state.unfinished(), work.state.jobs(), work.now)
    return evaluation.has_capacity(work.state.job(run.job_id), used)
