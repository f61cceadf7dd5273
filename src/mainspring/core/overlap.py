"""What becomes of a slot whose job still has unfinished runs of earlier slots.

Stores decide it inside `fire`, on what they hold at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mainspring.core import transitions
from mainspring.core.model import Run, State, is_node_handler, replace
from mainspring.core.policy import Overlap
from mainspring.core.transitions import Change


def resolve_overlap(
    overlap: Overlap, slot_runs: Sequence[Run], unfinished: Sequence[Run], now: datetime
) -> tuple[tuple[Run, ...], list[Change]]:
    """What a firing adds and changes, given its runs and the job's earlier slot runs that are
    unfinished: all of them if `Firing.needs_all_unfinished`, else the newest is enough.

    The same for every store. A run of this very slot, left by a crash between the
    run and the job's advance, is no earlier one. A queued slot names only the newest, which waits
    for the one before it: a queue of a thousand slots would be a million names otherwise. A run for
    one node overlaps only with the runs for that node.
    """
    runs: dict[str, Run] = {run.id: run for run in slot_runs}
    earlier = [run for run in unfinished if run.id not in runs and not may_never_start(run)]
    job_id = slot_runs[0].job_id if slot_runs else None
    starting = [r for r in slot_runs if r.job_id == job_id and r.state is State.PENDING]
    changes: list[Change] = []
    skipped: set[str] = set()
    for run in starting:
        own = [r for r in earlier if not is_node_handler(run.handler) or r.handler == run.handler]
        if not own:
            continue
        newest = max(own, key=lambda earlier: earlier.scheduled_at)
        match overlap:
            case Overlap.ALLOW:
                pass
            case Overlap.SKIP:
                named = {"unfinished": [newest.id]}
                runs[run.id] = replace(_skipped(run, transitions.OVERLAP, now), result=named)
                skipped.add(run.id)
            case Overlap.QUEUE:
                queued = replace(run, state=State.WAITING, after=(newest.id,), after_any=True)
                runs[run.id] = queued
            case Overlap.REPLACE:
                reason = f"replaced by {run.id}"
                changes += [transitions.cancelled_or_requested(r, now, reason) for r in own]
    if skipped:
        # The runs that follow come after what runs of this slot; if nothing runs, they do not.
        none_runs = len(skipped) == len(starting)
        for run in slot_runs:
            if run.state is State.WAITING and none_runs:
                runs[run.id] = _skipped(run, transitions.UPSTREAM_SKIPPED, now)
            elif run.state is State.WAITING:
                after = tuple(name for name in run.after if name not in skipped)
                runs[run.id] = replace(run, after=after)
    return tuple(runs.values()), changes


def _skipped(run: Run, reason: str, now: datetime) -> Run:
    return replace(run, state=State.SKIPPED, finished_at=now, reason=reason)


def may_never_start(run: Run) -> bool:
    """Whether an unfinished run cannot be read: later slots do not wait for it."""
    return run.unreadable is not None and run.state is not State.RUNNING


def runs_ended_by(
    unfinished: Sequence[Run], changes: Sequence[Change], done: Sequence[bool]
) -> tuple[Run, ...]:
    """The runs that these changes have ended, in their new state."""
    earlier = {run.id: run for run in unfinished}
    pairs = zip(changes, done, strict=True)
    after = [change.after(earlier[change.id]) for change, kept in pairs if kept]
    return tuple(run for run in after if run.finished)
